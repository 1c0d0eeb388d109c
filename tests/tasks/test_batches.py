"""The data of a task as batches: from arrays, tf.data and PyDataset."""

from __future__ import annotations

from itertools import chain
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.errors import TaskError
from halfstep.tasks.batches import TrainingData, ordered_data, training_data

X = np.arange(10, dtype=np.float64)[:, None]
Y = np.arange(10)


class Numbers(keras.utils.PyDataset):
    """Batches of three of ten numbers, the last with one; each epoch begins one later."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.epoch = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return X[3 * index : 3 * index + 3] + 100 * self.epoch, Y[3 * index : 3 * index + 3]

    def on_epoch_end(self) -> None:
        self.epoch += 1


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(10, seed=1).batch(3)


def values(data: tf.data.Dataset) -> list[list[int]]:
    return [np.asarray(x)[:, 0].astype(int).tolist() for x, *_ in data]


def ready(kind: str) -> TrainingData:
    data = {"arrays": lambda: (X, Y), "dataset": dataset, "py_dataset": lambda: Numbers(workers=3)}[kind]()
    return training_data(data, batch_size=3, seed=0)


@pytest.mark.parametrize(("kind", "steps"), [("arrays", 3), ("dataset", 4), ("py_dataset", 4)])
def test_batches_from_a_step_are_those_of_the_whole_training(kind: str, steps: int) -> None:
    data = ready(kind)
    assert data.steps_per_epoch == steps
    whole = values(data.from_step(0, 3 * steps))
    assert len(whole) == 3 * steps
    for first in (1, steps, 2 * steps + 1):
        assert values(ready(kind).from_step(first, 3 * steps - first)) == whole[first:]


@pytest.mark.parametrize("kind", ["arrays", "dataset", "py_dataset"])
def test_batches_of_a_size_repeat_or_cut_the_first(kind: str) -> None:
    first = values(ready(kind).from_step(0, 1))[0]
    for examples, expected in ((2, first[:2]), (7, [*first, *first, first[0]])):
        assert values(ready(kind).of_size(examples).take(2)) == [expected, expected]


def test_every_epoch_of_arrays_has_each_example_at_most_once() -> None:
    epoch = list(chain(*values(ready("arrays").from_step(0, 3))))
    assert len(epoch) == len(set(epoch)) == 9  # the incomplete batch is dropped


def test_epoch_end_of_a_py_dataset_is_called() -> None:
    assert [batch[0] for batch in values(ready("py_dataset").from_step(0, 8))] == [0, 3, 6, 9, 100, 103, 106, 109]


def test_floats_have_the_type_that_fit_gives_them() -> None:
    ((x, y),) = ready("arrays").from_step(0, 1)
    assert (x.dtype, y.dtype) == (tf.float32, tf.int64)


def test_nested_arrays_stay_nested() -> None:
    data = training_data(({"a": X, "b": {"c": X + 1}}, (Y, Y)), 3, 0)
    ((x, (first, second)),) = data.from_step(0, 1)
    np.testing.assert_array_equal(x["b"]["c"], x["a"] + 1)
    np.testing.assert_array_equal(first, second)
    assert x["a"].shape == (3, 1)


@pytest.mark.parametrize("data", [(X, Y), dataset(), Numbers()], ids=["arrays", "dataset", "py_dataset"])
def test_test_data_are_read_once_in_their_order(data: Any) -> None:
    batches = ordered_data(data, batch_size=4, name="test")
    once = list(chain(*values(batches)))
    assert sorted(value % 100 for value in once) == list(range(10))
    if not isinstance(data, tf.data.Dataset):
        assert once == list(range(10))


def test_length_that_a_dataset_does_not_know_is_counted() -> None:
    unknown = dataset().filter(lambda x, y: True)
    assert training_data(unknown, 3, 0).steps_per_epoch == 4
    assert training_data(unknown, 3, 0, counted_steps=7).steps_per_epoch == 7


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (dataset().repeat(), r"Task\.train is endless; end an epoch with \.take\(steps\)"),
        (dataset().take(0), r"Task\.train is empty"),
        ((X[:0], Y[:0]), r"Task\.train is empty"),
        ((X, Y[:5]), r"all must have the same number"),
        ([X, Y], r"Task\.train is list; it must be a tf\.data\.Dataset"),
        (iter([]), r"Task\.train is list_iterator; it must be"),
        ((X[:2], Y[:2]), r"train\.batch_size is 3; allowed are at most 2"),
        ((3.0, Y), r"all must have the same number"),
    ],
)
def test_training_data_that_cannot_be_used(data: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        training_data(data, batch_size=3, seed=0)


def test_endless_test_data_are_refused() -> None:
    with pytest.raises(TaskError, match=r"Task\.test is endless"):
        ordered_data(dataset().repeat(), 3, "test")
