"""A training script without halfstep, for a time series: an LSTM predicts the next value of noisy waves, made up.

It is scored by its negative loss, because it predicts numbers. In params.yaml:

    task: {script: examples/lstm_script.py}
    train: {epochs: null, batch_size: null}
"""

import keras
import numpy as np

LENGTH, UNITS = 40, 64


def waves(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Series of values `(count, LENGTH, 1)`, and the value without noise that comes next, `(count, 1)`."""
    draw = np.random.default_rng(seed)
    periods, phases = draw.uniform(5, 20, (count, 1)), draw.uniform(0, 1, (count, 1))
    values = np.sin(2 * np.pi * (np.arange(LENGTH + 1) / periods + phases))
    noisy = values + draw.normal(0, 0.1, values.shape)
    return noisy[:, :-1, None].astype("float32"), values[:, -1:].astype("float32")


model = keras.Sequential(
    [
        keras.Input((LENGTH, 1)),
        keras.layers.LSTM(UNITS, return_sequences=True),
        keras.layers.LSTM(UNITS),
        keras.layers.Dense(1, dtype="float32"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(0.003), loss="mse")
x, y = waves(4000, seed=0)
model.fit(x, y, validation_data=waves(2000, seed=1), epochs=5, batch_size=64)
