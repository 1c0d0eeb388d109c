"""Text: a transformer that predicts the next character of Python's own documentation.

In params.yaml:

    task: {name: "examples.text:build"}
    train: {epochs: 2, batch_size: 64}
    compare: {quality_margin: 0.01}          # of the share of characters that are predicted

In 3 minutes on 2 cores (AVX512_BF16), mixed_bfloat16 is adopted for training: 1.22 times as fast (1.16 to 1.29).
"""

from pydoc_data.topics import topics

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from halfstep.tasks import Task

CHARACTERS = 128  # ASCII; all others become "?"


def transformer(length: int, width: int, blocks: int) -> keras.Model:
    """Characters `(batch, length)` to the logits of the next ones, `(batch, length, 128)`, in float32."""
    characters = keras.Input((length,), dtype="int32")
    places = layers.Embedding(length, width)(ops.arange(length))
    x = layers.Embedding(CHARACTERS, width)(characters) + places
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(y)
    return keras.Model(characters, layers.Dense(CHARACTERS, dtype="float32")(layers.LayerNormalization()(x)))


def build(*, batch_size: int, seed: int, length: int = 64, width: int = 128, limit: int = 600_000) -> Task:
    """The score of an example is the share of its characters that are predicted."""
    text = "\n".join(topics[name] for name in sorted(topics))[:limit]
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype("int32")
    rows = codes[: len(codes) // (length + 1) * (length + 1)].reshape(-1, length + 1)
    order = np.random.default_rng(0).permutation(len(rows))
    test, validation, train = (rows[part] for part in np.split(order, [len(rows) // 5, len(rows) // 4]))
    batches = tf.data.Dataset.from_tensor_slices((train[:, :-1], train[:, 1:]))
    return Task(
        model=transformer(length, width, blocks=2),
        compile={
            "optimizer": keras.optimizers.Adam(0.001),
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
        },
        train=batches.shuffle(len(train), seed=seed).batch(batch_size, drop_remainder=True),
        validation=(validation[:, :-1], validation[:, 1:]),
        test=(test[:, :-1], test[:, 1:]),
        score=lambda y_true, y_pred: (y_pred.argmax(axis=2) == y_true).mean(axis=1),
        score_name="accuracy",
    )
