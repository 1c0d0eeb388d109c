"""The layers of a model with their types, sizes and work."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.profile.audit import audit
from halfstep.results.audit import LayerAudit, ModelAudit
from halfstep.tasks.float32_layers import keep
from tests.mixed_float16 import mixed_float16 as mixed_float16

L = keras.layers
pytestmark = pytest.mark.usefixtures("mixed_float16")


def audited(shape: tuple[int, ...], *layers: keras.layers.Layer) -> ModelAudit:
    x = inputs = keras.Input(shape)
    for layer in layers:
        x = layer(x)
    return audit(keras.Model(inputs, x), np.zeros((5, *shape), np.float32))


@pytest.mark.parametrize(
    ("shape", "layer", "multiply_adds"),
    [
        ((10,), lambda: L.Dense(7), 10 * 7),
        ((6, 10), lambda: L.Dense(7), 6 * 10 * 7),
        ((8, 8, 3), lambda: L.Conv2D(4, 3, padding="same"), 8 * 8 * 4 * 3 * 9),
        ((8, 8, 6), lambda: L.Conv2D(4, 3, padding="same", strides=2, groups=2), 4 * 4 * 4 * 3 * 9),
        ((8, 8, 6), lambda: L.DepthwiseConv2D(3, padding="same", depth_multiplier=2), 8 * 8 * 6 * 2 * 9),
        ((8, 8, 6), lambda: L.SeparableConv2D(4, 3, padding="same"), 8 * 8 * 6 * 9 + 8 * 8 * 6 * 4),
        ((8, 8, 6), lambda: L.Conv2DTranspose(4, 3, strides=2, padding="same"), 8 * 8 * 6 * 4 * 9),
        ((8, 8, 8, 2), lambda: L.Conv3D(4, 3, padding="same"), 8**3 * 4 * 2 * 27),
        ((16, 6), lambda: L.Conv1D(4, 3, padding="same"), 16 * 4 * 6 * 3),
        ((20, 16), lambda: L.LSTM(8), 20 * 4 * (16 * 8 + 8 * 8)),
        ((20, 16), lambda: L.GRU(8), 20 * 3 * (16 * 8 + 8 * 8)),
        ((20, 16), lambda: L.SimpleRNN(8), 20 * (16 * 8 + 8 * 8)),
        ((20, 16), lambda: L.Bidirectional(L.LSTM(8)), 2 * 20 * 4 * (16 * 8 + 8 * 8)),
        ((4,), lambda: L.ReLU(), 0),
    ],
)
def test_work_is_two_per_multiply_add(shape: tuple[int, ...], layer: Any, multiply_adds: int) -> None:
    assert audited(shape, layer()).totals.flops == 2 * multiply_adds


def test_attention_counts_its_products_and_its_projections() -> None:
    x = inputs = keras.Input((20, 16))
    model_audit = audit(keras.Model(inputs, L.MultiHeadAttention(2, 8, name="attention")(x, x)), np.zeros((1, 20, 16)))
    by_path = {layer.path: layer.flops for layer in model_audit.layers}
    assert by_path["attention"] == 2 * 2 * (2 * 20 * 20 * 8)  # queries × keys, scores × values
    assert by_path["attention/query"] == 2 * 20 * 16 * 16


def test_shared_layer_works_twice_and_has_its_weights_once() -> None:
    shared = L.Dense(4)
    model_audit = audited((4,), shared, shared)
    assert (model_audit.totals.flops, model_audit.totals.parameters) == (2 * 2 * 16, 20)


def test_published_network_has_its_published_size() -> None:
    """He et al., "Deep Residual Learning for Image Recognition", 2016, table 1: 3.8 × 10⁹ multiply-adds."""
    model = keras.applications.ResNet50(weights=None)
    model_audit = audit(model, np.zeros((1, 224, 224, 3), np.float32))
    assert model_audit.totals.parameters == model.count_params() == 25_636_712
    assert model_audit.totals.flops is not None
    assert 3.8e9 < model_audit.totals.flops / 2 < 4.1e9


def test_bytes_are_weights_inputs_and_outputs_in_the_types_of_the_graph() -> None:
    first, second = audited((10,), L.Dense(8), L.Dense(8)).layers
    assert second.bytes == 2 * (8 * 8 + 8) + 2 * 8 + 2 * 8
    assert first.bytes == 2 * (10 * 8 + 8) + 2 * 10 + 2 * 8


def test_weights_and_work_of_the_model_itself_are_a_row() -> None:
    class Own(keras.Model):
        def build(self, _: Any) -> None:
            self.w = self.add_weight(shape=(4, 3), name="w")

        def call(self, x: Any) -> Any:
            return tf.matmul(x, tf.cast(self.w, x.dtype))

    model = Own(name="own")
    model(np.zeros((1, 4), np.float32))
    (row,) = audit(model, np.zeros((1, 4), np.float32)).layers
    assert (row.path, row.parameters, row.flops) == ("own", 12, 2 * 12)


def test_model_without_a_forward_pass_has_sizes_alone() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = L.Dense(3, name="dense")

    model = Own()
    model.dense.build((None, 4))
    model_audit = audit(model, np.zeros((1, 4), np.float32))
    assert (model_audit.totals.parameters, model_audit.totals.flops, model_audit.layers[0].bytes) == (15, None, None)


def codes(layer: LayerAudit) -> set[str]:
    return {finding.code for finding in layer.findings}


def test_last_activation_in_16_bits_is_an_error_with_what_mends_it() -> None:
    model_audit = audited((8,), L.Dense(8), L.Dense(8, name="top"))
    ((path, error),) = model_audit.errors
    assert path == "top"
    assert "give 'top' dtype='float32', or set float32_layers: [top]" in error.text
    assert audited((8,), L.Dense(8), L.Dense(8, dtype="float32")).errors == []


def test_findings_of_layers() -> None:
    model_audit = audited(
        (9,),
        L.Dense(12, name="odd"),
        L.Dense(8, name="next"),
        L.LayerNormalization(epsilon=1e-9, name="norm"),
        L.Softmax(name="short"),
        L.RepeatVector(300, name="repeat"),
        L.Flatten(name="flat"),
        L.Reshape((2400,), name="long"),
        L.Softmax(name="wide"),
        L.Dense(8, dtype="float32", name="last"),
    )
    by_path = {layer.path: layer for layer in model_audit.layers}
    assert "size_not_multiple_of_8" in codes(by_path["odd"])
    assert "size_not_multiple_of_8" in codes(by_path["next"])  # what it reads
    assert "9" not in str(by_path["odd"].findings)  # the data cannot be changed
    assert "long_reduction" in codes(by_path["wide"])
    assert "long_reduction" not in codes(by_path["short"])
    assert {"stays_float32", "casts"} <= codes(by_path["last"])
    assert "by its own dtype" in by_path["last"].findings[0].text


def test_layer_that_a_pattern_keeps_says_so() -> None:
    x = inputs = keras.Input((8,))
    for name in ("first", "kept"):
        x = L.Dense(8, name=name)(x)
    model = keras.Model(inputs, L.Dense(1, dtype="float32")(x))
    keep(model, ["kept"])
    by_path = {layer.path: layer for layer in audit(model, np.zeros((1, 8)), ["kept"]).layers}
    assert by_path["kept"].compute_dtype == "float32"
    assert "because float32_layers says so" in by_path["kept"].findings[0].text
    assert audit(model, np.zeros((1, 8))).totals.casts == 2  # of the input, and of what the kept layer reads


def test_epsilon_that_float16_does_not_hold() -> None:
    class Norm(keras.layers.Layer):
        epsilon = 1e-12

        def call(self, x: Any) -> Any:
            return x / (tf.reduce_mean(tf.abs(x)) + self.epsilon)

    model_audit = audited((8,), Norm(name="norm"), L.Dense(1, dtype="float32"))
    assert "small_epsilon" in codes(model_audit.layers[0])
