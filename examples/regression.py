"""Regression on tabular data: the progress of diabetes after a year, from ten measurements (scikit-learn's data set).

In params.yaml:

    task: {name: "examples.regression:build"}
    train: {epochs: 60, batch_size: 32}      # and the rest as it is
    compare: {quality_margin: 2.0}           # of the progress, whose standard deviation is 77

In 2 minutes on 2 cores, mixed_bfloat16 is rejected: a step takes 3 % longer (1 ms). 150 test examples show no quality.
"""

import keras
import numpy as np
from sklearn.datasets import load_diabetes

from halfstep.tasks import Task


def build(*, batch_size: int, seed: int, units: int = 64) -> Task:
    """A small multilayer perceptron. The score of an example is the negative absolute error."""
    x, y = load_diabetes(return_X_y=True)
    x, y = (x / x.std(axis=0)).astype("float32"), y[:, None].astype("float32")
    order = np.random.default_rng(0).permutation(len(x))  # the same split for every seed
    test, validation, train = np.split(order, [150, 190])
    model = keras.Sequential(
        [
            keras.Input((x.shape[1],)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(y.mean()), dtype="float32"),
        ]
    )
    return Task(
        model=model,
        compile={"optimizer": keras.optimizers.Adam(0.003), "loss": "mae"},
        train=(x[train], y[train]),
        validation=(x[validation], y[validation]),
        test=(x[test], y[test]),
        score=lambda y_true, y_pred: -np.abs(y_true - y_pred)[:, 0],
        score_name="neg_absolute_error",
    )
