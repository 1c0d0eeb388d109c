"""What is known of a layer while it is called: whether it stays in float32, and that it has failed."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from halfstep.tasks.layers import is_named
from halfstep.tensorflow_import import keras, tf
from halfstep.words.policies import SIXTEEN_BIT

_FAILED = "_halfstep_failed_layer"  # of an exception
_NODE = re.compile(r"[\w.-]+(?:/[\w.-]*)+")  # of a graph: the scopes that it is in, and its name
_SCOPE = "forward_pass_name_scope"  # a variable of TensorFlow's, where it calls the gradient of an operation
_NUMBER = re.compile(r"_\d+$")
_patterns: list[str] = []
_paths: dict[str, str] = {}  # of layers that have been called, by name
_called: list[str] = []  # the names of the layers that are being called, the outermost first


def watch(patterns: Iterable[str]) -> None:
    """Keeps layers that are called for the first time in float32, and lets exceptions know the layer that raised them.

    What is built in 16 bits may fail before its model exists, so that `float32_layers.keep` comes too late for it.

    Args:
        patterns: as of `float32_layers.keep`; they replace those of an earlier call.
    """
    _install()
    _patterns[:] = patterns


def failed_layer(error: BaseException | None) -> str | None:
    """Path of the innermost layer that has raised an exception or its cause, or whose output has; None without one."""
    path: str | None = None
    while error is not None:  # Keras raises some in the place of others, layer by layer
        path = getattr(error, _FAILED, path)
        if path is None and isinstance(error, tf.errors.OpError):
            path = _layer_of_node(error.message)
        error = error.__cause__ or error.__context__
    return path


def _layer_of_node(message: str) -> str | None:
    """The layer of the first operation of a graph that a message names; TensorFlow adds numbers to names of scopes."""
    scopes = (reversed(node.split("/")) for node in _NODE.findall(message))
    return next(
        (_paths[name] for scope in chain(*scopes) for name in (scope, _NUMBER.sub("", scope)) if name in _paths), None
    )


@functools.cache
def _install() -> None:
    original = keras.layers.Layer.__call__

    @functools.wraps(original)
    def call(layer: keras.layers.Layer, *arguments: Any, **options: Any) -> Any:
        _called.append(layer.name)
        path = layer.path or "/".join(_called)
        if not isinstance(layer, keras.Model):
            _paths[layer.name] = path
        if not layer.built and any(is_named(above, pattern) for pattern in _patterns for above in _upwards(path)):
            layer.dtype_policy = keras.dtype_policies.DTypePolicy("float32")
        try:
            return original(layer, *arguments, **options)
        except Exception as error:
            if not isinstance(layer, keras.Model) and not hasattr(error, _FAILED):
                setattr(error, _FAILED, layer.path or path)
            raise
        finally:
            _called.pop()

    keras.layers.Layer.__call__ = call
    for name in ("compute_loss", "compute_metrics"):
        setattr(keras.Model, name, _naming_output(getattr(keras.Model, name)))
    tf.GradientTape.gradient = _naming_operation(tf.GradientTape.gradient)


def _naming_operation(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """`GradientTape.gradient`. TensorFlow computes each gradient in a scope after that of its operation."""

    @functools.wraps(gradient)
    def named(*arguments: Any, **options: Any) -> Any:
        try:
            return gradient(*arguments, **options)
        except Exception as error:
            frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
            scopes = [str(variables[_SCOPE]) for variables in frames if _SCOPE in variables]
            if scopes and (path := _layer_of_node(f"{scopes[-1]}/")) is not None:
                setattr(error, _FAILED, path)
            raise

    return named


def _naming_output(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a model; what fails in it, a loss or a metric, cannot take an output in 16 bits."""

    @functools.wraps(method)
    def named(model: keras.Model, *arguments: Any, **options: Any) -> Any:
        try:
            return method(model, *arguments, **options)
        except Exception as error:
            outputs = [
                output._keras_history.operation for output in keras.tree.flatten(getattr(model, "outputs", None))
            ]
            in_16_bits = [layer.path or layer.name for layer in outputs if layer.compute_dtype in SIXTEEN_BIT]
            if in_16_bits and not hasattr(error, _FAILED):
                setattr(error, _FAILED, in_16_bits[0])
            raise

    return named


def _upwards(path: str) -> Iterator[str]:
    """A path and those of the layers above."""
    while path:
        yield path
        path = path.rpartition("/")[0]
