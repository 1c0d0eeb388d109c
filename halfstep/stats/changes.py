"""Changes of times between two arms, as factors: tests and intervals on logarithms, because noise is proportional.

Few repeats may agree by chance, so the error is never less than that of repeats that differ by `REPEAT_SD`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from halfstep.stats.speedup import CONFIDENCE, REPEAT_SD

_FEWEST = 2  # repeats
# The turns of repeats tell as much of how repeats vary as so many degrees of freedom do, unless an F test at this level
# says that repeats vary by more. Those of copies did not.
_PRIOR_DEGREES, _VARIES = 4.0, 0.05
# Of the slopes of logarithms of shares on that of the inflation, before they are measured: between −0.4 and 0.8 for the
# kinds of operations of the default network.
_SLOPE_SD = 0.5
_APART = 0.1  # variances of two arms whose two-sided F test gives less are not pooled

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


def paired_changes(
    baseline: Floats,
    candidate: Floats,
    copy: Floats | None = None,
    inflations: Sequence[Floats] | None = None,
) -> Changes:
    """Changes of two arms that took turns in the same repeats.

    The error is the residual of a two-way analysis of variance, by arm and repeat, of the logarithms of both arms and
    of a second copy of the baseline, if there is one. What all arms share in a repeat, such as a slow machine, cancels.
    So does what they share in a turn, in the same analysis of the turns of each repeat, whose residual moderates the
    other one. Where the candidate seems to vary more than the baseline and
    its copy, their spreads are not pooled (Welch, 1947).

    A traced step is longer, by more in one turn than in another, and so are some operations more than others. So
    changes of shares are brought to a common inflation, by the slope of the logarithm of each share on that of the
    inflation, one slope for the turns of all arms. It is shrunk to 0 as far as it is uncertain (a normal prior of
    deviation `_SLOPE_SD`), and its error is part of that of the change.

    Args:
        baseline, candidate: times, `(repeats, turns, times)`; NaN for turns that a repeat does not have.
        copy: those of the copy, NaN in repeats that it has no part in.
        inflations: of these arms, where the times are shares of traced steps: the traced step / the one without the
            profiler, each `(repeats, turns)`.
    """
    arms = np.stack([baseline, candidate, *([] if copy is None else [copy])])
    logs, turns = _by_repeat(arms)
    levels, plain = np.exp((logs[0] + logs[1]).mean(axis=0) / 2), (logs[1] - logs[0]).mean(axis=0)
    if arms.shape[1] < _FEWEST:
        return _of_one_repeat(levels, plain)
    has = np.asarray(~np.isnan(logs).any(axis=2))
    arm, repeat = np.nonzero(has)
    effects = np.column_stack([arm == 1, arm == 2, *(repeat == place for place in range(arms.shape[1]))]).astype(float)
    counts = _counts(arms)[0]
    turns_free, of_slope = float((has.sum(axis=0) - 1) @ (counts - 1)), np.zeros_like(levels)
    own = turns - _mean(turns, 0)
    if inflations is not None:
        inflation = np.log(np.stack(inflations))
        of_repeats = _mean(inflation, 2)
        of_turns = inflation - of_repeats[:, :, None]
        of_turns = (of_turns - _mean(of_turns, 0))[..., None]
        slopes, slope_errors = _slopes(of_turns, own, turns_free - 1)
        weights = _SLOPE_SD**2 / (_SLOPE_SD**2 + slope_errors**2)
        slopes *= weights
        logs, own, turns_free = logs - slopes * of_repeats[:, :, None], own - slopes * of_turns, turns_free - 1
        of_slope = _regression(effects, of_repeats[has][:, None])[0] * _SLOPE_SD * np.sqrt(1 - weights)
    change, squares, repeats_free, unit = _regression(effects, logs[has])
    variance, degrees = _moderated((squares, repeats_free), (_of_turns(own, turns_free, counts), turns_free))
    errors = np.sqrt(np.maximum(variance, REPEAT_SD**2)) * unit
    if copy is not None and has[2].sum() >= _FEWEST:
        is_apart, apart, free = _apart(logs, own, counts)
        errors, degrees = np.where(is_apart, np.maximum(apart, errors), errors), np.where(is_apart, free, degrees)
    errors = np.hypot(errors, of_slope)
    return Changes(levels, change, plain, errors, degrees, _p_values(change, errors, degrees))


def unpaired_changes(baseline: Floats, candidate: Floats) -> Changes:
    """Changes of two arms that were measured one at a time (Welch, 1947).

    Args:
        baseline, candidate: times, `(repeats, turns, times)` of an arm; NaN for turns that a repeat does not have.
    """
    arms = [(*_by_repeat(times), _counts(times)) for times in (baseline, candidate)]
    means = [logs.mean(axis=0) for logs, _, _ in arms]
    change, levels = means[1] - means[0], np.exp((means[0] + means[1]) / 2)
    if min(len(baseline), len(candidate)) < _FEWEST:
        return _of_one_repeat(levels, change)
    errors, degrees = _error_of_sum(*(_of_mean(*_spread(*arm), len(arm[0])) for arm in arms))
    return Changes(levels, change, change, errors, degrees, _p_values(change, errors, degrees))


def _of_one_repeat(levels: Floats, logs: Floats) -> Changes:
    none = np.zeros_like(levels)
    return Changes(levels, logs, logs, none, none, np.ones_like(levels))


def _by_repeat(times: Floats) -> tuple[Floats, Floats]:
    """Logarithms of the means of the repeats, `(…, repeats, times)`, and the turns' relative deviations from these."""
    means = _mean(times, -2)
    return np.log(means), times / means[..., None, :] - 1


