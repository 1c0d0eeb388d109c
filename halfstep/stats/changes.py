"""Changes of times between two arms, as factors: tests and intervals on logarithms, because noise is proportional.

Few repeats may agree by chance, so the error is never less than that of repeats that differ by `REPEAT_SD`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from halfstep.stats.speedup import CONFIDENCE, REPEAT_SD

_FEWEST = 2  # repeats
# Of the slopes of logarithms of shares on that of the inflation, before they are measured: between −0.4 and 0.8 for the
# kinds of operations of the default network.
_SLOPE_SD = 0.5
_APART = 0.1  # variances of two arms whose F test gives less are not pooled

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Changes:
    """Changes from baseline to candidate, each `(times,)`.

    Attributes:
        levels: geometric means of both arms' times, in their unit.
        logs: logarithms of candidate / baseline, at a common inflation if they are of traced steps.
        plain_logs: the same, as measured.
        standard_errors, degrees: of `logs`, with their degrees of freedom.
        p_values: two-sided p-values that `logs` are 0; 1 where a single repeat was measured.
    """

    levels: Floats
    logs: Floats
    plain_logs: Floats
    standard_errors: Floats
    degrees: Floats
    p_values: Floats

    @property
    def deltas(self) -> Floats:
        """The changes, in the unit of the times."""
        return self._of(self.logs)

    @property
    def plain_deltas(self) -> Floats:
        """The changes as measured, in the unit of the times."""
        return self._of(self.plain_logs)

    def intervals(self, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
        """Ends of the intervals of `deltas`, each `(times,)`; infinite where a single repeat was measured."""
        halves = self._half_widths(confidence)
        return self._of(self.logs - halves), self._of(self.logs + halves)

    def least(self, confidence: float) -> Floats:
        """The smallest changes whose intervals do not include 0, in the unit of the times, `(times,)`."""
        return self._of(self._half_widths(confidence))

    def _half_widths(self, confidence: float) -> Floats:
        quantiles = special.stdtrit(np.maximum(self.degrees, 1e-9), (1 + confidence) / 2)
        return np.where(self.degrees > 0, quantiles * np.maximum(self.standard_errors, 1e-12), np.inf)

    def _of(self, logs: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return 2 * self.levels * np.sinh(logs / 2)


class Traced(NamedTuple):
    """Of an arm whose times are shares of traced steps.

    Attributes:
        step: times of the steps without the profiler, `(repeats,)`: the times are shares of them.
        inflation: the traced steps / these, `(repeats,)`.
    """

    step: Floats
    inflation: Floats


def paired_changes(
    baseline: Floats, candidate: Floats, copy: Floats | None = None, traced: Sequence[Traced] | None = None
) -> Changes:
    """Changes of two arms that took turns in the same repeats.

    The error is the residual of a two-way analysis of variance, by arm and repeat, of the logarithms of both arms and
    of a second copy of the baseline, if there is one. What all arms share in a repeat, such as a slow machine, cancels.
    Where the spread of the candidate seems to be another one than that of the baseline and its copy, they are not
    pooled (Welch, 1947).

    A traced step is longer, by more in one window than in another, and so are some operations more than others. So
    changes of shares are brought to a common inflation, by the slope of the logarithm of each share on that of the
    inflation, one slope for all arms. It is shrunk to 0 as far as it is uncertain (a normal prior of deviation
    `_SLOPE_SD`), and its error is part of that of the change.

    Args:
        baseline, candidate: times above 0 in each repeat, `(repeats, times)`.
        copy: those of the copy, NaN in repeats that it has no part in.
        traced: of these arms.
    """
    repeats, levels = len(baseline), np.exp((np.log(baseline) + np.log(candidate)).mean(axis=0) / 2)
    plain, none = (np.log(candidate) - np.log(baseline)).mean(axis=0), np.zeros_like(levels)
    if repeats < _FEWEST:
        return Changes(levels, plain, plain, none, none, np.ones_like(levels))
    arms = [baseline, candidate, *([] if copy is None else [copy])]
    measured = [~np.isnan(times).any(axis=1) for times in arms]
    arm = np.concatenate([np.full(has.sum(), place) for place, has in enumerate(measured)])
    repeat = np.concatenate([np.flatnonzero(has) for has in measured])
    effects = np.column_stack([arm == 1, arm == 2, *(repeat == place for place in range(repeats))]).astype(float)
    values = np.log(np.concatenate([times[has] for times, has in zip(arms, measured, strict=True)]))
    spent, of_slope = 0, none
    if traced is not None:
        step, inflation = (
            np.log(np.concatenate([part[has] for part, has in zip(parts, measured, strict=True)]))
            for parts in zip(*traced, strict=True)
        )
        slopes, slope_errors, room = _regression(np.column_stack([inflation, effects]), values - step[:, None])
        spent = int(room[0] > 0)
        weights = _SLOPE_SD**2 / (_SLOPE_SD**2 + np.where(room > 0, slope_errors, np.inf) ** 2)
        gap = _regression(effects, inflation[:, None])[0]
        values, of_slope = values - weights * slopes * inflation[:, None], gap * _SLOPE_SD * np.sqrt(1 - weights)
    logs, errors, degrees = _regression(effects, values, spent=spent, least=REPEAT_SD)
    if copy is not None and measured[2].sum() >= _FEWEST:
        is_apart, own, own_degrees = _apart(baseline, candidate, copy, measured[2])
        errors, degrees = np.where(is_apart, np.maximum(own, errors), errors), np.where(is_apart, own_degrees, degrees)
    errors = np.hypot(errors, of_slope)
    return Changes(levels, logs, plain, errors, degrees, _p_values(logs, errors, degrees))


def _apart(
    baseline: Floats, candidate: Floats, copy: Floats, has_copy: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Floats, Floats]:
    """Where the candidate's spread seems to be another one than the baseline's, and the errors there, with degrees."""
    repeats, degrees = len(baseline), (has_copy.sum() - 1.0, len(baseline) - 1.0)
    of_one = np.maximum(np.log(copy[has_copy] / baseline[has_copy]).var(axis=0, ddof=1) / 2, REPEAT_SD**2)
    of_other = np.maximum(np.log(candidate / baseline).var(axis=0, ddof=1) - of_one, REPEAT_SD**2)
    tails = special.fdtrc(degrees[1], degrees[0], of_other / of_one)
    errors, both = _error_of_sum((of_one / repeats, degrees[0]), (of_other / repeats, degrees[1]))
    return np.minimum(tails, 1 - tails) < _APART / 2, errors, both


def _error_of_sum(first: tuple[Floats, float], second: tuple[Floats, float]) -> tuple[Floats, Floats]:
    """The error of a sum of two independent terms, and its degrees of freedom (Satterthwaite, 1946).

    Args:
        first, second: the variance of a term, above 0, and its degrees of freedom.
    """
    total = first[0] + second[0]
    return np.sqrt(total), total**2 / sum(variance**2 / degrees for variance, degrees in (first, second))


def _regression(
    columns: Floats, values: Floats, *, spent: int = 0, least: float = 0.0
) -> tuple[Floats, Floats, Floats]:
    """The coefficient of the first column, its standard error and degrees of freedom, each `(times,)`.

    Args:
        columns, values: `(observations, columns)` and `(observations, times)`.
        spent: degrees of freedom that the values have cost.
        least: the smallest standard deviation of a value.
    """
    inverse = np.linalg.pinv(columns.T @ columns)
    coefficients = inverse @ columns.T @ values
    degrees = len(values) - float(np.linalg.matrix_rank(columns)) - spent
    squares = ((values - columns @ coefficients) ** 2).sum(axis=0)
    spread = np.maximum(np.sqrt(squares / max(degrees, 1.0)), least)
    return coefficients[0], spread * np.sqrt(inverse[0, 0]), np.full(values.shape[1], degrees)


def unpaired_changes(baseline: Floats, candidate: Floats) -> Changes:
    """Changes of two arms that were measured one at a time (Welch, 1947).

    Args:
        baseline, candidate: times above 0 in each repeat of an arm, `(repeats, times)`.
    """
    arms = (np.log(baseline), np.log(candidate))
    means, counts = [values.mean(axis=0) for values in arms], [float(len(values)) for values in arms]
    logs, levels = means[1] - means[0], np.exp((means[0] + means[1]) / 2)
    if min(counts) < _FEWEST:
        return Changes(levels, logs, logs, np.zeros_like(logs), np.zeros_like(logs), np.ones_like(logs))
    first, second = (
        (np.maximum(values.var(axis=0, ddof=1), REPEAT_SD**2) / n, n - 1)
        for values, n in zip(arms, counts, strict=True)
    )
    errors, degrees = _error_of_sum(first, second)
    return Changes(levels, logs, logs, errors, degrees, _p_values(logs, errors, degrees))


def _p_values(logs: Floats, errors: Floats, degrees: Floats) -> Floats:
    """Two-sided p-values that changes are 0, `(times,)`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((logs != 0) & (degrees > 0), 2 * special.stdtr(degrees, -np.abs(logs) / errors), 1.0)
