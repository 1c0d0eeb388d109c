"""Changes of times between two arms, from their times in each repeat, with Student intervals.

Few repeats may agree by chance, so the error is never less than that of repeats that differ by `REPEAT_SD`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from halfstep.stats.speedup import CONFIDENCE, REPEAT_SD

_COMPARABLE = 0.25  # of the largest time: arms whose times are at least as long vary alike, in proportion

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Changes:
    """Changes, candidate − baseline, each `(times,)`.

    Attributes:
        deltas: their means.
        standard_errors, degrees: of the means, with their degrees of freedom.
        p_values: two-sided p-values that they are 0; 1 where a single repeat was measured.
    """

    deltas: Floats
    standard_errors: Floats
    degrees: Floats
    p_values: Floats

    def half_widths(self, confidence: float = CONFIDENCE) -> Floats:
        """Half the widths of their intervals, `(times,)`; infinite where a single repeat was measured."""
        quantiles = special.stdtrit(np.maximum(self.degrees, 1e-9), (1 + confidence) / 2)
        return np.where(self.degrees > 0, quantiles * self.standard_errors, np.inf)


def paired_changes(
    baseline: Floats,
    candidate: Floats,
    copy: Floats | None = None,
    levels: Floats | None = None,
    least_sd: float = REPEAT_SD,
) -> Changes:
    """Changes of two arms that took turns in the same repeats.

    Where a second copy of the baseline takes about as long as both, it shows the error, too: with the differences of
    candidate and baseline, as shares of each arm's mean, those of the copy and the mean of both are pooled. In repeats
    that have all three arms, that is the residual of a two-way analysis of variance. It has more degrees of freedom
    than the differences alone, which are used elsewhere.

    With the shares `c` and `b` of the means `C` and `B`, a repeat's difference is
    `(C + B) / 2 * (c - b) + (C - B) * (c + b) / 2`. What all arms share in a repeat, such as a slow machine, cancels in
    the first term, whose error is the pooled one, and not in the second. The interval has the error of both
    (Satterthwaite, 1946). Times that do not change have no second term, so the p-value is that of the first.

    Args:
        baseline, candidate: times in each repeat, `(repeats, times)`.
        copy: those of the copy, NaN in repeats that it has no part in.
        levels: what the times are shares of, `(arms, times)`; by default the means of the arms, the copy's last.
        least_sd: smallest standard deviation of a repeat, as a share.
    """
    repeats, differences = len(baseline), candidate - baseline
    deltas, degrees = differences.mean(axis=0), np.full(differences.shape[1], repeats - 1.0)
    if repeats < 2:
        return Changes(deltas, np.zeros_like(deltas), degrees, np.ones_like(deltas))
    has_copy = np.zeros(repeats, dtype=bool) if copy is None else ~np.isnan(copy).any(axis=1)
    arms = [baseline, candidate, *([copy[has_copy]] if copy is not None and has_copy.sum() > 1 else [])]
    levels = np.stack([times.mean(axis=0) for times in arms]) if levels is None else levels[: len(arms)]
    errors = np.maximum(differences.std(axis=0, ddof=1), least_sd * np.hypot(levels[0], levels[1]))
    unchanged = errors, degrees
    if len(arms) > 2:
        is_comparable = levels.min(axis=0) > _COMPARABLE * levels.max(axis=0)
        before, after, of_copy = (times / np.where(is_comparable, levels[n], 1.0) for n, times in enumerate(arms))
        contrasts = of_copy - (before[has_copy] + after[has_copy]) / 2
        pooled_degrees = repeats + len(of_copy) - 2.0
        # the variance of a difference is twice, and that of a contrast 3 / 2 of that of an arm
        squares = (repeats - 1) * (after - before).var(axis=0, ddof=1) / 2
        squares += (len(of_copy) - 1) * contrasts.var(axis=0, ddof=1) / 1.5
        spread = np.maximum(np.sqrt(squares / pooled_degrees), least_sd)
        apart = spread * (levels[0] + levels[1]) / math.sqrt(2)
        shared = np.abs(levels[1] - levels[0]) * ((before + after) / 2).std(axis=0, ddof=1)
        both, of_both = _error_of_sum((apart**2, pooled_degrees), (shared**2, repeats - 1.0))
        unchanged = np.where(is_comparable, apart, errors), np.where(is_comparable, pooled_degrees, degrees)
        errors, degrees = np.where(is_comparable, both, errors), np.where(is_comparable, of_both, degrees)
    p_values = _p_values(deltas, unchanged[0] / np.sqrt(repeats), unchanged[1])
    return Changes(deltas, errors / np.sqrt(repeats), degrees, p_values)


def unpaired_changes(baseline: Floats, candidate: Floats) -> Changes:
    """Changes of two arms that were measured one at a time (Welch, 1947).

    Args:
        baseline, candidate: times in each repeat of an arm, `(repeats, times)`.
    """
    arms = (baseline, candidate)
    deltas = candidate.mean(axis=0) - baseline.mean(axis=0)
    fewest = min(map(len, arms)) - 1
    if fewest < 1:
        return Changes(deltas, np.zeros_like(deltas), np.zeros_like(deltas), np.ones_like(deltas))
    least = [REPEAT_SD * times.mean(axis=0) for times in arms]
    squares = [np.maximum(times.var(axis=0, ddof=1), sd**2) / len(times) for times, sd in zip(arms, least, strict=True)]
    first, second = ((square, len(times) - 1.0) for square, times in zip(squares, arms, strict=True))
    errors, degrees = _error_of_sum(first, second)
    return Changes(deltas, errors, degrees, _p_values(deltas, errors, degrees))


def _error_of_sum(first: tuple[Floats, float], second: tuple[Floats, float]) -> tuple[Floats, Floats]:
    """The error of a sum of two independent terms, and its degrees of freedom (Satterthwaite, 1946).

    Args:
        first, second: the variance of a term, and its degrees of freedom.
    """
    total, fewest = first[0] + second[0], min(first[1], second[1])
    terms = sum(variance**2 / degrees for variance, degrees in (first, second))
    return np.sqrt(total), np.divide(total**2, terms, out=np.full_like(total, fewest), where=terms > 0)


def _p_values(deltas: Floats, errors: Floats, degrees: Floats) -> Floats:
    """Two-sided p-values that changes are 0, `(times,)`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = np.abs(deltas) / errors
    return np.where(deltas != 0, 2 * special.stdtr(degrees, -distances), 1.0)
