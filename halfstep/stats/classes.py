"""The change of recall by class: what a mean over all classes hides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from halfstep.stats.multiple import holm
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.speedup import CONFIDENCE

FEWEST_OF_CLASS = 30  # test examples
_ONE_SIDED = (1 - CONFIDENCE) / 2


@dataclass(frozen=True)
class RecallChange:
    """The change of the share of a class's test examples that are classified correctly.

    Attributes:
        number: of the class.
        change: its own, without regard to the others.
        low, high: an interval at the level at which Holm's method tests this class.
        is_lost: whether a loss is shown, which all classes share 2.5 % for.
    """

    number: int
    change: BinaryChange
    low: float
    high: float
    is_lost: bool


def class_changes(change: BinaryChange, classes: NDArray[np.int64]) -> tuple[RecallChange, ...]:
    """Of each class with at least `FEWEST_OF_CLASS` test examples, the clearest loss first.

    That a class loses recall is tested one-sided at 2.5 % for all classes together, by Holm's method. The interval of
    a class is at the level at which it is tested, or at which the method stops, so that it excludes 0 on the side of a
    loss exactly where one is shown.

    Args:
        change: of all test examples.
        classes: of each test example, `(examples,)`.
    """
    numbers, counts = np.unique(classes, return_counts=True)
    both = (change.baseline_correct, change.candidate_correct)
    changes_by_class = {
        int(number): BinaryChange(*(correct[:, classes == number] for correct in both))
        for number in numbers[counts >= FEWEST_OF_CLASS]
    }
    p_values = {number: _p_of_no_loss(item) for number, item in changes_by_class.items()}
    adjusted = holm(p_values)
    ranked = sorted(changes_by_class, key=p_values.__getitem__)
    lost = sum(value <= _ONE_SIDED for value in adjusted.values())
    changes = []
    for rank, number in enumerate(ranked):
        z = -float(special.ndtri(_ONE_SIDED / (len(changes_by_class) - min(rank, lost))))
        low, high = changes_by_class[number].interval_at(z)
        changes.append(RecallChange(number, changes_by_class[number], low, high, is_lost=rank < lost))
    return tuple(changes)


def _p_of_no_loss(change: BinaryChange) -> float:
    """One-sided p-value of the hypothesis that the candidate loses nothing."""
    if not change.lost:
        return 1.0
    return BinaryChange(change.candidate_correct, change.baseline_correct).p_loss(0.0)
