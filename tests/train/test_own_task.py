"""Trainings of tasks of one's own: results, sessions and saved models."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.results.training import MODEL, WEIGHTS
from halfstep.system import files
from halfstep.tasks import building
from halfstep.tasks.trial import Trial
from halfstep.train import saving
from halfstep.train.checkpoint_files import Checkpoint
from halfstep.train.resume import Session, capture_state, state_variables
from halfstep.train.training import TrainedTask, train
from tests.tasks.conftest import Own, prepare_task
from tests.tasks.conftest import own as own
from tests.train.test_resume import InterruptionAfter

TRAIN = TrainParams(batch_size=8, epochs=3)
DATASET = """
def build(*, batch_size, seed):
    import tensorflow as tf
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=seed)
    noisy = data.map(lambda x, y: (x + tf.random.normal(x.shape, seed=seed), y)).batch(batch_size)
    return Task(**(options() | {"train": noisy, "validation": None}))
"""


def trained(task: TaskParams, session: Session | None = None, policy: str = "float32") -> TrainedTask:
    variant = Variant(policy=policy)
    return train(Trial(task, ModelParams(), TRAIN, variant, 3), session=session)


@pytest.mark.parametrize(
    ("code", "columns"),
    [
        ("", ["loss", "accuracy", "val_loss", "val_accuracy"]),
        (DATASET, ["loss", "accuracy"]),
    ],
)
def test_history_and_metrics_are_those_of_the_task(own: Own, code: str, columns: list[str]) -> None:
    task = own(code)
    prepare_task(task, TRAIN, files.PREPARED)
    result = trained(task)
    assert [list(row.logs) for row in result.epochs] == [columns] * 3
    assert result.outputs is not None
    metrics = result.metrics()
    assert (metrics.status, metrics.train_images_per_s) == ("finished", None)
    assert metrics.data_sha256 == files.verify_manifest(files.PREPARED)


@pytest.mark.parametrize("code", ["", pytest.param(DATASET, marks=pytest.mark.slow)], ids=["arrays", "dataset"])
def test_interrupted_task_ends_with_the_same_weights(own: Own, code: str) -> None:
    task = own(code)
    prepare_task(task, TRAIN, files.PREPARED)
    kept = [Checkpoint()]
    uninterrupted = trained(task)
    with pytest.raises(SystemExit):
        trained(task, Session(save=kept.append, interruption=InterruptionAfter(7)))
    last = Checkpoint.from_bytes(kept[-1].to_bytes())
    assert last.step == 5 * len(last.epochs) or not code  # a dataset resumes at the end of an epoch
    resumed = trained(task, Session(last))
    expected, actual = (capture_state(state_variables(each.model)) for each in (uninterrupted, resumed))
    for name in expected:
        if not name.startswith("metrics/"):
            np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def test_model_of_keras_is_saved_whole(own: Own, tmp_path: Path) -> None:
    task = own()
    prepare_task(task, TRAIN, files.PREPARED)
    model = trained(task).model
    assert saving.model_file(model) == MODEL
    saving.save(model, tmp_path / MODEL)
    assert keras.saving.load_model(tmp_path / MODEL).count_params() == model.count_params()


SUBCLASSED = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, activation="sigmoid", dtype="float32")
        self.hidden = keras.layers.Dense(8)

    def call(self, x):
        return self.dense(self.hidden(x))


def build(*, batch_size, seed):
    model = Net()
    model(X[:1])
    return Task(**(options() | {"model": model}))
"""
OTHERS = {
    "lambda": (
        "def build(*, batch_size, seed):\n    m = network()\n"
        "    m = keras.Model(m.inputs, keras.layers.Lambda(lambda x: x, dtype='float32')(m.outputs[0]))\n"
        "    return Task(**(options() | {'model': m}))\n"
    ),
    "function": (
        "def mine(x):\n    return x\n\n\ndef build(*, batch_size, seed):\n    m = network()\n"
        "    m = keras.Model(m.inputs, keras.layers.Activation(mine, dtype='float32')(m.outputs[0]))\n"
        "    return Task(**(options() | {'model': m}))\n"
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_model_with_code_that_plain_keras_does_not_load_is_known(own: Own, name: str) -> None:
    task = own(OTHERS[name])
    prepare_task(task, TRAIN, files.PREPARED)
    model = building.ready(Trial(task, ModelParams(), TRAIN, Variant(policy="float32"), 3)).model
    assert saving.model_file(model) == WEIGHTS


def test_model_that_plain_keras_cannot_load_is_saved_as_weights(own: Own, tmp_path: Path) -> None:
    task = own(SUBCLASSED)
    prepare_task(task, TRAIN, files.PREPARED)
    first, second = trained(task).model, trained(task, policy="mixed_bfloat16").model
    assert saving.model_file(first) == WEIGHTS
    with files.atomic_path(tmp_path / WEIGHTS) as temporary_path:
        saving.save(first, temporary_path)
    second.load_weights(tmp_path / WEIGHTS)
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
