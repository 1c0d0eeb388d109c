"""Recall by class: a loss that the mean hides is named, and equal variants name none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from halfstep.stats.classes import FEWEST_OF_CLASS, RecallChange, class_changes
from halfstep.stats.proportions import BinaryChange

CLASSES, EXAMPLES = 10, 2000  # of each
REPETITIONS = 20


def two_trainings(seed: int, loss: float) -> tuple[BinaryChange, NDArray[np.int64]]:
    """Two trainings that err on other examples, as often; class 9 loses a share of its examples beside that."""
    random = np.random.default_rng(seed)
    classes = np.repeat(np.arange(CLASSES), EXAMPLES)
    before = random.random(len(classes)) < 0.95
    after = before.copy()
    gained = random.choice(np.flatnonzero(~before), 300, replace=False)
    lost = random.choice(np.flatnonzero(before), 300, replace=False)
    after[gained], after[lost] = True, False
    right = np.flatnonzero(after & (classes == CLASSES - 1))
    after[random.choice(right, round(loss * EXAMPLES), replace=False)] = False
    return BinaryChange(before[None], after[None]), classes


def lost(changes: tuple[RecallChange, ...]) -> list[int]:
    return [item.number for item in changes if item.is_lost]


def test_loss_that_the_mean_hides_is_named() -> None:
    named = held = 0
    for seed in range(REPETITIONS):
        change, classes = two_trainings(seed, 0.03)
        assert change.outcome(0.01) == "shown"  # 0.3 points of all examples
        changes = class_changes(change, classes)
        named += lost(changes) == [9]
        (ninth,) = [item for item in changes if item.number == 9]
        held += ninth.low < -0.03 < ninth.high
    assert named >= 18
    assert held >= 18


def test_equal_trainings_name_no_class() -> None:
    assert sum(bool(lost(class_changes(*two_trainings(seed, 0.0)))) for seed in range(REPETITIONS)) <= 1


@pytest.mark.parametrize("seeds", [1, 3])
def test_interval_excludes_zero_exactly_where_a_loss_is_shown(seeds: int) -> None:
    for seed in range(REPETITIONS):
        random = np.random.default_rng(seed)
        classes = random.integers(0, 5, 2000)
        before = random.random((seeds, 2000)) < 0.9
        after = before & (random.random((seeds, 2000)) > 0.03 * (classes / 4))  # more and more is lost
        for item in class_changes(BinaryChange(before, after), classes):
            assert item.is_lost == (item.high < 0)
            assert -1 <= item.low <= item.change.delta <= item.high <= 1


def test_small_classes_are_left_out() -> None:
    counts = [FEWEST_OF_CLASS, FEWEST_OF_CLASS - 1]
    classes = np.repeat([0, 1], counts)
    right = np.ones((1, sum(counts)), bool)
    (change,) = class_changes(BinaryChange(right, ~right), classes)
    assert (change.number, change.is_lost) == (0, True)


def test_class_that_changes_in_no_example_is_not_lost() -> None:
    right = np.ones((1, 100), bool)
    (change,) = class_changes(BinaryChange(right, right), np.zeros(100, np.int64))
    assert not change.is_lost
    assert change.low < 0 < change.high
