"""Where the steady state begins: in the rounds of a process, and in the calls of an inference turn.

A GPU's arms, which are measured one at a time, have four rounds a process. Of so few, only the first can be left out,
and only if it is clearly slower in most processes, by the spread of the other rounds of all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from halfstep.profile.records import ArmRecord
from halfstep.profile.warm_up import CLEARLY_SLOWER, FEWEST_VALUES, warm_up_length
from halfstep.results.profile import InferenceCall, Round
from halfstep.words.text import inference_measure

FEWEST_FREEDOMS = 4  # of the spread of the other rounds, to leave out the first of a few
DRIFT_P = 0.005  # of Kendall's test for a trend; a false alarm in one of 200 processes

_Row = TypeVar("_Row", Round, InferenceCall)


def mark_counted(records: Mapping[str, ArmRecord]) -> int:
    """Marks which rounds and calls count, the same in all arms, and returns how many processes still drift.

    Those of the steady state count, without the throttled ones. Where a process has no others, its throttled ones are
    kept, because no time would be left of it; `compare` concludes nothing from such a measure.
    """
    first_round, drifting = _first_round(records)
    first_calls = _first_calls(records)
    for record in records.values():
        times = record.times
        times.rounds = _marked(times.rounds, lambda row: row.round >= first_round, lambda row: row.process)
        times.calls = _marked(
            times.calls, lambda row: row.call >= first_calls[row.batch_size], lambda row: (row.process, row.batch_size)
        )
    return drifting


def _marked(rows: Sequence[_Row], is_steady: Callable[[_Row], bool], group: Callable[[_Row], Hashable]) -> list[_Row]:
    """The rows with `counted`: the steady ones, of each group without the throttled ones unless it has no others."""
    with_others = {group(row) for row in rows if is_steady(row) and not row.throttled}
    return [replace(row, counted=is_steady(row) and not (row.throttled and group(row) in with_others)) for row in rows]


def _first_round(records: Mapping[str, ArmRecord]) -> tuple[int, int]:
    """The first round that counts in every process, and the number of processes whose counted rounds show a trend.

    One start for all processes, from their median: one for each would cut off stalls that happen to come first.
    """
    by_round: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records.values():
        for process in {row.process for row in record.times.rounds}:
            rows = [row for row in record.times.rounds if row.process == process]
            logs = np.log([row.round_time_ms / row.steps for row in rows])
            for row, deviation in zip(rows, logs - np.median(logs), strict=True):  # not all arms are in all rounds
                by_round[process][row.round].append(deviation)
    curves = [
        np.array([np.mean(of_process[number]) for number in sorted(of_process)]) for of_process in by_round.values()
    ]
    if not curves:
        return 0, 0
    start = first_steady(curves)
    return start, sum(_has_trend(curve[start:]) for curve in curves)


def first_steady(curves: Sequence[NDArray[np.float64]]) -> int:
    """The first round that counts in all processes, from the mean logarithm of the time of each round, by process."""
    shortest = min(len(curve) for curve in curves)
    by_process = np.array([curve[:shortest] for curve in curves])
    if shortest < FEWEST_VALUES:
        return int(_first_is_slower(by_process))
    return warm_up_length(np.median(by_process, axis=0))


def _first_is_slower(by_process: NDArray[np.float64]) -> bool:
    """Whether the first of a few rounds is clearly slower than the rest in most processes, of a row each."""
    processes, rounds = by_process.shape
    if processes * (rounds - 2) < FEWEST_FREEDOMS:
        return False
    first, rest = by_process[:, 0], by_process[:, 1:]
    error = np.sqrt(rest.var(axis=1, ddof=1).mean() * (1 + 1 / (rounds - 1)))
    return bool(np.median(first - rest.mean(axis=1)) > CLEARLY_SLOWER * error)


def _has_trend(values: NDArray[np.float64]) -> bool:
    return len(values) > 3 and bool(stats.kendalltau(np.arange(len(values)), values).pvalue < DRIFT_P)


def _first_calls(records: Mapping[str, ArmRecord]) -> dict[int, int]:
    """By batch size, the first call of a turn that counts: the latest of all arms."""
    first_calls: dict[int, int] = {}
    for record in records.values():
        for batch_size in {row.batch_size for row in record.times.calls}:
            curve = _mean_by_call(
                (row.call, row.latency_ms) for row in record.times.calls if row.batch_size == batch_size
            )
            first_calls[batch_size] = max(first_calls.get(batch_size, 0), warm_up_length(curve))
    return first_calls


def unsteady_measures(records: Mapping[str, ArmRecord]) -> tuple[str, ...]:
    """The measures of inference whose latency still falls over the counted calls of a turn, in any arm."""
    measures = set()
    for record in records.values():
        counted = [row for row in record.times.calls if row.counted]
        for batch_size in {row.batch_size for row in counted}:
            curve = _mean_by_call((row.call, row.latency_ms) for row in counted if row.batch_size == batch_size)
            if _has_trend(curve) and curve[len(curve) // 2 :].mean() < curve[: len(curve) // 2].mean():
                measures.add(inference_measure(batch_size))
    return tuple(sorted(measures))


def _mean_by_call(calls: Iterable[tuple[int, float]]) -> NDArray[np.float64]:
    """Mean logarithm of the latency by the call's place in the turn."""
    by_call: dict[int, list[float]] = defaultdict(list)
    for call, latency_ms in calls:
        by_call[call].append(float(np.log(latency_ms)))
    return np.array([np.mean(by_call[call]) for call in sorted(by_call)])
