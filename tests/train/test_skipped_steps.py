"""Steps that a loss scale has skipped, of trainings whose number of steps only Keras knows."""

from __future__ import annotations

import numpy as np
import pytest

from halfstep.errors import PrecisionError
from halfstep.tensorflow_import import keras
from halfstep.train.callbacks import EpochRecorder

STEPS = 6


def trained(recorder: EpochRecorder, first: float = 1.0) -> list[int | None]:
    """Trains twice, as a script that goes on does, and gives the skipped steps of the second time."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=2.0), "mse")
    x, y = np.ones((STEPS * 4, 2), "float32"), np.ones(STEPS * 4, "float32")
    model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    x[0] = first
    model.fit(x, y, batch_size=4, epochs=5, initial_epoch=3, verbose=0, callbacks=[recorder])
    return [row.skipped_steps for row in recorder.epochs]


@pytest.mark.parametrize(("first", "skipped"), [(1.0, 0), (np.inf, 1)])
def test_steps_without_finite_gradients_are_counted(first: float, skipped: int) -> None:
    assert trained(EpochRecorder((), None), first) == [skipped, skipped]


def test_number_that_cannot_be_is_an_error() -> None:
    with pytest.raises(PrecisionError, match="epoch 4 has 1 steps, of which -"):
        trained(EpochRecorder((), 1))