def _counts(times: Floats) -> NDArray[np.int_]:
    """The number of turns, `(…, repeats)`."""
    counts: NDArray[np.int_] = (~np.isnan(times).any(axis=-1)).sum(axis=-1)
    return counts


def _mean(values: Floats, axis: int) -> Floats:
    """The mean without NaN; NaN where there is nothing else."""
    counts = (~np.isnan(values)).sum(axis=axis)
    return np.where(counts > 0, np.nansum(values, axis=axis) / np.maximum(counts, 1), np.nan)


def _slopes(inflation: Floats, times: Floats, degrees: float) -> tuple[Floats, Floats]:
    """Slopes of times on the inflation of their turns, and their errors, each `(times,)`; infinite if not known."""
    axes = tuple(range(times.ndim - 1))
    squares = np.nansum(inflation**2)
    if degrees < 1 or squares == 0:
        return np.zeros(times.shape[-1]), np.full(times.shape[-1], np.inf)
    slopes = np.nansum(inflation * times, axis=axes) / squares
    return slopes, np.sqrt(np.nansum((times - slopes * inflation) ** 2, axis=axes) / degrees / squares)


def _of_turns(deviations: Floats, degrees: float, counts: NDArray[np.int_]) -> Floats:
    """The variance that turns lend to the mean of a repeat, `(times,)`."""
    squares: Floats = np.nansum(deviations**2, axis=tuple(range(deviations.ndim - 1)))
    return squares / max(degrees, 1.0) * (1 / np.maximum(counts, 1)).mean()


def _moderated(of_repeats: tuple[Floats, float], of_turns: tuple[Floats, float]) -> tuple[Floats, Floats]:
    """The variance of a repeat, with its degrees of freedom, moderated by that of its turns (Smyth, 2004).

    The latter counts as `_PRIOR_DEGREES`, and is the least that it may be. It does not count where an F test says, at
    `_VARIES`, that the repeats vary by more.

    Args:
        of_repeats, of_turns: the variance of a repeat, by both, and its degrees of freedom.
    """
    (own, free), (prior, turns_free) = of_repeats, of_turns
    if turns_free < 1:
        return own, np.full_like(own, free)
    prior_free = min(_PRIOR_DEGREES, turns_free)
    with np.errstate(divide="ignore", invalid="ignore"):
        varies = special.fdtrc(free, turns_free, own / prior) < _VARIES
    moderated = np.maximum((free * own + prior_free * prior) / (free + prior_free), prior)
    return np.where(varies, own, moderated), np.where(varies, free, free + prior_free)


def _spread(logs: Floats, turns: Floats, counts: NDArray[np.int_]) -> tuple[Floats, Floats]:
    """The variance of the repeats of one arm, or of the difference of two, and its degrees of freedom.

    Args:
        logs, turns: `(repeats, times)`, and the deviations of the turns from these, `(repeats, turns, times)`.
        counts: turns of each repeat.
    """
    free = float((counts - 1).sum())
    return _moderated((logs.var(axis=0, ddof=1), len(logs) - 1.0), (_of_turns(turns, free, counts), free))


def _apart(logs: Floats, turns: Floats, counts: NDArray[np.int_]) -> tuple[NDArray[np.bool_], Floats, Floats]:
    """Where the candidate's spread seems to be larger than the baseline's, and the errors there, with degrees."""
    has_copy = ~np.isnan(logs[2]).any(axis=1)
    copies, copies_free = _spread((logs[2] - logs[0])[has_copy], (turns[2] - turns[0])[has_copy], counts[has_copy])
    both, free = _spread(logs[1] - logs[0], turns[1] - turns[0], counts)
    of_one = np.maximum(copies / 2, REPEAT_SD**2)
    of_other = np.maximum(both - of_one, REPEAT_SD**2)
    tails = special.fdtrc(free, copies_free, of_other / of_one)
    repeats = logs.shape[1]
    errors, degrees = _error_of_sum(_of_mean(of_one, copies_free, repeats), _of_mean(of_other, free, repeats))
    return tails < _APART / 2, errors, degrees


def _of_mean(variance: Floats, degrees: Floats, repeats: int) -> tuple[Floats, Floats]:
    """The variance of a mean of repeats, which vary by `REPEAT_SD` at least, and its degrees of freedom."""
    return np.maximum(variance, REPEAT_SD**2) / repeats, degrees


def _error_of_sum(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The error of a sum of two independent terms, and its degrees of freedom (Satterthwaite, 1946).

    Args:
        first, second: the variance of a term, above 0, and its degrees of freedom.
    """
    total = first[0] + second[0]
    return np.sqrt(total), total**2 / sum(variance**2 / degrees for variance, degrees in (first, second))


def _regression(columns: Floats, values: Floats) -> tuple[Floats, Floats, float, float]:
    """The coefficient of the first column, the mean square of the residuals and its degrees of freedom.

    The last value is the standard error of the coefficient where the mean square is 1.

    Args:
        columns, values: `(observations, columns)` and `(observations, times)`.
    """
    inverse = np.linalg.pinv(columns.T @ columns)
    coefficients = inverse @ columns.T @ values
    degrees = len(values) - float(np.linalg.matrix_rank(columns))
    squares = ((values - columns @ coefficients) ** 2).sum(axis=0)
    return coefficients[0], squares / max(degrees, 1.0), degrees, float(np.sqrt(inverse[0, 0]))


def _p_values(logs: Floats, errors: Floats, degrees: Floats) -> Floats:
    """Two-sided p-values that changes are 0, `(times,)`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((logs != 0) & (degrees > 0), 2 * special.stdtr(degrees, -np.abs(logs) / errors), 1.0)
