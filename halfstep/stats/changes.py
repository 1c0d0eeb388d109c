"""Changes of times between two arms, from their times in each repeat, with Student intervals.

Few repeats may agree by chance, so the error is never less than that of repeats that differ by `REPEAT_SD`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from halfstep.stats.speedup import CONFIDENCE, REPEAT_SD

_COMPARABLE = 0.5  # of the largest time: arms whose times are at least as long vary alike, in proportion

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Changes:
    """Changes, candidate − baseline: their means, standard errors and degrees of freedom, each `(times,)`."""

    deltas: Floats
    standard_errors: Floats
    degrees: Floats

    def half_widths(self, confidence: float = CONFIDENCE) -> Floats:
        """Half the widths of their intervals, `(times,)`; infinite where a single repeat was measured."""
        quantiles = stats.t.ppf((1 + confidence) / 2, np.maximum(self.degrees, 1e-9))
        return np.where(self.degrees > 0, quantiles * self.standard_errors, np.inf)

    @property
    def p_values(self) -> Floats:
        """Two-sided p-values that they are 0, `(times,)`; 1 where a single repeat was measured."""
        with np.errstate(divide="ignore", invalid="ignore"):
            distances = np.abs(self.deltas) / self.standard_errors
        p_values = 2 * stats.t.sf(distances, np.maximum(self.degrees, 1e-9))
        return np.where((self.degrees > 0) & (self.deltas != 0), p_values, 1.0)


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

    Args:
        baseline, candidate: times in each repeat, `(repeats, times)`.
        copy: those of the copy, NaN in repeats that it has no part in.
        levels: what the times are shares of, `(arms, times)`; by default the means of the arms, the copy's last.
        least_sd: smallest standard deviation of a repeat, as a share.
    """
    repeats, differences = len(baseline), candidate - baseline
    deltas, degrees = differences.mean(axis=0), np.full(differences.shape[1], repeats - 1.0)
    if repeats < 2:
        return Changes(deltas, np.zeros_like(deltas), degrees)
    has_copy = np.zeros(repeats, dtype=bool) if copy is None else ~np.isnan(copy).any(axis=1)
    arms = [baseline, candidate, *([copy[has_copy]] if copy is not None and has_copy.sum() > 1 else [])]
    levels = np.stack([times.mean(axis=0) for times in arms]) if levels is None else levels[: len(arms)]
    errors = np.maximum(differences.std(axis=0, ddof=1), least_sd * np.hypot(levels[0], levels[1]))
    if len(arms) > 2:
        is_comparable = levels.min(axis=0) > _COMPARABLE * levels.max(axis=0)
        before, after, of_copy = (times / np.where(is_comparable, levels[n], 1.0) for n, times in enumerate(arms))
        contrasts = of_copy - (before[has_copy] + after[has_copy]) / 2
        pooled_degrees = repeats + len(of_copy) - 2.0
        # the variance of a difference is twice, and that of a contrast 3 / 2 of that of an arm
        squares = (repeats - 1) * (after - before).var(axis=0, ddof=1) / 2
        squares += (len(of_copy) - 1) * contrasts.var(axis=0, ddof=1) / 1.5
        spread = np.maximum(np.sqrt(squares / pooled_degrees), least_sd)
        errors = np.where(is_comparable, spread * np.hypot(levels[0], levels[1]), errors)
        degrees = np.where(is_comparable, pooled_degrees, degrees)
    return Changes(deltas, errors / np.sqrt(repeats), degrees)


def unpaired_changes(baseline: Floats, candidate: Floats) -> Changes:
    """Changes of two arms that were measured one at a time (Welch, 1947).

    Args:
        baseline, candidate: times in each repeat of an arm, `(repeats, times)`.
    """
    arms = (baseline, candidate)
    deltas = candidate.mean(axis=0) - baseline.mean(axis=0)
    fewest = min(map(len, arms)) - 1
    if fewest < 1:
        return Changes(deltas, np.zeros_like(deltas), np.zeros_like(deltas))
    least = [REPEAT_SD * times.mean(axis=0) for times in arms]
    squares = [np.maximum(times.var(axis=0, ddof=1), sd**2) / len(times) for times, sd in zip(arms, least, strict=True)]
    total = squares[0] + squares[1]
    terms = sum(square**2 / (len(times) - 1) for square, times in zip(squares, arms, strict=True))
    degrees = np.divide(total**2, terms, out=np.full_like(total, float(fewest)), where=terms > 0)
    return Changes(deltas, np.sqrt(total), degrees)
