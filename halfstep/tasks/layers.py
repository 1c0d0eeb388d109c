"""The layers of a model by path, as `float32_layers` names them and as the operations of a step are in them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from halfstep.tensorflow_import import keras, tf


def layer_paths(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers below a model by their paths, such as `encoder/attention/query`, those above others first.

    The path of a layer is Keras's, `layer.path`. A layer without variables has none, and neither has one that is not
    built: theirs is that of what they are in, and their name. A layer that is used in several places has one path.
    """
    return dict(_below(model, "" if model.path is None else model.path, set()))


def is_named(path: str, pattern: str) -> bool:
    """Whether a pattern of `float32_layers` names a path: it is the path, or a regular expression for all of it."""
    return pattern == path or re.fullmatch(pattern, path) is not None


def with_model(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The model itself by its path, or else its name, and the layers below it."""
    return {model.path or model.name: model} | layer_paths(model)


@contextmanager
def recorded_scopes(model: keras.Model) -> Iterator[dict[str, str]]:
    """In the block, records the scopes of the model and its layers in a graph that is traced there.

    TensorFlow makes the names of scopes unique in a graph, and Keras enters some twice: the operations of `conv2d` may
    stand in the scope `conv2d_2` although there is a layer of this name.

    Yields:
        The paths of the layers by scope.
    """
    scopes: dict[str, str] = {}
    with replaced_calls(with_model(model), lambda call, path: _recorded(call, path, scopes)):
        yield scopes


def _recorded(call: Callable[..., Any], path: str, scopes: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(call)
    def recorded(*arguments: Any, **options: Any) -> Any:
        if not tf.executing_eagerly():
            scopes.setdefault(tf.compat.v1.get_default_graph().get_name_scope(), path)
        return call(*arguments, **options)

    return recorded


@contextmanager
def replaced_calls(layers: Mapping[str, keras.layers.Layer], replacement: Callable[..., Any]) -> Iterator[None]:
    """In the block, each layer's `call` is `replacement(call, path)`."""
    before = {path: vars(layer).get("call") for path, layer in layers.items()}
    for path, layer in layers.items():
        object.__setattr__(layer, "call", replacement(layer.call, path))
    try:
        yield
    finally:
        for path, layer in layers.items():
            layer.__dict__.pop("call")
            if before[path] is not None:
                object.__setattr__(layer, "call", before[path])


def _below(outer: keras.layers.Layer, path: str, seen: set[int]) -> Iterator[tuple[str, keras.layers.Layer]]:
    above = _path_of_layers_in(outer, path)
    for layer in outer._layers:
        if id(layer) in seen or isinstance(layer, keras.layers.InputLayer):
            continue
        seen.add(id(layer))
        layer_path = layer.path or (f"{above}/{layer.name}" if above else layer.name)
        yield layer_path, layer
        yield from _below(layer, layer_path, seen)


def _path_of_layers_in(outer: keras.layers.Layer, path: str) -> str:
    """What the paths of the layers in another one begin with: nothing at the top of a functional model."""
    known = [layer.path for layer in outer._layers if layer.path is not None]
    return known[0].rpartition("/")[0] if known else path
