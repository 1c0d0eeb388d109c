"""A task with a recurrent layer, for the benchmarks: which of two sums of a random walk is larger."""

import keras
import numpy as np
import tensorflow as tf

from stages.tasks import Task

EXAMPLES, STEPS, WIDTH = 1024, 50, 16


def build(*, batch_size: int, seed: int) -> Task:
    """Sequences `(batch, 50, 16)` to one probability."""
    generator = np.random.default_rng(seed)
    sequences = generator.normal(size=(EXAMPLES, STEPS, WIDTH)).cumsum(axis=1).astype("float32") / STEPS
    labels = (sequences[:, -1, 0] > sequences[:, -1, 1]).astype("float32")[:, None]
    batches = tf.data.Dataset.from_tensor_slices((sequences, labels)).shuffle(EXAMPLES, seed=seed)
    inputs = keras.Input((STEPS, WIDTH))
    outputs = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(keras.layers.LSTM(128)(inputs))
    return Task(
        model=keras.Model(inputs, outputs),
        compile={"optimizer": "adam", "loss": "binary_crossentropy"},
        train=batches.batch(batch_size, drop_remainder=True),
        validation=(sequences[:128], labels[:128]),
        test=(sequences[:256], labels[:256]),
        score=lambda y_true, y_pred: -np.abs(y_pred - y_true)[:, 0],
        score_name="closeness",
    )
