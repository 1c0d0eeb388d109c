"""Changes of times between two arms that were measured in the same turns, with intervals by the rule of the speed-ups.

The standard error is the larger of two, as in `stages.stats.speedup`: that of the turns, to which the variance of
repeats that differ by `REPEAT_SD` is added, and that of the repeats, with their degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from stages.stats.speedup import CONFIDENCE, MOST_DEGREES, REPEAT_SD

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Changes:
    """Changes, candidate − baseline, of several times: the mean, its standard error and degrees of freedom, `(times,)`.

    Attributes:
        turns: number of turns that they are the mean of.
    """

    deltas: Floats
    standard_errors: Floats
    degrees: Floats
    turns: int

    def half_widths(self, confidence: float = CONFIDENCE) -> Floats:
        """Half the widths of their intervals, `(times,)`; infinite where a single turn was measured."""
        quantiles = stats.t.ppf((1 + confidence) / 2, np.maximum(self.degrees, 1e-9))
        return np.where(self.degrees > 0, quantiles * self.standard_errors, np.inf)


def paired_changes(repeats: NDArray[np.int64], baseline: Floats, candidate: Floats) -> Changes:
    """Changes of two arms that took turns.

    Args:
        repeats: the repeat of each turn, `(turns,)`.
        baseline, candidate: times in each turn, `(turns, times)`.
    """
    differences, turns = candidate - baseline, len(repeats)
    numbers, positions = np.unique(repeats, return_inverse=True)
    count = len(numbers)
    means = np.array([differences[positions == index].mean(axis=0) for index in range(count)])
    within_degrees = turns - count
    within = ((differences - means[positions]) ** 2).sum(axis=0) / max(1, within_degrees) / turns
    levels = (baseline + candidate).mean(axis=0) / 2
    least = 2 * (REPEAT_SD * levels) ** 2 / count
    between = means.var(axis=0, ddof=1) / count if count > 1 else np.zeros_like(least)
    square, degrees = _larger(between, count - 1, within, within_degrees, least)
    return Changes(differences.mean(axis=0), np.sqrt(square), degrees, turns)


def unpaired_changes(
    baseline_repeats: NDArray[np.int64], baseline: Floats, candidate_repeats: NDArray[np.int64], candidate: Floats
) -> Changes:
    """Changes of two arms that were measured one at a time: only the repeats show their errors (Welch, 1947).

    Args:
        baseline_repeats, candidate_repeats: the repeat of each turn of an arm, `(turns,)`.
        baseline, candidate: times in each turn of an arm, `(turns, times)`.
    """
    squares, degrees, deltas = [], [], []
    for repeats, times in ((baseline_repeats, baseline), (candidate_repeats, candidate)):
        means = np.array([times[repeats == number].mean(axis=0) for number in np.unique(repeats)])
        least = (REPEAT_SD * times.mean(axis=0)) ** 2
        variance = means.var(axis=0, ddof=1) if len(means) > 1 else np.zeros_like(least)
        squares.append(np.maximum(variance, least) / len(means))
        degrees.append(len(means) - 1)
        deltas.append(times.mean(axis=0))
    total = squares[0] + squares[1]
    if min(degrees) < 1:
        return Changes(deltas[1] - deltas[0], np.sqrt(total), np.zeros_like(total), len(baseline))
    terms = sum(square**2 / number for square, number in zip(squares, degrees, strict=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(terms > 0, total**2 / terms, sum(degrees))
    return Changes(deltas[1] - deltas[0], np.sqrt(total), found, len(baseline))


def _larger(
    between: Floats, between_degrees: int, within: Floats, within_degrees: int, least: Floats
) -> tuple[Floats, Floats]:
    """Squared standard errors and degrees of freedom: those of the turns or of the repeats, whichever is larger."""
    of_turns = within + least
    if between_degrees < 1:
        return of_turns, np.full_like(of_turns, float(within_degrees))
    if within_degrees < 1:
        return np.maximum(between, least), np.full_like(of_turns, float(between_degrees))
    part = np.minimum(within, between)
    with np.errstate(invalid="ignore", divide="ignore"):
        mixed = between**2 / ((between - part) ** 2 / between_degrees + part**2 / within_degrees)
    repeats_decide = between > of_turns
    degrees = np.where(repeats_decide, np.minimum(mixed, MOST_DEGREES * between_degrees), float(within_degrees))
    return np.where(repeats_decide, between, of_turns), degrees
