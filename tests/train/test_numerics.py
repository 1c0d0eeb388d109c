"""The layer in which numbers leave the range of float16, in planted models."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.machine import free_memory
from halfstep.params.schema import ModelParams, TrainParams, Variant
from halfstep.results.training import LARGEST_FLOAT16, TrainingMetrics
from halfstep.system import files
from halfstep.tasks.float32_layers import keep
from halfstep.tasks.layers import layer_paths
from halfstep.tasks.trial import Trial
from halfstep.train.numerics import overflow_of, scan, underflow_of
from halfstep.train.resume import capture_state, state_variables
from halfstep.train.training import train
from tests.mixed_float16 import mixed_float16 as mixed_float16
from tests.tasks.conftest import Own, prepare_task
from tests.tasks.conftest import own as own

L = keras.layers
pytestmark = pytest.mark.usefixtures("mixed_float16")
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
BATCH = (tf.constant(X), tf.constant(Y))


class Inside(keras.layers.Layer):
    """Its square does not fit float16, what it returns does."""

    def call(self, x: Any) -> Any:
        return tf.sqrt(tf.square(x * 1000.0) + 1.0) / 1000.0


class Scaled(keras.layers.Layer):
    def __init__(self, factor: float, **options: Any) -> None:
        super().__init__(**options)
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * self.factor


class Steep(keras.layers.Layer):
    """Gives what it gets; its gradient is larger, or smaller, by a factor."""

    def __init__(self, factor: float, **options: Any) -> None:
        super().__init__(**options)
        self.factor = factor

    def call(self, x: Any) -> Any:
        factor = tf.cast(self.factor, tf.float32)

        def identity(value: Any) -> Any:
            return tf.identity(value), lambda up: tf.cast(tf.cast(up, tf.float32) * factor, up.dtype)

        return tf.custom_gradient(identity)(x)


def model(*layers: keras.layers.Layer, step: type[keras.Model] = keras.Model) -> keras.Model:
    x = inputs = keras.Input((4,))
    x = L.Dense(8, name="first")(x)
    for layer in layers:
        x = layer(x)
    x = L.Dense(8, activation="tanh", name="later")(x)
    network = step(inputs, L.Dense(1, dtype="float32", name="last")(x))
    network.compile(keras.optimizers.Adam(1e-3), "mse")
    network.optimizer.build(network.trainable_variables)
    return network


def with_scale(network: keras.Model, scale: float) -> keras.Model:
    network.optimizer.dynamic_scale.assign(scale)
    return network


def test_value_inside_a_layer_whose_output_fits() -> None:
    network = with_scale(model(Inside(name="inside")), 1.0)
    place = overflow_of(network, BATCH, step=3)
    assert place is not None
    assert (place.layer, place.direction, place.step, place.loss_scale) == ("inside", "forward", 3, 1.0)
    assert place.magnitude is not None
    assert place.magnitude < 10  # in float32, of its output
    assert place.readers == ()
    keep(network, ["inside"])
    assert overflow_of(network, BATCH) is None


def test_value_at_the_output_names_the_layers_that_read_it() -> None:
    network = with_scale(model(Scaled(1e6, name="large"), Scaled(1e-6, name="small")), 1.0)
    place = overflow_of(network, BATCH)
    assert place is not None
    assert (place.layer, place.direction, place.readers) == ("large", "forward", ("small",))
    assert place.magnitude is not None
    assert place.magnitude > LARGEST_FLOAT16
    keep(network, ["large"])
    again = overflow_of(network, BATCH)  # the next layer casts it to float16
    assert again is not None
    assert again.layer == "small"
    keep(network, [place.layer, *place.readers])
    assert overflow_of(network, BATCH) is None


class Subclassed(keras.Model):
    """Casts all that it is given before its first layer gets it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.last = Scaled(1e-6, name="scale"), L.Dense(1, dtype="float32")

    def call(self, x: Any) -> Any:
        return self.last(self.scale(x))


def test_inputs_that_float16_cannot_hold_are_named_before_the_first_layer() -> None:
    network, batch = Subclassed(), (tf.constant(X * 1e6), tf.constant(Y))
    network.compile("sgd", "mse")
    network.train_on_batch(*BATCH)
    place = overflow_of(with_scale(network, 1.0), batch, step=2)
    assert place is not None
    assert (place.layer, place.direction, place.step, place.readers) == ("subclassed/scale", "inputs", 2, ())
    assert place.magnitude == pytest.approx(float(np.abs(X).max() * 1e6))
    assert overflow_of(network, BATCH) is None
    functional = with_scale(model(Scaled(1e-6, name="scale")), 1.0)  # its layers can be kept in float32
    place = overflow_of(functional, batch)
    assert place is not None
    assert place.direction == "forward"


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("step", [keras.Model, OwnStep])
def test_gradient_that_overflows(step: type[keras.Model]) -> None:
    network = with_scale(model(Steep(1e7, name="steep"), step=step), 64.0)
    place = overflow_of(network, BATCH)
    assert place is not None
    assert (place.layer, place.direction) == ("steep", "backward")
    assert place.magnitude is not None
    assert place.magnitude > LARGEST_FLOAT16


