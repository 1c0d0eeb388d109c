"""Holm's adjustment by hand, by definition, and by how often a family has a false rejection."""

from __future__ import annotations

import numpy as np
import pytest

from halfstep.stats.multiple import holm


def test_hand_worked_example() -> None:
    """0.01 x 4 = 0.04; 0.02 x 3 = 0.06; 0.022 x 2 = 0.044, not below 0.06; 0.09 x 1 = 0.09."""
    adjusted = holm({"d": 0.022, "a": 0.01, "c": 0.09, "b": 0.02})
    assert adjusted == pytest.approx({"d": 0.06, "a": 0.04, "c": 0.09, "b": 0.06})
    assert list(adjusted) == ["d", "a", "c", "b"]


def test_single_test_is_not_adjusted_and_none_is_none() -> None:
    assert holm({"a": 0.03}) == {"a": 0.03}
    assert holm({}) == {}


def test_values_end_at_one_and_equal_ones_stay_equal() -> None:
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({"a": 0.01, "b": 0.01, "c": 0.5}) == pytest.approx({"a": 0.03, "b": 0.03, "c": 0.5})


def test_rejections_are_those_of_the_step_down_procedure() -> None:
    """Holm's own wording: reject in order while the k-th smallest of m values is at most alpha / (m - k + 1)."""
    generator = np.random.default_rng(0)
    for _ in range(500):
        values = dict(enumerate(generator.random(6) ** 4))
        rejected: set[int] = set()
        for rank, key in enumerate(sorted(values, key=lambda key: values[key])):
            if values[key] > 0.05 / (6 - rank):
                break
            rejected.add(key)
        assert {key for key, value in holm(values).items() if value <= 0.05} == rejected
