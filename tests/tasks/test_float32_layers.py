"""Layers that stay in float32 under a mixed policy: in models of all kinds, in the training step, and after loading."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.errors import PrecisionError, TaskError
from halfstep.params.schema import ModelParams, TrainParams, Variant
from halfstep.profile.worker import Worker
from halfstep.system import files
from halfstep.tasks import building, precision
from halfstep.tasks.float32_layers import keep, verified
from halfstep.tasks.layers import layer_paths
from halfstep.tasks.trial import Trial
from halfstep.train import saving
from tests.mixed_float16 import mixed_float16 as mixed_float16
from tests.tasks.conftest import Own, prepare_task
from tests.tasks.conftest import own as own

TRAIN = TrainParams(batch_size=8, epochs=2)
MIXES_TYPES = """
class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(2, name="encoder"), keras.layers.Dense(4, name="decoder")

    def call(self, x):
        return self.decoder(self.encoder(x))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((data[0] - self(data[0], training=True)) ** 2)
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def build(*, batch_size, seed):
    return changed(model=Autoencoder())
"""
BATCH = (tf.TensorSpec((2, 4)), tf.TensorSpec((2, 1)))
L = keras.layers
pytestmark = pytest.mark.usefixtures("mixed_float16")


class Block(keras.layers.Layer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner, self.act = L.Dense(8, name="inner"), L.Activation("tanh", name="act")

    def call(self, x: Any) -> Any:
        return self.act(self.inner(x))


class Casts(keras.layers.Layer):
    """Computes in float16, whatever its policy."""

    def call(self, x: Any) -> Any:
        return tf.cast(tf.cast(x, tf.float16) * 2.0, self.compute_dtype)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="whole")
        self.block, self.last = Block(name="block"), L.Dense(1, dtype="float32", name="last")

    def call(self, x: Any) -> Any:
        return self.last(self.block(x))


class OwnStep(Subclassed):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def functional() -> keras.Model:
    inputs = keras.Input((4,))
    x = L.ReLU(name="relu")(L.Dense(8, name="first")(inputs))
    x = keras.Sequential([L.Dense(8, name="in_part"), L.Dropout(0.1, name="drop")], name="part")(x)
    shared = L.Dense(8, name="shared")
    x = L.Reshape((2, 4), name="rows")(shared(shared(x)))
    x = L.MultiHeadAttention(2, 2, name="attention")(x, x)
    return keras.Model(inputs, L.Dense(1, dtype="float32", name="last")(L.Flatten(name="flat")(x)))


def normalized() -> keras.Model:
    inputs = keras.Input((4,))
    adapted = L.Normalization(name="adapted")
    adapted.adapt(np.random.default_rng(0).normal(size=(64, 4)) * 3)
    x = L.Normalization(mean=[1.0, 2.0, 3.0, 4.0], variance=[1.0, 2.0, 3.0, 4.0], name="given")(adapted(inputs))
    x = L.GroupNormalization(2, name="groups")(L.Dense(8, name="first")(x))
    x = L.LayerNormalization(name="values")(x)
    x = L.UnitNormalization(name="unit")(L.SpectralNormalization(L.Dense(8, name="inner"), name="spectral")(x))
    return keras.Model(inputs, L.Dense(1, dtype="float32", name="last")(x))


def recurrent() -> keras.Model:
    inputs = keras.Input((4,))
    x = L.Bidirectional(L.LSTM(3, name="lstm"), name="both")(L.Reshape((2, 2), name="rows")(inputs))
    return keras.Model(inputs, L.Dense(1, dtype="float32", name="last")(x))


def nested() -> keras.Model:
    inputs = keras.Input((4,))
    x = Block(name="block")(L.Dense(4, name="first")(inputs))
    return keras.Model(inputs, L.Dense(1, dtype="float32", name="last")(x))


def sequential() -> keras.Model:
    layers = [L.Dense(8, name="first"), Casts(name="casts"), L.Dense(1, dtype="float32", name="last")]
    return keras.Sequential([keras.Input((4,)), *layers], name="line")


def plain_sequential() -> keras.Model:
    layers = [L.Dense(8, name="first"), L.Dense(8, name="second"), L.Dense(1, dtype="float32", name="last")]
    return keras.Sequential([keras.Input((4,)), *layers], name="line")


def subclassed() -> keras.Model:
    model = Subclassed()
    model(np.zeros((2, 4), np.float32))
    return model


def own_step() -> keras.Model:
    model = OwnStep()
    model(np.zeros((2, 4), np.float32))
    return model


def compiled(build: Callable[[], keras.Model]) -> keras.Model:
    model = build()
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize(
    ("build", "pattern", "paths"),
    [
        (functional, "first", ["first"]),
        (functional, "re.u", ["relu"]),  # without variables, so without a path of its own
        (functional, "functional.*/relu", ["relu"]),
        (functional, "part", ["part", "part/in_part", "part/drop"]),
        (functional, "part/drop", ["part/drop"]),
        (functional, "shared", ["shared"]),
        (functional, "attention/query", ["attention/query"]),
        (recurrent, "both", ["both", "both/forward_lstm", "both/backward_lstm"]),
        (normalized, "adapted", ["adapted"]),
        (normalized, "given", ["given"]),
        (normalized, "groups", ["groups"]),
        (normalized, "values", ["values"]),
        (normalized, "unit", ["unit"]),
        (normalized, "spectral", ["spectral", "spectral/inner"]),
        (nested, "block", ["block", "block/inner", "block/act"]),
        (nested, ".*/inner", ["block/inner"]),
        (sequential, "line/first", ["line/first"]),
        (subclassed, "whole/block/.*", ["whole/block/inner", "whole/block/act"]),
        (own_step, "whole/block", ["whole/block", "whole/block/inner", "whole/block/act"]),
    ],
)
def test_layers_and_all_below_them_compute_in_float32(
    build: Callable[[], keras.Model], pattern: str, paths: list[str]
) -> None:
    model = compiled(build)
    float32_layers = verified(model, [pattern], BATCH)
    assert [path for path in float32_layers.paths if not path.endswith("lstm_cell")] == paths
    assert float32_layers.casts > 0
    in_float32 = {path for path, layer in layer_paths(model).items() if layer.compute_dtype == "float32"}
    assert in_float32 == {*float32_layers.paths, *(path for path in layer_paths(model) if path.endswith("last"))}
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert model.dtype_policy.name == "mixed_float16"
    assert float32_layers.outputs == (() if build is own_step else ("float32",))


def test_casts_are_counted_at_the_borders_alone() -> None:
    assert verified(compiled(functional), ["first"], BATCH).casts == 1  # what it gives; its input is float32
    assert verified(compiled(functional), ["part/in_part"], BATCH).casts == 2
    assert verified(compiled(functional), ["relu", "part"], BATCH).casts == 2  # neighbours: none between them


def test_layer_that_casts_by_itself_is_refused_by_name() -> None:
    with pytest.raises(PrecisionError, match=r"compute in 16 bits all the same: line/casts \(.*; their code casts"):
        verified(compiled(sequential), ["line/casts"], BATCH)


def test_pattern_that_names_no_layer_is_refused() -> None:
    with pytest.raises(PrecisionError, match=r"no layer matches 'frist'; did you mean 'first'\?; .*prepare --layers"):
        verified(compiled(functional), ["first", "frist"], BATCH)


def test_output_is_what_the_model_gives_and_not_what_it_was_built_with() -> None:
    inputs = keras.Input((4,))
    x = L.Dense(8, name="hidden")(L.Dense(8, name="first")(inputs))
    model = compiled(lambda: keras.Model(inputs, L.Dense(1, name="top")(x)))
    variant = Variant(policy="mixed_float16", onednn=precision.onednn_is_on())
    with pytest.raises(PrecisionError, match="the output is float16"):
        precision.verify(model, variant)
    float32_layers = verified(model, ["top"], BATCH)
    precision.verify(model, variant, kept=float32_layers.paths, outputs=float32_layers.outputs)
    float32_layers = verified(model, ["top", "first"], BATCH)
    precision.verify(model, variant, kept=float32_layers.paths, outputs=float32_layers.outputs)
    with pytest.raises(PrecisionError, match=r"layers do not compute in float16: first \(float32\)"):
        precision.verify(model, variant, kept=["top"], outputs=float32_layers.outputs)


PLAIN_KERAS = """
import json, pathlib, sys
import keras, numpy as np

