"""Networks of `keras.applications`, with random weights and a new classification head."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from halfstep.tasks.images.models.parts import BATCH_NORM_MOMENTUM, image_input, probabilities
from halfstep.tensorflow_import import keras


def application(name: str) -> Callable[[tuple[int, int, int], int], keras.Model]:
    """Returns a function that builds `keras.applications.<name>` for an image shape and a number of classes."""
    constructor = getattr(keras.applications, name)

    def build(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
        pixels, scaled = image_input(input_shape)
        options = {"weights": None, "include_top": False, "pooling": "avg", "input_shape": input_shape}
        if "include_preprocessing" in inspect.signature(constructor).parameters:
            options["include_preprocessing"] = False  # the pixels are already scaled
        body = constructor(**options)
        for layer in body._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.momentum = BATCH_NORM_MOMENTUM
        return keras.Model(pixels, probabilities(body(scaled), classes), name=name.lower())

    return build


def resnet50(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """ResNet-50 of `keras.applications`, 23.6 million parameters."""
    return application("ResNet50")(input_shape, classes)
