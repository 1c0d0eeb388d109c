"""The bootstrap of a metric: its value on resamples of the test examples, the same resamples for all variants.

`train` and `profile` call the metric; `compare` only subtracts the arrays of two variants.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import HalfstepError, printable

CHECKED_RESAMPLES = 20
REPLICATES = 2000  # the ends of a 95 % interval lie among 50 replicates each
MOST_GROUPS = 200  # values of the jackknife: with more examples, each leaves out a group of them
SEED = 0  # one for all variants and trainings: only the same resamples can be subtracted


@dataclass(frozen=True)
class MetricScores:
    """What `metric_scores` returns, by its parts.

    Attributes:
        array: float64 `(1 + REPLICATES + groups,)`, or `(seeds, ...)` of the same: value, replicates, jackknife values.
    """

    array: NDArray[np.float64]

    @property
    def value(self) -> NDArray[np.float64]:
        """The metric on the test set, `()` or `(seeds,)`."""
        return np.asarray(self.array[..., 0])

    @property
    def replicates(self) -> NDArray[np.float64]:
        """The metric on each resample, `(..., REPLICATES)`."""
        return self.array[..., 1 : 1 + REPLICATES]

    @property
    def jackknife(self) -> NDArray[np.float64]:
        """The metric without each example, or without each group of them, `(..., groups)`."""
        return self.array[..., 1 + REPLICATES :]


def jackknife_groups(examples: int) -> int:
    """Number of jackknife values: one an example, up to 200."""
    return min(examples, MOST_GROUPS)


def array_length(examples: int) -> int:
    """Length of the array of a metric on so many test examples."""
    return 1 + REPLICATES + jackknife_groups(examples)


def metric_scores(
    metric: Callable[[Any, Any], float], y_true: Any, y_pred: Any, seed: int = SEED
) -> NDArray[np.float64]:
    """A metric on the test set, on its resamples, and without each example: the layout of `MetricScores`.

    The resamples are drawn with replacement, and n and `seed` fix which examples they have: two variants are paired.
    The jackknife leaves out one example at a time; with more than 200, one of 200 random groups of equal size (to one).

    Args:
        metric: `(y_true, y_pred) -> float`, higher is better. It must be finite on every resample: an example may occur
            several times in it, and a rare class not at all.
        y_true, y_pred: arrays, or nested dicts, lists and tuples of arrays, with the same first dimension n.
        seed: of the resamples. Leave it alone unless all variants get the same.

    Raises:
        HalfstepError: the arrays differ in length, or the metric raises or is not one finite number.
    """
    examples = _length((y_true, y_pred))
    value = _on_test_set(metric, y_true, y_pred)
    values = [
        _evaluated(metric, _taken(y_true, chosen), _taken(y_pred, chosen), what)
        for chosen, what in _selections(examples, seed)
    ]
    return np.array([value, *values])


def check_metric(metric: Callable[[Any, Any], float], y_true: Any, y_pred: Any) -> None:
    """Calls a metric on the test set, twice, and on a few resamples; arguments and errors as of `metric_scores`."""
    first, again = _on_test_set(metric, y_true, y_pred), _on_test_set(metric, y_true, y_pred)
    if not math.isclose(first, again, rel_tol=1e-6, abs_tol=1e-9):
        raise HalfstepError(f"the task's metric is {first}, then {again} for the same data; it must not draw at random")
    for chosen, what in itertools.islice(_selections(_length((y_true, y_pred)), SEED), CHECKED_RESAMPLES):
        _evaluated(metric, _taken(y_true, chosen), _taken(y_pred, chosen), what)


def _selections(examples: int, seed: int) -> Iterator[tuple[NDArray[np.int64], str]]:
    """The examples of each resample, then those of each jackknife value."""
    generator = np.random.default_rng([seed, examples])
    for _ in range(REPLICATES):
        yield generator.integers(0, examples, examples), "a resample of the test set"
    order = generator.permutation(examples) if examples > MOST_GROUPS else np.arange(examples)
    for group in np.array_split(order, jackknife_groups(examples)):
        yield np.delete(np.arange(examples), group), "a part of the test set"


def _on_test_set(metric: Callable[[Any, Any], float], y_true: Any, y_pred: Any) -> float:
    """The metric on copies, which it may write into."""
    whole = np.arange(_length((y_true, y_pred)))
    return _evaluated(metric, _taken(y_true, whole), _taken(y_pred, whole), "the test set")


def _evaluated(metric: Callable[[Any, Any], float], y_true: Any, y_pred: Any, what: str) -> float:
    """The metric as one finite number."""
    try:
        value = float(metric(y_true, y_pred))
    except Exception as error:  # whatever the user's function raises
        message = printable(f"{type(error).__name__}: {error}", 300)
        raise HalfstepError(f"the task's metric fails on {what} ({message}); {_ALLOWED}") from error
    if not math.isfinite(value):
        raise HalfstepError(f"the task's metric is {value} on {what}; {_ALLOWED}")
    return value


_ALLOWED = (
    "it must return one finite number for the test set and for every resample of it, in which an example may occur "
    "several times and a rare class not at all: leave out what is undefined there, or give the task a score"
)


def _taken(tree: Any, chosen: NDArray[np.int64]) -> Any:
    """The chosen examples of each array, in the same nesting."""
    if isinstance(tree, Mapping):
        return {key: _taken(inner, chosen) for key, inner in tree.items()}
    if isinstance(tree, list | tuple):
        items = [_taken(inner, chosen) for inner in tree]
        return items if isinstance(tree, list) else tuple(items)
    return tree[chosen]


def _length(tree: Any) -> int:
    """The common first dimension of all arrays."""
    lengths = set(_lengths(tree))
    if len(lengths) != 1 or lengths == {0}:
        shown = ", ".join(map(str, sorted(lengths))) or "none"
        raise HalfstepError(
            f"the task's metric needs arrays with the test examples as first dimension; their lengths are {shown}"
        )
    return lengths.pop()


def _lengths(tree: Any) -> Iterator[int]:
    if isinstance(tree, Mapping | list | tuple):
        for inner in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _lengths(inner)
    else:
        yield len(tree)
