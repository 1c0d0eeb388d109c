"""A network small enough to train on a laptop's CPU in seconds, in every precision."""

from __future__ import annotations

import keras
from keras import layers

from stages.models.parts import conv_norm, image_input, probabilities

# Processors without float16 convolutions take over 20 times as long a multiplication as in float32: each doubling of
# these widths makes the default run several minutes longer there.
WIDTHS = (8, 16, 32)
DROPOUT = 0.4  # a thousand pictures are few: without it the test accuracy on the digits is 0.3 points lower


def cnn(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Three convolutions of stride 2, dropout, a dense layer: 11,330 parameters for 32 x 32 pixels and ten classes."""
    pixels, features = image_input(input_shape)
    for width in WIDTHS:
        features = conv_norm(features, width, strides=2)
    features = layers.Dropout(DROPOUT)(layers.Flatten()(features))
    return keras.Model(pixels, probabilities(features, classes), name="cnn")
