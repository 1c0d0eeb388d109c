"""Which targets are classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from halfstep.tasks.target_classes import classes_of

ONE_HOT = np.eye(3, dtype=np.float32)[[2, 0, 1]]


@pytest.mark.parametrize(
    ("batches", "classes"),
    [
        ([np.array([0, 2]), np.array([1])], [0, 2, 1]),
        ([np.array([[0.0], [1.0]], np.float32)], [0, 1]),
        ([np.array([True, False])], [1, 0]),
        ([ONE_HOT], [2, 0, 1]),
    ],
)
def test_classes(batches: list[Any], classes: list[int]) -> None:
    labels = classes_of(batches)
    assert labels is not None
    assert labels.dtype == np.int64
    assert labels.tolist() == classes


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [np.array([0.5, 1.0])],
        [np.array([-1, 1])],
        [np.array([1, 1])],
        [np.array([np.nan, 1.0])],
        [np.arange(5000)],
        [np.array([[1, 1, 0], [0, 1, 0]])],
        [np.zeros((2, 4, 4), np.int64)],
        [np.zeros((2, 3), np.int64), np.zeros((2, 4), np.int64)],
        [{"a": np.array([0, 1]), "b": np.array([0, 1])}],
        [np.array([b"cat", b"dog"])],
    ],
    ids=str,
)
def test_others(batches: list[Any]) -> None:
    assert classes_of(batches) is None
