"""Building blocks that the networks share."""

from __future__ import annotations

from halfstep.tensorflow_import import keras

# With Keras's default of 0.99 the moving averages need several hundred steps to converge: for this reason alone, six
# epochs on the digits reach a test accuracy of only 0.17.
BATCH_NORM_MOMENTUM = 0.9


def image_input(shape: tuple[int, int, int]) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Returns the input, uint8 to transfer a quarter of the bytes of float32, and the pixels scaled to [0, 1]."""
    pixels = keras.Input(shape, dtype="uint8", name="pixels")
    return pixels, keras.layers.Rescaling(1 / 255, name="scale")(pixels)


def probabilities(features: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Class probabilities in float32: a 16-bit softmax rounds small probabilities to 0, and their gradients too."""
    logits = keras.layers.Dense(classes, name="logits")(features)
    return keras.layers.Activation("softmax", dtype="float32", name="probabilities")(logits)


def conv_norm(inputs: keras.KerasTensor, filters: int, strides: int = 1, *, activate: bool = True) -> keras.KerasTensor:
    """A 3 x 3 convolution without bias, batch normalization, and ReLU unless `activate` is false."""
    outputs = keras.layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(inputs)
    outputs = keras.layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM)(outputs)
    return keras.layers.ReLU()(outputs) if activate else outputs
