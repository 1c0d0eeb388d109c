from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from halfstep.errors import PrecisionError
from halfstep.params.schema import Variant
from halfstep.tasks.traced_types import TracedTypes, lost_inputs, traced_types, verify

BATCH = np.random.default_rng(0).normal(size=(8, 6, 4)).astype(np.float32), np.zeros(8, np.int32)
SIXTEEN = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


def specs(batch: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), batch)


def types_of(model: keras.Model, batch: Any = BATCH) -> TracedTypes:
    model.compile("adam", "sparse_categorical_crossentropy")
    types = traced_types(model, specs(batch))
    assert types is not None
    return types


def checked(model: keras.Model, policy: str) -> None:
    verify(model, Variant(policy=policy), types_of(model))


def network() -> keras.Model:
    middle = [layers.Conv1D(4, 3, name="conv"), layers.LSTM(4, name="lstm"), layers.Dense(4, name="hidden")]
    last = layers.Dense(2, activation="softmax", dtype="float32", name="last")
    return keras.Sequential(
        [keras.Input(BATCH[0].shape[1:]), layers.Normalization(mean=0.0, variance=1.0), *middle, last]
    )


@pytest.fixture(params=["float32", *SIXTEEN])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A policy, and a model that was saved under it."""
    keras.config.set_dtype_policy(request.param)
    network().save(tmp_path / "saved.keras")
    return request.param, tmp_path / "saved.keras"


@pytest.mark.parametrize("policy", ["float32", *SIXTEEN])
def test_loaded_model_keeps_its_types_and_the_cure_carries_its_weights_over(
    saved: tuple[str, Path], policy: str
) -> None:
    saved_under, path = saved
    keras.config.set_dtype_policy(policy)
    model = keras.models.load_model(path)
    if policy == saved_under:
        checked(model, policy)
        return
    with pytest.raises(PrecisionError, match=rf"^policy {policy} is not in force: ") as refused:
        checked(model, policy)
    message = str(refused.value)
    assert ("nothing is computed in" in message) == (saved_under == "float32" or policy != "float32")
    assert "conv" in message
    weights = [np.asarray(weight) for weight in model.weights]
    for layer in list(model._flatten_layers(include_self=False))[:-1]:
        layer.dtype_policy = keras.config.dtype_policy()
    checked(model, policy)
    for before, after in zip(weights, model.weights, strict=True):
        np.testing.assert_array_equal(before, after)


class Casting(layers.Layer):
    """Multiplies in 16 bits, whatever its own type is."""

    def build(self, shape: Any) -> None:
        self.matrix = self.add_weight(shape=(shape[-1], 2), name="matrix")

    def call(self, x: Any) -> Any:
        return keras.ops.cast(
            keras.ops.matmul(keras.ops.cast(x, "float16"), keras.ops.cast(self.matrix, "float16")), "float32"
        )


@pytest.mark.parametrize(
    ("inner", "named"),
    [
        (lambda: layers.Dense(2, dtype="bfloat16", name="own"), "bfloat16: own"),
        (lambda: layers.LSTM(2, return_sequences=True, dtype="mixed_float16", name="own"), "float16: own"),
        (lambda: Casting(name="own"), "float16: own"),
        (
            lambda: keras.Sequential([layers.Dense(2, dtype="mixed_float16", name="inner")], name="own"),
            "float16: own/inner",
        ),
        (lambda: layers.MultiHeadAttention(2, 2, dtype="mixed_float16", name="own"), "float16: own"),
    ],
)
def test_baseline_that_multiplies_in_16_bits_is_refused_by_the_names_of_its_layers(
    inner: Callable[[], layers.Layer], named: str
) -> None:
    x = keras.Input(BATCH[0].shape[1:])
    layer = inner()
    y = layer(x, x) if isinstance(layer, layers.MultiHeadAttention) else layer(x)
    model = keras.Model(x, layers.Dense(2, dtype="float32")(layers.Flatten(dtype="float32")(y)))
    with pytest.raises(PrecisionError, match=re.escape(f"layers compute in {named}")):
        checked(model, "float32")


def test_some_layers_may_stay_in_float32() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    kept = layers.Dense(4, dtype="float32")
    checked(
        keras.Sequential([keras.Input((6, 4)), kept, layers.Flatten(), layers.Dense(4), layers.Dense(2)]),
        "mixed_bfloat16",
    )


@pytest.mark.parametrize("policy", SIXTEEN)
def test_embedding_that_only_casts_is_in_force(policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    parts = [layers.Embedding(9, 4), layers.GlobalAveragePooling1D(), layers.Dense(2, dtype="float32")]
    model = keras.Sequential([keras.Input((6,), dtype="int32"), *parts])
    verify(model, Variant(policy=policy), types_of(model, (np.zeros((8, 6), np.int32), BATCH[1])))


class Ids(keras.Model):
    """Casts all that it is given, and looks ids up."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = layers.Embedding(5000, 4), layers.Dense(2, dtype="float32")

    def call(self, x: Any) -> Any:
        x = x["ids"] if isinstance(x, dict) else x
        return self.last(self.table(x[:, 0]))


