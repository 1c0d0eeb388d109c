"""The layers of a model by path, and their scopes in a graph."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from halfstep.operations.layer_scopes import layers_above
from halfstep.tasks.layers import layer_paths, recorded_scopes
from halfstep.tensorflow_import import reset_uids

L = keras.layers


def model() -> keras.Model:
    """Its layers are called in another order than they are made, and one of them is a model."""
    reset_uids()
    inputs = keras.Input((4,))
    last, first = L.Dense(2), L.Dense(3)  # dense, dense_1
    inner = keras.Sequential([L.Dense(5), L.ReLU()], name="inner")
    return keras.Model(inputs, last(inner(first(inputs))), name="whole")


def test_layers_without_a_path_of_their_own_have_one() -> None:
    assert list(layer_paths(model())) == ["dense_1", "inner", "inner/dense_2", "inner/re_lu", "dense"]
    sequential = keras.Sequential([keras.Input((4,)), L.Dense(2, name="a"), L.ReLU(name="b")], name="line")
    assert list(layer_paths(sequential)) == ["line/a", "line/b"]


def test_operations_are_in_the_layers_that_make_them_whatever_the_names_of_their_scopes() -> None:
    """TensorFlow numbers scopes anew: by the names alone, `dense` would be taken for `dense_1`."""
    whole = model()
    with recorded_scopes(whole) as scopes:
        traced = tf.function(lambda x: whole(x, training=True)).get_concrete_function(tf.TensorSpec((1, 4)))
    assert all("call" not in vars(layer) for layer in layer_paths(whole).values())
    units = {
        layers_above(operation.name.split("/")[:-1], scopes)[-1]: operation.outputs[0].shape[-1]
        for operation in traced.graph.get_operations()
        if operation.type == "MatMul"
    }
    assert units == {"dense_1": 3, "inner/dense_2": 5, "dense": 2}
    assert np.isfinite(whole.predict(np.zeros((2, 4)), verbose=0)).all()
