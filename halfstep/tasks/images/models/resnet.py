"""ResNet for small images: He et al., "Deep Residual Learning for Image Recognition" (2015), section 4.2."""

from __future__ import annotations

from halfstep.tasks.images.models.parts import BATCH_NORM_MOMENTUM, conv_norm, image_input, probabilities
from halfstep.tensorflow_import import keras

STAGE_WIDTHS = (16, 32, 64)
BLOCKS_PER_STAGE = 3  # 6n + 2 layers with weights: 20 for n = 3


def resnet20(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """ResNet-20, 0.27 million parameters, with projections as shortcuts where the shape changes (option B)."""
    pixels, features = image_input(input_shape)
    features = conv_norm(features, STAGE_WIDTHS[0])
    for index, width in enumerate(STAGE_WIDTHS):
        for block in range(BLOCKS_PER_STAGE):
            features = _block(features, width, strides=2 if index > 0 and block == 0 else 1)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(pixels, probabilities(features, classes), name="resnet20")


def _block(inputs: keras.KerasTensor, width: int, strides: int) -> keras.KerasTensor:
    outputs = conv_norm(inputs, width, strides)
    outputs = conv_norm(outputs, width, activate=False)
    return keras.layers.ReLU()(keras.layers.Add()([outputs, _shortcut(inputs, width, strides)]))


def _shortcut(inputs: keras.KerasTensor, width: int, strides: int) -> keras.KerasTensor:
    if strides == 1:
        return inputs
    outputs = keras.layers.Conv2D(width, 1, strides=strides, use_bias=False)(inputs)
    return keras.layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM)(outputs)