def lines(model: keras.Model, x: Any) -> list[str]:
    batch = x, np.zeros(len(keras.tree.flatten(x)[0]), np.int32)
    model(x)
    return list(lost_inputs(types_of(model, batch), [batch], model))


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


@pytest.mark.parametrize(("policy", "largest"), [("mixed_float16", 2048), ("mixed_bfloat16", 256)])
def test_ids_as_floats_are_named_where_16_bits_round_them(policy: str, largest: int) -> None:
    keras.config.set_dtype_policy(policy)
    (line,) = lines(Ids(), column(3, 2909))
    assert line.startswith(
        f"the input has whole numbers up to 2,910 and is cast to {SIXTEEN[policy]}, which rounds those"
    )
    assert f" above {largest:,}: if they are ids, give them as integers" in line
    (line,) = lines(Ids(), {"ids": np.hstack([column(3, 2909), column(0.5, 0.25)])})
    assert line.startswith("the input ids, column 0 has whole numbers")
    assert lines(Ids(), column(3, largest)) == []
    assert lines(Ids(), column(3, 2909).astype(np.int32)) == []
    functional = keras.Sequential([keras.Input((1,)), layers.Embedding(5000, 4), layers.Flatten(), layers.Dense(2)])
    assert bool(lines(functional, column(3, 2909))) == (functional.inputs[0].dtype != "float32")


def test_what_float16_cannot_hold_is_named_and_bfloat16_holds_it() -> None:
    for policy, count in (("mixed_float16", 2), ("mixed_bfloat16", 0), ("float32", 0)):
        keras.config.set_dtype_policy(policy)
        model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
        messages = lines(model, np.array([[0.5, 2e5 + 0.5, -7e4 + 0.5]], np.float32))
        assert len(messages) == count
        assert all(
            "and is cast to float16, which ends at 65,504: scale it before the model" in line for line in messages
        )
    keras.config.set_dtype_policy("mixed_float16")
    kept = keras.Sequential(
        [keras.Input((3,), dtype="float32"), layers.Normalization(dtype="float32"), layers.Dense(2)]
    )
    assert lines(kept, np.full((2, 3), 2e5 + 0.5, np.float32)) == []


def test_many_columns_are_counted_and_pictures_are_no_ids() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    wide = keras.Sequential([keras.Input((40,)), layers.Dense(2)])
    messages = lines(wide, np.full((2, 40), 301, np.float32))
    assert len(messages) == 6
    assert messages[-1] == "so do 35 more inputs or columns"
    pictures = keras.Sequential([keras.Input((4, 4, 3)), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(2)])
    assert lines(pictures, np.full((2, 4, 4, 3), 255, np.float32)) == []


def test_model_that_cannot_be_traced_has_no_types() -> None:
    class Eager(keras.Model):
        def call(self, x: Any) -> Any:
            return x * float(np.asarray(x).mean())

    model = Eager()
    model.compile("adam", "mse", run_eagerly=True)
    assert traced_types(model, specs(BATCH)) is None
