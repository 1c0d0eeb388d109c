"""Tiny models of kinds that runtimes refuse where they are exported as they are."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

ROWS = 4


def sequence(*recurrent: keras.layers.Layer, steps: int = 6) -> keras.Model:
    """Recurrent layers over sequences of three numbers."""
    inputs = keras.Input((steps, 3))
    hidden = inputs
    for layer in recurrent:
        hidden = layer(hidden)
    return keras.Model(inputs, keras.layers.Dense(2)(hidden))


def masked() -> keras.Model:
    """A GRU over words, of which zeros are masked."""
    inputs = keras.Input((6,), dtype="int32")
    hidden = keras.layers.GRU(4)(keras.layers.Embedding(10, 3, mask_zero=True)(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(hidden))


def gelu() -> keras.Model:
    """The exact gelu of a transformer."""
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(8, activation="gelu")(inputs)))


def constant() -> keras.Model:
    """A tensor that is computed while the model is built, as for the positions of words."""
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.layers.Dense(2)(inputs + keras.ops.arange(6, dtype="float32")))


def dictionary() -> keras.Model:
    """Two inputs and two outputs in dictionaries, neither in the order of their names."""
    right, left = keras.Input((8,), name="right"), keras.Input((8,), name="left")
    outputs = {"z": keras.layers.Dense(2)(right), "y": keras.layers.Dense(2)(left)}
    return keras.Model({"right": right, "left": left}, outputs)


def inputs_of(model: keras.Model) -> Any:
    """Four examples, which differ in each input."""
    random = np.random.default_rng(0)

    def examples(spec: keras.KerasTensor) -> np.ndarray:
        shape = (ROWS, *spec.shape[1:])
        if spec.dtype == "int32":
            return np.where(np.arange(shape[1]) < 4, random.integers(1, 10, shape), 0).astype(np.int32)
        return random.normal(size=shape).astype(np.float32)

    return keras.tree.map_structure(examples, model.input)
