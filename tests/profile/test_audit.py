"""The layers of a model by class and type, and which of them multiply matrices."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.profile.audit import audit
from halfstep.results.audit import ModelAudit
from tests.mixed_float16 import mixed_float16 as mixed_float16

L = keras.layers
pytestmark = pytest.mark.usefixtures("mixed_float16")


def audited(shape: tuple[int, ...], *layers: keras.layers.Layer) -> ModelAudit:
    x = inputs = keras.Input(shape)
    for layer in layers:
        x = layer(x)
    return audit(keras.Model(inputs, x), np.zeros((5, *shape), np.float32))


@pytest.mark.parametrize(
    ("shape", "layer", "multiplies"),
    [
        ((6, 10), lambda: L.Dense(7), True),
        ((8, 8, 6), lambda: L.Conv2D(4, 3, groups=2), True),  # a function of its own
        ((8, 8, 6), lambda: L.DepthwiseConv2D(3), True),
        ((8, 8, 6), lambda: L.Conv2DTranspose(4, 3), True),
        ((8, 8, 8, 2), lambda: L.Conv3D(4, 3), True),
        ((4,), lambda: L.ReLU(), False),
        ((4,), lambda: L.LayerNormalization(), False),
    ],
)
def test_products_with_weights(shape: tuple[int, ...], layer: Any, multiplies: bool) -> None:
    assert [item.multiplies for item in audited(shape, layer()).layers] == [multiplies]


def test_layers_inside_a_layer_are_listed_with_their_paths() -> None:
    x = inputs = keras.Input((20, 16))
    model_audit = audit(keras.Model(inputs, L.MultiHeadAttention(2, 8, name="attention")(x, x)), np.zeros((1, 20, 16)))
    by_path = {layer.path: layer.multiplies for layer in model_audit.layers}
    assert by_path["attention/query"] is True
    assert by_path["attention"] is False  # its products have no weights of its own


def test_model_with_weights_of_its_own_is_a_row() -> None:
    class Own(keras.Model):
        def build(self, _: Any) -> None:
            self.w = self.add_weight(shape=(4, 3), name="w")

        def call(self, x: Any) -> Any:
            return tf.matmul(x, tf.cast(self.w, x.dtype))

    model = Own(name="own")
    model(np.zeros((1, 4), np.float32))
    (row,) = audit(model, np.zeros((1, 4), np.float32)).layers
    assert (row.path, row.multiplies) == ("own", True)


def test_model_without_a_forward_pass_has_its_layers() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = L.Dense(3, name="dense")

    model = Own()
    model.dense.build((None, 4))
    (row,) = audit(model, np.zeros((1, 4), np.float32)).layers
    assert (row.type, row.multiplies) == ("Dense", False)


def test_file_of_an_earlier_release_is_read() -> None:
    layer = {"path": "a", "type": "Dense", "compute_dtype": "float16", "variable_dtype": "float32", "parameters": 9}
    totals = {"parameters": 9, "flops_by_dtype": {"float16": 18}}
    content = {"layers": [{**layer, "flops": 18, "findings": []}, {**layer, "path": "b", "flops": 0}], "totals": totals}
    assert [item.multiplies for item in ModelAudit.model_validate(content).layers] == [True, False]
