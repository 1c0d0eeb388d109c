"""Builds the network that `model.name` names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from stages.errors import HalfstepError, ModelError
from stages.models import applications, cnn, resnet
from stages.params import ModelParams
from stages.tensorflow_import import keras

Shape = tuple[int, int, int]

_BUILT_IN: dict[str, Callable[[Shape, int], keras.Model]] = {
    "cnn": cnn.cnn,
    "resnet20": resnet.resnet20,
    "resnet50": applications.resnet50,
}


def build(model: ModelParams, input_shape: Shape, classes: int) -> keras.Model:
    """Builds the network that `model.name` names, under the current dtype policy.

    Args:
        model: section `model` of the parameters.
        input_shape: `(height, width, channels)` of an image.
        classes: number of classes.

    Returns:
        A model whose input is uint8 `(batch, height, width, channels)` and whose output is `(batch, classes)`.

    Raises:
        ModelError: the network cannot be built for this image shape, or its output does not match the classes.
    """
    try:
        built = _function(model.name)(input_shape, classes)
    except HalfstepError:
        raise
    except Exception as error:  # user code may raise anything, and so may Keras for an unsupported image size
        raise ModelError(f"{_subject(model, input_shape)} cannot be built: {_one_line(error)}") from error
    _check(built, model, input_shape, classes)
    return built


def _function(name: str) -> Callable[[Shape, int], keras.Model]:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    if name.startswith("keras.applications."):
        return applications.application(name.rpartition(".")[2])
    module, _, function = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: Callable[[Shape, int], keras.Model] = getattr(importlib.import_module(module), function)
    return found


def _check(built: object, model: ModelParams, input_shape: Shape, classes: int) -> None:
    subject = _subject(model, input_shape)
    if not isinstance(built, keras.Model):
        raise ModelError(f"{subject} returned {type(built).__name__}; it must return a keras.Model")
    if not built.built:
        raise ModelError(f"{subject} is not built; start it with keras.Input(input_shape, dtype='uint8')")
    if tuple(built.input_shape[1:]) != input_shape:
        raise ModelError(f"{subject} takes images of shape {built.input_shape[1:]}; it must take {input_shape}")
    if tuple(built.output_shape) != (None, classes):
        raise ModelError(
            f"{subject} has an output of shape {built.output_shape}; it must be (None, {classes}): "
            f"a probability for each of the {classes} classes"
        )


def _subject(model: ModelParams, input_shape: Shape) -> str:
    height, width, channels = input_shape
    return f"model.name = {model.name}, on images of {height} x {width} x {channels} (data.image_size = {height}),"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
