"""Time series: an LSTM predicts the next value of noisy waves, which are made up.

In params.yaml:

    task: {name: "examples.lstm:build"}
    train: {epochs: 5, batch_size: 64}
    compare: {quality_margin: 0.01}          # of the values, which are between -1 and 1, plus noise
"""

import keras
import numpy as np

from stages.tasks import Task


def waves(count: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Series of values `(count, length, 1)`, and the value without noise that comes next, `(count, 1)`."""
    draw = np.random.default_rng(seed)
    periods, phases = draw.uniform(5, 20, (count, 1)), draw.uniform(0, 1, (count, 1))
    values = np.sin(2 * np.pi * (np.arange(length + 1) / periods + phases))
    noisy = values + draw.normal(0, 0.1, values.shape)
    return noisy[:, :-1, None].astype("float32"), values[:, -1:].astype("float32")


def build(*, batch_size: int, seed: int, units: int = 64, length: int = 40, series: int = 4000) -> Task:
    """Two layers, of which the second returns its last state. The score of a series is the negative absolute error."""
    model = keras.Sequential(
        [
            keras.Input((length, 1)),
            keras.layers.LSTM(units, return_sequences=True),
            keras.layers.LSTM(units),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    return Task(
        model=model,
        compile={"optimizer": keras.optimizers.Adam(0.003), "loss": "mse"},
        train=waves(series, length, seed=0),
        validation=waves(series // 10, length, seed=1),
        test=waves(series // 2, length, seed=2),
        score=lambda y_true, y_pred: -np.abs(y_true - y_pred)[:, 0],
        score_name="neg_absolute_error",
    )
