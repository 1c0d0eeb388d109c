"""Changes of times between two arms, from their times in each repeat, with Student intervals.

Few repeats may agree by chance, so the error is never less than that of repeats that differ by `REPEAT_SD`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from stages.stats.speedup import CONFIDENCE, REPEAT_SD

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


def paired_changes(baseline: Floats, candidate: Floats, with_copy: Floats | None = None) -> Changes:
    """Changes of two arms that took turns in the same repeats.

    Where a second copy of the baseline takes about as long as both, the error is that of all three arms: what is left
    of their times, as shares of each arm's mean, without the effects of arms and repeats (two-way analysis of
    variance). It has more degrees of freedom than that of the differences by repeat, which is used elsewhere.

    Args:
        baseline, candidate: times in each repeat, `(repeats, times)`.
        with_copy: times of both and of the copy, in the repeats that all three have, `(3, repeats, times)`.
    """
    repeats, differences = len(baseline), candidate - baseline
    deltas, degrees = differences.mean(axis=0), np.full(differences.shape[1], repeats - 1.0)
    if repeats < 2:
        return Changes(deltas, np.zeros_like(deltas), degrees)
    least = REPEAT_SD * np.hypot(baseline.mean(axis=0), candidate.mean(axis=0))
    errors = np.maximum(differences.std(axis=0, ddof=1), least)
    pooled_degrees = 0.0 if with_copy is None else 2.0 * (with_copy.shape[1] - 1)
    if with_copy is not None and pooled_degrees > repeats - 1:
        levels = with_copy.mean(axis=1)
        comparable = levels.min(axis=0) > _COMPARABLE * levels.max(axis=0)
        shares = with_copy / np.where(comparable, levels, 1.0)[:, np.newaxis]
        left = shares - shares.mean(axis=1, keepdims=True) - shares.mean(axis=0) + shares.mean(axis=(0, 1))
        spread = np.maximum(np.sqrt((left**2).sum(axis=(0, 1)) / pooled_degrees), REPEAT_SD)
        errors = np.where(comparable, spread * np.hypot(levels[0], levels[1]), errors)
        degrees = np.where(comparable, pooled_degrees, degrees)
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
