"""What the networks share: how an image comes in, and how probabilities go out."""

from __future__ import annotations

import keras
from keras import layers

# Keras's default of 0.99 needs several hundred steps before the moving averages are worth anything: six epochs on the
# digits end at 0.17 test accuracy for that reason alone.
BATCH_NORM_MOMENTUM = 0.9


def image_input(shape: tuple[int, int, int]) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """The input, uint8 so that a quarter of float32's bytes go to the device, and the same scaled to 0 … 1."""
    pixels = keras.Input(shape, dtype="uint8", name="pixels")
    return pixels, layers.Rescaling(1 / 255, name="scale")(pixels)


def probabilities(features: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Class probabilities in float32: a softmax in 16 bits loses small probabilities and with them the gradient."""
    logits = layers.Dense(classes, name="logits")(features)
    return layers.Activation("softmax", dtype="float32", name="probabilities")(logits)


def conv_norm(inputs: keras.KerasTensor, filters: int, strides: int = 1, *, activate: bool = True) -> keras.KerasTensor:
    """A 3 x 3 convolution without bias, batch normalisation, and ReLU unless `activate` is false."""
    outputs = layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(inputs)
    outputs = layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM)(outputs)
    return layers.ReLU()(outputs) if activate else outputs
