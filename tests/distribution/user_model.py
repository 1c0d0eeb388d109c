"""Networks for the tests, which the projects of the tests copy."""

from __future__ import annotations

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("user_model")
class Overflow(keras.layers.Layer):
    """Multiplies the gradient on one replica, so that it overflows in float16 while the loss scale is large."""

    def __init__(self, replica=0, **options):
        super().__init__(**options)
        self.replica = replica

    def call(self, inputs):
        context = tf.distribute.get_replica_context()
        number = context.replica_id_in_sync_group if context else -1
        factor = tf.where(tf.equal(number, self.replica), 1024.0, 1.0)

        @tf.custom_gradient
        def identity(values):
            return tf.identity(values), lambda gradient: gradient * tf.cast(factor, gradient.dtype)

        return identity(inputs)

    def get_config(self):
        return super().get_config() | {"replica": self.replica}


def network(shape, classes, *layers):
    pixels = keras.Input(shape, dtype="uint8")
    features = keras.layers.Rescaling(1 / 255)(pixels)
    for layer in layers:
        features = layer(features)
    features = keras.layers.Dense(classes)(keras.layers.Flatten()(features))
    return keras.Model(pixels, keras.layers.Activation("softmax", dtype="float32")(features))


def overflow_0(shape, classes):
    return network(shape, classes, keras.layers.Conv2D(4, 3), Overflow(0))


def overflow_1(shape, classes):
    return network(shape, classes, keras.layers.Conv2D(4, 3), Overflow(1))


def normed(shape, classes):
    """The moving statistics are those of the last batch; dropout comes after them."""
    return network(shape, classes, keras.layers.BatchNormalization(momentum=0.0), keras.layers.Dropout(0.5))