def computes(layer):  # Keras does not save the policy of a functional model itself
    return not isinstance(layer, (keras.Model, keras.layers.InputLayer))

folder, found = pathlib.Path(sys.argv[1]), {}
for path in folder.glob("*.keras"):
    model = keras.models.load_model(path)
    np.save(path.with_suffix(".npy"), model.predict(np.load(folder / "x.npy"), verbose=0))
    found[path.stem] = [layer.compute_dtype for layer in model._flatten_layers() if computes(layer)]
assert not any(name.startswith(("halfstep", "stages")) for name in sys.modules)
print(json.dumps(found))
"""


def computes(layer: keras.layers.Layer) -> bool:
    return not isinstance(layer, keras.Model | keras.layers.InputLayer)


@pytest.mark.slow
def test_saved_models_load_in_plain_keras_with_the_same_types_and_predictions(tmp_path: Path) -> None:
    cases = [
        (functional, "first"),
        (functional, "part/.*"),
        (functional, "relu|part"),
        (functional, "attention"),
        (recurrent, "both"),
        (normalized, "adapted|given|groups|values|unit"),
        (plain_sequential, "line/second"),
    ]
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    expected, dtypes = {}, {}
    for number, (build, pattern) in enumerate(cases):
        model = compiled(build)
        keep(model, [pattern])
        assert saving.lost_on_loading(model) == []
        model.save(tmp_path / f"{number}.keras")
        expected[str(number)] = model.predict(x, verbose=0)
        dtypes[str(number)] = [layer.compute_dtype for layer in model._flatten_layers() if computes(layer)]
        assert {"float16", "float32"} <= set(dtypes[str(number)])
    done = subprocess.run(
        [sys.executable, "-I", "-c", PLAIN_KERAS, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == dtypes
    for name, predictions in expected.items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), predictions)


def test_what_plain_keras_would_lose_is_named() -> None:
    model = compiled(functional)
    keep(model, ["attention/query"])
    assert saving.lost_on_loading(model) == ["attention/query"]


DEEPER = """
class Own(keras.Model):  # its layers are there only after its first step
    def build(self, shape):
        self.first, self.hidden = keras.layers.Dense(8, name="first"), keras.layers.Dense(8, name="hidden")
        self.last = keras.layers.Dense(1, dtype="float32")

    def call(self, x):
        return self.last(self.hidden(self.first(x)))

    def train_step(self, data):
        return super().train_step(data)


