"""Layers that stay in float32 under a mixed policy: chosen by their paths, set, and verified by the traced graph."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from halfstep.errors import PrecisionError
from halfstep.operations.layer_scopes import innermost_layer
from halfstep.system.imports import stages_package
from halfstep.tasks.layers import is_named, layer_paths, recorded_scopes, with_model
from halfstep.tasks.traced_types import SIXTEEN_BITS, computes_in_16_bits, trace
from halfstep.tasks.variables import has_step_of_keras
from halfstep.tensorflow_import import keras, tf

_FLOAT32 = "float32"
_SHOWN = 5


@dataclass(frozen=True)
class Float32Layers:
    """What `float32_layers` keeps in float32.

    Attributes:
        paths: of the layers, those below a layer that a pattern names included.
        casts: casts between float32 and 16 bits at the borders of these layers, in a step's forward pass; in the whole
            step for a model with a `train_step` of its own.
        outputs: data types of the model's outputs; empty for such a model. Its symbolic outputs keep their old types.
    """

    paths: tuple[str, ...] = ()
    casts: int = 0
    outputs: tuple[str, ...] = ()


def keep(model: keras.Model, patterns: Iterable[str]) -> dict[str, list[str]]:
    """Sets the layers that patterns name, and all layers below them, to float32. The model itself keeps its policy.

    Call it again when the model is built: a layer may be created only then.

    Args:
        model: of the task.
        patterns: a path, or a regular expression for a whole path, as `keras.dtype_policies.DTypePolicyMap` takes them.

    Returns:
        By pattern the paths of the layers that it names, those below them included; empty where it names none.
    """
    paths = layer_paths(model)
    matches = {pattern: list(_matching(pattern, paths, model)) for pattern in patterns}
    for path in {path for named in matches.values() for path in named}:
        _set_policy(paths[path], keras.dtype_policies.DTypePolicy(_FLOAT32))
    kept = {id(paths[path]) for named in matches.values() for path in named}
    _keep_inputs(model, kept)
    return matches


def _set_policy(layer: keras.layers.Layer, policy: Any) -> None:
    layer.dtype_policy = policy
    if isinstance(layer, keras.layers.Normalization) and layer.built:  # made its constants in the type that it had
        if layer.input_mean is None:
            layer.finalize_state()
        else:
            layer.build(layer._build_input_shape)


def _keep_inputs(model: keras.Model, kept: set[int]) -> None:
    """A functional model casts its inputs to the types with which it was built: those of layers that are kept, too."""
    for functional, tensor in _inputs(model):
        readers = [
            operation
            for operation in functional.operations
            if any(tensor is given for node in operation._inbound_nodes for given in node.input_tensors)
        ]
        if keras.backend.is_float_dtype(tensor.dtype) and readers and all(id(reader) in kept for reader in readers):
            _set_input_type(tensor, _FLOAT32)


def _set_input_type(tensor: Any, dtype: str) -> None:
    tensor._dtype = tensor._keras_history.operation._dtype = dtype


def _matching(pattern: str, paths: Mapping[str, keras.layers.Layer], model: keras.Model) -> Iterator[str]:
    named: list[keras.layers.Layer] = []
    for path, layer in paths.items():
        names = {path} if layer.path is not None else {path, f"{model.path or model.name}/{path}"}
        if any(is_named(name, pattern) for name in names):
            named.append(layer)
    below = {id(inner) for layer in named for inner in layer._flatten_layers()}
    yield from (path for path, layer in paths.items() if id(layer) in below)


@contextmanager
def in_float32(model: keras.Model) -> Iterator[bool]:
    """In the block, all layers below a model compute in float32, and yields whether they do: weights may be 16-bit."""
    if model.variable_dtype != _FLOAT32:
        yield False
        return
    policies = [(layer, layer.dtype_policy) for layer in layer_paths(model).values()]
    inputs = [(tensor, tensor.dtype) for _, tensor in _inputs(model)]
    keep(model, [".*"])
    try:
        yield True
    finally:
        for layer, policy in policies:
            _set_policy(layer, policy)
        for tensor, dtype in inputs:
            _set_input_type(tensor, dtype)


def is_functional(model: keras.Model) -> bool:
    """Whether a model has symbolic inputs, with types of their own; a subclassed one casts all that it is given."""
    return getattr(model, "_functional", None) is not None or hasattr(model, "_inputs")


def _inputs(model: keras.Model) -> Iterator[tuple[Any, Any]]:
    """The functional models in a model, each with each of its symbolic inputs."""
    for inner in with_model(model).values():
        functional = (getattr(inner, "_functional", None) or inner) if isinstance(inner, keras.Model) else None
        yield from ((functional, tensor) for tensor in getattr(functional, "_inputs", None) or ())


def kept_paths(model: keras.Model, patterns: Iterable[str]) -> list[str]:
    """Keeps the layers in float32, and returns their paths, in the order of the model.

    Raises:
        PrecisionError: a pattern names no layer.
    """
    matches, known = keep(model, patterns), list(layer_paths(model))
    for pattern, named in matches.items():
        if not named:
            hint = difflib.get_close_matches(pattern, known, n=1, cutoff=0.5)
            raise PrecisionError(
                f"float32_layers: no layer matches '{pattern}'"
                + (f"; did you mean '{hint[0]}'?" if hint else "")
                + f"; `python -m {stages_package()}.prepare --layers` lists the paths"
            )
    return [path for path in known if any(path in named for named in matches.values())]


def verified(model: keras.Model, patterns: Iterable[str], batch: Any) -> Float32Layers:
    """Keeps the layers in float32, and verifies by the traced graph that they compute so.

    Args:
        model: built and compiled.
        patterns: as of `keep`.
        batch: the specification of a training batch.

    Raises:
        PrecisionError: a pattern names no layer, or a layer computes in 16 bits all the same.
    """
    kept, known = set(kept_paths(model, patterns)), layer_paths(model)
    with recorded_scopes(model) as scopes:
        traced = trace(model, batch)
    graph = {op.name: op for op in traced.graph.get_operations()}
    places = {name: innermost_layer(name, scopes) for name in graph}
    wrong = sorted(
        {(places[name], op.type) for name, op in graph.items() if places[name] in kept and computes_in_16_bits(op)}
    )
    if wrong:
        shown = ", ".join(f"{path} ({operation})" for path, operation in wrong[:_SHOWN])
        raise PrecisionError(
            f"float32_layers: layers compute in 16 bits all the same: {shown}; their code casts by itself: change it, "
            "or leave them out"
        )
    borders = sum(op.type == "Cast" and _is_at_border(op, places, kept) for op in graph.values())
    outputs = tuple(output.dtype.name for output in traced.outputs) if has_step_of_keras(model) else ()
    return Float32Layers(tuple(path for path in known if path in kept), borders, outputs)


def _is_at_border(cast: Any, places: Mapping[str, str], kept: set[str]) -> bool:
    """Whether a cast is between 16 bits and float32, and reads from or goes to a layer that is kept."""
    around = [cast.inputs[0].op, *cast.outputs[0].consumers()]
    return changes_bits(cast) and any(places.get(op.name) in kept for op in around)


def changes_bits(cast: Any) -> bool:
    """Whether a cast is between 16 bits and float32."""
    types = {cast.inputs[0].dtype, cast.outputs[0].dtype}
    return tf.float32 in types and bool(types & SIXTEEN_BITS)
