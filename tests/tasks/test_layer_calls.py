"""An exception knows the layer that raised it, and a layer can be in float32 before it is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf

from halfstep.errors import TaskError
from halfstep.tasks import user_code
from halfstep.tasks.layer_calls import failed_layer, watch
from tests.mixed_float16 import mixed_float16 as mixed_float16

L = keras.layers
pytestmark = pytest.mark.usefixtures("mixed_float16")


class Refuses(keras.layers.Layer):
    """Takes float32 alone."""

    def call(self, x: Any) -> Any:
        return x + tf.ones((), tf.float32)


class Block(keras.layers.Layer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = Refuses(name="inner")

    def call(self, x: Any) -> Any:
        return self.inner(x)


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    watch(())
    yield
    watch(())


def _model(*layers: keras.layers.Layer) -> keras.Model:
    x = inputs = keras.Input((4,))
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


def test_innermost_layer_is_named_also_by_the_error_that_is_raised_from_it() -> None:
    with pytest.raises(TaskError) as raised, user_code.explained("it", "cannot be built", TaskError):
        _model(L.Dense(2), Block(name="block"))
    assert failed_layer(raised.value) == "block/inner"
    assert "Exception encountered when calling Refuses.call(). Input 'y' of 'AddV2' Op has type" in str(raised.value)
    assert failed_layer(TaskError("of no layer")) is None


@pytest.mark.parametrize("pattern", ["block/inner", "block", ".*/inner"])
def test_model_that_cannot_be_built_in_16_bits_is_built_with_a_layer_in_float32(pattern: str) -> None:
    watch([pattern])
    model = _model(L.Dense(2), Block(name="block"))
    assert model.get_layer("block").inner.compute_dtype == "float32"
    assert model.layers[1].compute_dtype == "float16"


def test_other_layers_are_left_alone() -> None:
    watch(["bloc"])
    with pytest.raises(tf.errors.InvalidArgumentError):
        Block(name="block")(tf.zeros((1, 4), tf.float16))


def test_metric_that_refuses_16_bits_names_the_layer_of_the_output() -> None:
    def difference(y: Any, predicted: Any) -> Any:
        return tf.reduce_mean(predicted - tf.cast(y, tf.float32))

    model = _model(L.Dense(2, name="first"), L.Dense(1, name="last"))
    model.compile(loss="mse", metrics=[difference])
    with pytest.raises(TypeError) as raised:
        model.train_on_batch(tf.zeros((2, 4)), tf.zeros((2, 1)))
    assert failed_layer(raised.value) == "last"


class Resizes(keras.layers.Layer):
    """The gradient of this kernel takes float32 alone."""

    def call(self, x: Any) -> Any:
        return tf.image.resize(x, (2, 2), method="lanczos3")


def test_gradient_that_fails_names_the_layer() -> None:
    inputs = keras.Input((4, 4, 1))
    model = keras.Model(inputs, L.Dense(1)(Resizes(name="resizes")(L.Conv2D(1, 1)(inputs))))
    model.compile(loss="mse")
    with pytest.raises(TypeError) as raised:
        model.train_on_batch(tf.zeros((1, 4, 4, 1)), tf.zeros((1, 2, 2, 1)))
    assert failed_layer(raised.value) == "resizes"


def test_operation_of_a_graph_names_its_layer() -> None:
    """TensorFlow adds numbers to the names of scopes."""
    model = _model(L.Dense(2, name="first"))
    assert model.layers[1].path == "first"
    message = "No kernel for {{node gradient_tape/functional_3/first_2/MatrixTriangularSolve}}"
    assert failed_layer(tf.errors.InvalidArgumentError(None, None, message)) == "first"
    assert failed_layer(tf.errors.InvalidArgumentError(None, None, "No kernel for {{node other/Mul}}")) is None