def build(*, batch_size, seed):
    return changed(model=Own(name="deep"), compile={"optimizer": "adam", "loss": "mse"})
"""


def test_training_step_and_results_have_these_layers_in_float32(own: Own) -> None:
    task = own(DEEPER)
    prepare_task(task, TRAIN, files.PREPARED)
    variant = Variant(policy="mixed_bfloat16", float32_layers=("deep/hidden",))
    trial = Trial(task, ModelParams(), TRAIN, variant, 0)
    worker = Worker(trial)
    worker.warm_up(1)
    products = {name: dtype for name, dtype in worker._graph_dtypes.items() if name.endswith("/MatMul")}
    forward = {name.split("/")[-2].removesuffix("_1"): dtype for name, dtype in products.items() if "tape" not in name}
    assert (forward["first"], forward["hidden"]) == ("bfloat16", "float32")
    in_force = worker.settings().in_force
    assert (in_force.float32_layers, in_force.float32_casts) == (("deep/hidden",), 2)
    assert building.ready(trial).float32.paths == ("deep/hidden",)  # a second model in this process


def test_own_task_says_which_pattern_names_no_layer(own: Own) -> None:
    task = own(DEEPER)
    prepare_task(task, TRAIN, files.PREPARED)
    variant = Variant(policy="mixed_bfloat16", float32_layers=("deep/hiden",))
    with pytest.raises(PrecisionError, match="no layer matches 'deep/hiden'; did you mean 'deep/hidden'"):
        building.ready(Trial(task, ModelParams(), TRAIN, variant, 0))


def test_own_training_step_that_mixes_types_is_one_line(own: Own) -> None:
    """Float32 pixels minus a 16-bit reconstruction; the layer beside it is kept in float32."""
    task = own(MIXES_TYPES)
    prepare_task(task, TRAIN, files.PREPARED)
    variant = Variant(policy="mixed_bfloat16", float32_layers=("autoencoder/encoder",))
    with pytest.raises(TaskError, match=r"cannot be trained under mixed_bfloat16: .*'Sub'.*bfloat16.*\(.*, line \d+\)"):
        building.ready(Trial(task, ModelParams(), TRAIN, variant, 0))
