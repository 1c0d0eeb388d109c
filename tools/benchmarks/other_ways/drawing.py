"""Draws the answers of each way from a recording, with a planted effect: the truth is known exactly.

The candidate's times are as they were recorded. Those of the baseline are the recorded ones, of other processes, times
the true speed-up. Ways that time one program after the other get processes that followed each other in the recording,
because the speed of a machine changes slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.random import Generator

from tools.benchmarks.other_ways import halfstep, ways
from tools.benchmarks.other_ways.recordings import FIRST_EPOCHS, Fit, Recording
from tools.benchmarks.other_ways.ways import Found

TRUTHS = (1.0, 1.05, 1.2)
BAR, PYPERF, HALFSTEP = "progress bar, last epoch", "pyperf", "halfstep"
RANGE = (2.5, 97.5)  # percentiles


def stopwatch_name(epochs: int) -> str:
    """The name of the stopwatch's way."""
    return f"stopwatch, {epochs} epochs"


@dataclass(frozen=True)
class Row:
    """The answers of one way.

    Attributes:
        load, way: by their names.
        truth: the planted speed-up.
        draws: number of answers.
        different: number of different ones that could be drawn; None where there are more than anyone draws.
        yes, no, undecided, wrong: shares of the answers.
        ratio, low, high: median of the estimates, and their 95 % range.
        error: median of the absolute error of the estimates, as a share of the truth.
        seconds: median.
    """

    load: str
    way: str
    truth: float
    draws: int
    different: int | None
    yes: float
    no: float
    undecided: float
    wrong: float
    ratio: float
    low: float
    high: float
    error: float
    seconds: float


def row_of(load: str, way: str, truth: float, found: Sequence[Found], different: int | None = None) -> Row:
    """Counts answers."""
    ratios, answers = np.array([item.ratio for item in found]), [item.answer for item in found]
    low, high = np.percentile(ratios, RANGE)
    return Row(
        load=load,
        way=way,
        truth=truth,
        draws=len(found),
        different=different,
        **{answer: answers.count(answer) / len(found) for answer in ("yes", "no", "undecided")},
        wrong=float(np.mean([ways.is_wrong(answer, truth) for answer in answers])),
        ratio=float(np.median(ratios)),
        low=float(low),
        high=float(high),
        error=float(np.median(np.abs(ratios / truth - 1))),
        seconds=float(np.median([item.seconds for item in found])),
    )


def rows(recording: Recording, draws: int, truths: Sequence[float] = TRUTHS) -> Iterator[Row]:
    """The answers of all ways at each effect; of those for which enough was recorded."""
    for truth in truths:
        generator = np.random.default_rng(0)
        for way, possible in in_sequence(recording, truth).items():
            drawn = [possible[place] for place in generator.integers(len(possible), size=draws)] if possible else []
            if drawn:
                yield row_of(recording.load, way, truth, drawn, len(possible))
        if len(recording.repeats) > 1 and recording.fits:
            yield row_of(recording.load, HALFSTEP, truth, list(_of_halfstep(recording, truth, draws, generator)))


def _of_halfstep(recording: Recording, truth: float, draws: int, generator: Generator) -> Iterator[Found]:
    """halfstep's answers; its time is that of the stage `profile` and of both trainings."""
    trainings_s, processes_s = (
        2 * float(np.mean(values))
        for values in (
            [fit.seconds(FIRST_EPOCHS) for fit in recording.fits],
            [_needed_s(recording, place, FIRST_EPOCHS) for place in range(len(recording.fits))],
        )
    )
    for _ in range(draws):
        found = halfstep.judged(recording.repeats, truth, trainings_s, generator)
        yield replace(found, seconds=found.seconds + processes_s)


def in_sequence(recording: Recording, truth: float) -> Mapping[str, list[Found]]:
    """All answers of the ways that run one process after the other, by way."""
    fits = recording.fits
    if len(fits) < 2:
        return {}
    befores = [fit.slowed(truth) for fit in fits]
    found: dict[str, list[Found]] = {}
    for name, estimate, epochs in _of_fits(len(fits[0].tail_us)):
        needed_s = [_needed_s(recording, place, epochs) for place in range(len(fits))]
        found[name] = [
            _found(estimate(before, after, epochs), sum(seconds))
            for before, after, seconds in zip(befores[:-1], fits[1:], pairwise(needed_s), strict=True)
        ]
    return found | {PYPERF: _pyperf(recording, befores)}


def _of_fits(epochs: int) -> list[tuple[str, Callable[[Fit, Fit, int], float], int]]:
    first = min(FIRST_EPOCHS, epochs)
    stopwatches = [(stopwatch_name(count), ways.stopwatch, count) for count in sorted({first, epochs})]
    return [*stopwatches, (BAR, ways.progress_bar, first)]


def _found(ratio: float, seconds: float) -> Found:
    return Found(ratio, ways.answer_of(ratio), seconds)


def _needed_s(recording: Recording, place: int, epochs: int) -> float:
    """Wall time of a recorded process, had it ended after so many epochs."""
    fit = recording.fits[place]
    return recording.fit_s[place] - fit.seconds(len(fit.tail_us)) + fit.seconds(epochs)


def _pyperf(recording: Recording, befores: Sequence[Fit]) -> list[Found]:
    """Of each place in the recording where both sides fit in; with fewer processes if few were recorded."""
    afters, side = recording.fits, min(1 + ways.PROCESSES, len(recording.fits) // 2)
    found = []
    for start in range(len(afters) - 2 * side + 1 if side > 1 else 0):
        middle, end = start + side, start + 2 * side
        ratio, answer = ways.pyperf(befores[start:middle], afters[middle:end])
        spent_s = sum(_needed_s(recording, place, 0) + ways.timed_s(afters[place]) for place in range(start, end))
        found.append(Found(ratio, answer, spent_s))
    return found
