"""Token sequences: a transformer encoder tells the topic of texts, which are made up of numbered words.

Each topic prefers some of the words, and most words of a text have nothing to do with its topic. In params.yaml:

    task: {name: "examples.encoder:build"}
    train: {epochs: 2, batch_size: 32}
    compare: {quality_margin: 0.02}          # of the accuracy
"""

import keras
import numpy as np
from keras import layers, ops

from halfstep.tasks import Task

WORDS, TOPICS = 1000, 10


def texts(count: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Words `(count, length)` and topics `(count,)`. One word in five is one of the hundred of its topic."""
    draw = np.random.default_rng(seed)
    topics = draw.integers(TOPICS, size=(count, 1))
    preferred = topics + TOPICS * draw.integers(WORDS // TOPICS, size=(count, length))
    any_words = draw.integers(WORDS, size=(count, length))
    return np.where(draw.random((count, length)) < 1 / 5, preferred, any_words).astype("int32"), topics[:, 0]


def encoder(length: int, width: int, blocks: int) -> keras.Model:
    """Words to the probabilities of the topics, in float32."""
    words = keras.Input((length,), dtype="int32")
    x = layers.Embedding(WORDS, width)(words) + layers.Embedding(length, width)(ops.arange(length))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4)(y, y)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(y)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(words, layers.Dense(TOPICS, activation="softmax", dtype="float32")(x))


def build(*, batch_size: int, seed: int, length: int = 64, width: int = 128, examples: int = 3000) -> Task:
    """The score of a text is whether its topic is found."""
    return Task(
        model=encoder(length, width, blocks=2),
        compile={
            "optimizer": keras.optimizers.Adam(0.001),
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        train=texts(examples, length, seed=0),
        validation=texts(500, length, seed=1),
        test=texts(1000, length, seed=2),
        score=lambda y_true, y_pred: y_pred.argmax(axis=1) == y_true,
        score_name="accuracy",
    )
