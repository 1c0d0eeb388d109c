"""What is computed before a training changes nothing that it draws."""

from __future__ import annotations

import numpy as np

from halfstep.tasks.variables import random_state_kept
from halfstep.tensorflow_import import keras


def test_prediction_before_a_training_changes_no_dropout() -> None:
    """Keras's recurrent layers draw in a prediction, too."""

    def output(*, predicts: bool, keeps: bool) -> float:
        keras.utils.set_random_seed(1)
        layers = [keras.Input((3, 2)), keras.layers.LSTM(8, dropout=0.5), keras.layers.Dropout(0.5)]
        model = keras.Sequential(layers)
        x = np.ones((4, 3, 2), np.float32)
        if predicts:
            with random_state_kept(model if keeps else None):
                model.predict_on_batch(x)
        return float(keras.ops.sum(model(x, training=True)))

    alone = output(predicts=False, keeps=False)
    assert output(predicts=True, keeps=True) == alone
    assert output(predicts=True, keeps=False) != alone, "else this test shows nothing"