def test_weights_that_overflow_at_the_update() -> None:
    network = model()
    network.compile(keras.optimizers.SGD(3e38), "mse")
    network.optimizer.build(network.trainable_variables)
    place = overflow_of(with_scale(network, 1.0), (BATCH[0], 100.0 * BATCH[1]))
    assert place is not None
    assert (place.layer, place.direction) == ("first", "weight update")


def test_model_is_left_as_it_was() -> None:
    network = with_scale(model(L.Dropout(0.5, name="drop"), L.BatchNormalization(name="norm")), 1024.0)
    before, policies = capture_state(state_variables(network)), [x.dtype_policy.name for x in network.layers]
    first = scan(network, BATCH)
    overflow_of(network, BATCH)
    underflow_of(network, BATCH)
    after = capture_state(state_variables(network))
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert [x.dtype_policy.name for x in network.layers] == policies
    assert not tf.config.functions_run_eagerly()
    assert all("call" not in vars(layer) for layer in layer_paths(network).values())
    assert first.layers["drop"].outputs == scan(network, BATCH).layers["drop"].outputs  # the same numbers are drawn


def recurrent() -> keras.Model:
    inputs = keras.Input((4,))
    x = L.Bidirectional(L.LSTM(3), name="both")(L.Reshape((2, 2), name="rows")(inputs))
    x = L.MultiHeadAttention(1, 2, name="attention")(L.Reshape((2, 3), name="again")(x), L.Reshape((2, 3))(x))
    network = keras.Model(inputs, L.Dense(1, dtype="float32", name="last")(L.Flatten()(x)))
    network.compile("adam", "mse")
    return network


def test_layers_inside_of_layers_are_scanned() -> None:
    network = recurrent()
    network.optimizer.build(network.trainable_variables)
    seen = scan(with_scale(network, 1024.0), BATCH)
    assert {"both", "attention", "attention/query", "last"} <= set(seen.layers)
    assert all(np.isfinite(item).all() for items in seen.gradients.values() for item in items)
    assert overflow_of(network, BATCH) is None


PLANTED = """
class Scaled(keras.layers.Layer):
    def __init__(self, up, back, **options):
        super().__init__(**options)
        self.up, self.back = up, back

    def call(self, x):
        def identity(value):
            return value * self.up, lambda up: tf.cast(tf.cast(up, tf.float32) * self.back, up.dtype)
        return tf.custom_gradient(identity)(x)


def build(*, batch_size, seed, up=1.0, back=1.0):
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, name="first")(inputs)
    x = keras.layers.Dense(8, activation="tanh", name="later")(Scaled(up, back, name="planted")(x))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid", dtype="float32", name="last")(x))
    return changed(model=model, compile={"optimizer": "adam", "loss": "binary_crossentropy"})
"""


def trained(own: Own, **arguments: float) -> TrainingMetrics:
    task = own(PLANTED, arguments=arguments)
    settings = TrainParams(batch_size=8, epochs=6)
    prepare_task(task, settings, files.PREPARED)
    return train(Trial(task, ModelParams(), settings, Variant(policy="mixed_float16"), 0)).metrics()


def test_training_that_fails_names_layer_direction_magnitude_and_step(own: Own) -> None:
    metrics = trained(own, up=1e6)
    assert metrics.failed
    assert metrics.overflow is not None
    assert (metrics.overflow.layer, metrics.overflow.direction, metrics.overflow.step) == ("planted", "forward", 1)
    assert metrics.overflow.readers == ("later",)
    assert metrics.overflow.magnitude is not None
    assert metrics.overflow.magnitude > LARGEST_FLOAT16


def test_loss_scale_that_collapses_names_the_layer_whose_gradient_overflows(own: Own) -> None:
    metrics = trained(own, back=1e12)
    assert metrics.loss_scale is not None
    assert metrics.loss_scale < 1
    assert metrics.overflow is not None
    assert (metrics.overflow.layer, metrics.overflow.direction) == ("planted", "backward")


def test_training_whose_gradients_vanish_names_the_layer(own: Own) -> None:
    metrics = trained(own, back=1e-14)
    assert not metrics.failed
    assert set(metrics.underflow or ()) == {"planted", "first"}


def test_training_in_which_nothing_is_planted_names_nothing(own: Own) -> None:
    metrics = trained(own)
    assert (metrics.status, metrics.overflow, metrics.underflow) == ("finished", None, None)


def test_without_the_memory_for_it_the_training_ends_as_usual(
    own: Own, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(free_memory, "free_bytes", lambda: 2**20)
    metrics = trained(own, up=1e6)
    assert (metrics.failed, metrics.overflow) == (True, None)
    assert "the layers are not looked at for overflow and underflow, which takes" in capsys.readouterr().err
