"""A training step of a script's own is taken with the data of its loop, the models that it uses and optimizers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.tasks.step_call import Elements, StepModel, as_fit, elements_kept

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Trainer:
    """Has what its step uses as attributes, as a class in a script does."""

    def __init__(self) -> None:
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.1)
        self.seen: list[Any] = []

    def step(self, x: Any, y: Any, factor: float = 1.0) -> Any:
        self.seen.append(x)
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_mean((self.model(x) - y) ** 2)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss


def _taken(
    step: Any, *arguments: Any, elements: Elements | None = None, **options: Any
) -> tuple[StepModel, tf.data.Dataset]:
    fit_arguments = as_fit(step, arguments, options, elements or {})
    return fit_arguments["self"], fit_arguments["x"]


def test_step_is_trained_by_fit_on_the_data_of_its_loop() -> None:
    trainer = Trainer()
    data = tf.data.Dataset.from_tensor_slices((Y, X)).batch(8)  # in another order than the arguments
    other = iter(tf.data.Dataset.from_tensors((Y[8:16], X[8:16])).repeat())  # of the same shapes
    with elements_kept() as elements:
        next(other)
        for y, x in data:
            next(other)
            model, dataset = _taken(tf.function(trainer.step), x, y, factor=0.5, elements=elements)
            break
    assert not model.without_input
    assert [len(batch["input_00"]) for batch in dataset.take(4)] == [8, 8, 8, 8]
    first = next(iter(dataset))
    np.testing.assert_array_equal(first["input_00"], X[:8])
    np.testing.assert_array_equal(first["input_01"], Y[:8])
    assert model.parts == [trainer.model]
    assert model.optimizer_0 is trainer.optimizer
    model.fit(dataset, epochs=2, steps_per_epoch=3, verbose=0)
    assert int(trainer.optimizer.iterations) == 7


def test_step_gives_what_a_plain_loop_gives() -> None:
    trainer, plain = Trainer(), Trainer()
    plain.model.set_weights(trainer.model.get_weights())
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    taken = None
    with elements_kept() as elements:
        for x, y in data:
            taken = taken or _taken(tf.function(trainer.step), x, y, elements=elements)
    assert taken is not None
    taken[0].fit(taken[1], steps_per_epoch=3, verbose=0)
    for x, y in [next(iter(data)), *data]:  # the first one was run when it was taken
        plain.step(x, y)
    for a, b in zip(trainer.model.get_weights(), plain.model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_arrays_of_an_iterator_are_found_by_their_values_and_batches_are_of_one_size() -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)
    with elements_kept() as elements:
        x, y = next(data.as_numpy_iterator())
        model, dataset = _taken(tf.function(Trainer().step), x, y, elements=elements)
    assert not model.without_input
    assert [len(batch["input_00"]) for batch in dataset.take(3)] == [10, 10, 10]
    assert dataset.element_spec["input_01"].shape == (10, 1)


def test_an_array_that_no_iterator_gave_is_one_batch() -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    with elements_kept() as elements:
        for x, y in data.take(1):
            model, _ = _taken(tf.function(Trainer().step), x * 2, y, elements=elements)
    assert model.without_input


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_epoch_has_the_steps_of_the_loop_where_they_are_known(drop_remainder: bool) -> None:
    data = tf.data.Dataset.from_tensor_slices(X).batch(7, drop_remainder=drop_remainder)
    with elements_kept() as elements:
        finite, endless = (as_fit(lambda x: x, (next(iter(item)),), {}, elements) for item in (data, data.repeat()))
    assert finite["steps_per_epoch"] == 4 - drop_remainder
    assert endless["steps_per_epoch"] == 100


def test_plain_function_stays_eager() -> None:
    trainer = Trainer()
    model, dataset = _taken(trainer.step, X[:8], Y[:8])
    assert model.run_eagerly
    model.fit(dataset, steps_per_epoch=3, verbose=0)
    assert len(trainer.seen) == 4


@pytest.mark.parametrize("scales", [False, True])
def test_what_a_function_uses_is_found_in_globals_closures_and_helpers(scales: bool) -> None:
    model, optimizer = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), keras.optimizers.Adam()
    if scales:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    unused = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def loss_of(x: Any) -> Any:
        return tf.reduce_mean(model(x))

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(x)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    step_model, _ = _taken(tf.function(step), X[:8])
    assert step_model.parts == [model]
    assert unused not in step_model.parts
    assert step_model.scales_loss is scales
    assert step_model.count_params() == model.count_params()
