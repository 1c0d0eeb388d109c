"""Builds the network that `model.name` names."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from halfstep.errors import ModelError
from halfstep.inputs.own_model import OWN_MODEL
from halfstep.params.schema import ModelParams
from halfstep.tasks import user_code
from halfstep.tasks.images.models import applications, checks, cnn, resnet
from halfstep.tensorflow_import import keras

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
        ModelError: the network cannot be built for this image shape, or does not map images to probabilities.
    """
    subject = _subject(model, input_shape)
    with user_code.explained(subject, "cannot be built"):  # Keras, too, raises anything for an unsupported image size
        built = _function(model.name)(input_shape, classes)
        problem = checks.structure_problem(built, input_shape, classes)
    if problem is None and OWN_MODEL.fullmatch(model.name):
        with user_code.explained(subject, "cannot be saved"):  # found after the training, its results would be lost
            built.to_json()
        with user_code.explained(subject, "fails on random images"):
            problem = checks.output_problem(built, input_shape)
    if problem:
        raise ModelError(f"{subject} {problem}")
    return built


def _function(name: str) -> Callable[[Shape, int], keras.Model]:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    if name.startswith("keras.applications."):
        return applications.application(name.rpartition(".")[2])
    module, _, function = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    return _with_two_arguments(getattr(importlib.import_module(module), function), function)


def _with_two_arguments(
    function: Callable[[Shape, int], keras.Model], name: str
) -> Callable[[Shape, int], keras.Model]:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C
        return function
    try:
        signature.bind((), 0)
    except TypeError:
        raise TypeError(f"{name}{signature} must be {name}(input_shape, classes)") from None
    return function


def _subject(model: ModelParams, input_shape: Shape) -> str:
    height, width, channels = input_shape
    return f"model.name = {model.name}, on images of {height} x {width} x {channels} (data.image_size = {height}),"
