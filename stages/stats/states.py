"""A machine in two states: within single processes the rounds stand in two groups of step time.

Processors change their clock, and neighbours come and go, within seconds. If the speed-up differs between the states,
one number for both describes neither.

Each process is divided where two groups explain the most of the variance of its rounds' times (Fisher, On grouping for
maximum homogeneity, 1958; for two groups also Otsu, 1979). A process stands in two groups if that share is larger than
in 95 % of samples of a uniform distribution: of the symmetric distributions with one mode it has the largest share, and
Hartigan's dip test refers to it for the same reason (1985).
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stages.stats.speedup import CONFIDENCE, ProcessTimes, Speedup, process_times, t_interval

MIN_ROUNDS = 6  # of a process, and
MIN_GROUP_SHARE = 0.2  # of them in each group: 5 % of outliers are no state
MIN_PROCESSES = 3  # that stand in two groups
_NULL_SAMPLES = 2000


def find_states(
    baseline_rounds: pd.DataFrame,
    candidate_rounds: pd.DataFrame,
    confidence: float = CONFIDENCE,
) -> tuple[Speedup, ...]:
    """The speed-up in each of the two states of the machine, the fast one first; empty unless it differs between them.

    The rounds are those of the processes that were in both states.

    Args:
        baseline_rounds, candidate_rounds: tables with the columns of `Round`, of which the counted ones are used.
        confidence: of the intervals, and of the difference between the states.
    """
    fast, slow = [], []
    for _, rounds in _times(baseline_rounds, candidate_rounds).groupby(level="process"):
        is_slow = _is_slow(rounds[["baseline_ms", "candidate_ms"]].to_numpy())
        if is_slow is not None:
            fast.append(process_times(rounds[~is_slow]))
            slow.append(process_times(rounds[is_slow]))
    if len(fast) < MIN_PROCESSES:
        return ()
    differences = np.array([_log_ratio(one) - _log_ratio(other) for one, other in zip(fast, slow, strict=True)])
    low, high = t_interval(differences, confidence)
    if low <= 0 <= high:
        return ()
    return Speedup(tuple(fast), confidence), Speedup(tuple(slow), confidence)


def _times(baseline_rounds: pd.DataFrame, candidate_rounds: pd.DataFrame) -> pd.DataFrame:
    """The counted rounds of both arms by process and round: `count` of steps, `baseline_ms` and `candidate_ms`."""
    before, after = (
        arm[arm["counted"].astype(bool)].set_index(["process", "round"]) for arm in (baseline_rounds, candidate_rounds)
    )
    times = {"baseline_ms": before["round_time_ms"], "candidate_ms": after["round_time_ms"]}
    return pd.DataFrame({"count": before["steps"], **times}).dropna()


def _is_slow(times_ms: NDArray[np.float64]) -> NDArray[np.bool_] | None:
    """Which rounds of a process, `(rounds, arms)`, are of the slow group; None if they do not stand in two groups.

    A state is the machine's, so all arms are slower in it: the fastest arm of a round decides.
    """
    if len(times_ms) < MIN_ROUNDS:
        return None
    logs = np.log(times_ms)
    values = np.min(logs - np.median(logs, axis=0), axis=1)
    order = np.sort(values)
    shares = _explained_shares(order[None, :])[0]
    if shares.max() <= _critical_share(len(order)):
        return None
    return values > order[_smallest_group(len(order)) + int(shares.argmax()) - 1]


def _explained_shares(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the variance of each sorted row `(samples, values)` that a division explains, `(samples, divisions)`."""
    count, smallest = ordered.shape[1], _smallest_group(ordered.shape[1])
    centred = ordered - ordered.mean(axis=1, keepdims=True)
    sizes = np.arange(smallest, count - smallest + 1)
    sums = np.cumsum(centred, axis=1)[:, sizes - 1]
    total = np.maximum(np.sum(centred**2, axis=1, keepdims=True), np.finfo(float).tiny)
    return sums**2 * (1 / sizes + 1 / (count - sizes)) / total


@functools.cache
def _critical_share(count: int) -> float:
    """The share that 5 % of the uniform samples of `count` values exceed."""
    samples = np.sort(np.random.default_rng(0).random((_NULL_SAMPLES, count)), axis=1)
    return float(np.quantile(_explained_shares(samples).max(axis=1), 0.95))


def _smallest_group(count: int) -> int:
    return max(2, math.ceil(MIN_GROUP_SHARE * count))


def _log_ratio(process: ProcessTimes) -> float:
    return math.log(process.baseline_ms / process.candidate_ms)
