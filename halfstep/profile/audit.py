"""The layers of a model by class and type, and which of them multiply matrices, by the graph of a forward pass."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from halfstep.operations.layer_scopes import innermost_layer
from halfstep.results.audit import LayerAudit, ModelAudit
from halfstep.tasks.layers import layer_paths, recorded_scopes, with_model
from halfstep.tasks.variables import random_state_kept
from halfstep.tensorflow_import import keras, tf

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_CONVOLUTIONS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "Conv3DBackpropInputV2"}
_PRODUCTS = _CONVOLUTIONS | {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}


def audit(model: keras.Model, inputs: Any) -> ModelAudit:
    """Lists the layers of a built model, and the model itself where it has weights or products of its own.

    Args:
        model: of a task, under the variant's policy.
        inputs: for the forward pass, with one row; the values do not matter.
    """
    multiplying, layers = _multiplying(model, inputs), layer_paths(model)
    if (model.path or model.name) in multiplying or _has_own_weights(model):
        layers = with_model(model)
    return ModelAudit(
        layers=tuple(
            LayerAudit(
                path=path,
                type=type(layer).__name__,
                compute_dtype=str(layer.compute_dtype),
                multiplies=path in multiplying and _has_own_weights(layer),
            )
            for path, layer in layers.items()
        )
    )


def _multiplying(model: keras.Model, inputs: Any) -> set[str]:
    """Paths of the layers with products; empty if the model has no forward pass of its own, or cannot be traced."""

    def of_one(array: Any) -> tf.TensorSpec:
        values = np.asarray(array)
        return tf.TensorSpec((1, *values.shape[1:]), values.dtype)

    specs = keras.tree.map_structure(of_one, inputs)
    with random_state_kept(), suppress(Exception):  # of the user's own model; `fit` says what is wrong
        with recorded_scopes(model) as scopes:
            traced = tf.function(lambda x: model(x, training=True), autograph=False).get_concrete_function(specs)
        operations = traced.graph.get_operations()
        return {innermost_layer(operation.name, scopes) for operation in operations if _is_product(operation)}
    return set()


def _is_product(operation: Any) -> bool:
    if operation.type in _CALLS:  # of a function, such as a convolution in groups
        called = operation.graph._get_function(operation.get_attr("f").name).graph
        return any(map(_is_product, called.get_operations()))
    return operation.type in _PRODUCTS


def _has_own_weights(layer: keras.layers.Layer) -> bool:
    """Whether a layer has weights that none of the layers inside it has."""
    inner = {id(weight) for child in layer._layers for weight in child.weights}
    return any(id(weight) not in inner for weight in layer.weights)
