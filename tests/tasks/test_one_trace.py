"""The training step is traced once, and building the metrics before it changes neither weights nor random numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.system import files
from halfstep.tasks import building, compiling
from halfstep.tasks.ready import ReadyTask
from halfstep.tasks.trial import Trial
from halfstep.train.training import train
from tests.tasks.conftest import Own

TRAIN = TrainParams(batch_size=8, epochs=2)
LOSS_VARIABLES = 2  # of the mean loss, which exist from the start
NOISY = """
W = np.linspace(0.5, 2.0, 40).astype("float32")


def layers():
    return [
        keras.layers.Dense(8, activation="relu", name="hidden"), keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3), keras.layers.GaussianNoise(0.1),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = layers()

    def call(self, inputs, training=False):
        for part in self.parts:
            inputs = part(inputs, training=training) if isinstance(part, keras.layers.Dropout) else part(inputs)
        return inputs


def functional():
    return keras.Sequential([keras.Input((4,)), *layers()])


def subclassed():
    model = Subclassed()
    model(X[:2])
    return model


COMPILE = {"optimizer": "adam", "loss": "binary_crossentropy", "metrics": ["accuracy", "auc"]}
WEIGHTED = COMPILE | {"weighted_metrics": ["accuracy"]}
"""
RETURNED = {
    "functional": "changed(model=functional(), compile=COMPILE)",
    "without validation": "changed(model=functional(), compile=COMPILE, validation=None)",
    "subclassed": "changed(model=subclassed(), compile=COMPILE)",
    "sample weights": "changed(model=functional(), compile=WEIGHTED, train=(X, Y, W), validation=(X, Y, W))",
    "dataset": "changed(model=functional(), compile=COMPILE, train=batches().map(lambda x, y: (x, y, x[:, 0] ** 2)))",
    "steps at once": "changed(model=functional(), compile=COMPILE | {'steps_per_execution': 2})",
}


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Receives the data of each call of Keras's `train_step`: one for each trace."""
    calls: list[Any] = []
    original = keras.Model.train_step

    def counted(model: keras.Model, data: Any) -> Any:
        calls.append(data)
        return original(model, data)

    monkeypatch.setattr(keras.Model, "train_step", counted)
    return calls


@pytest.fixture(params=RETURNED)
def trial(own: Own, request: pytest.FixtureRequest) -> Trial:
    return prepared(own(f"{NOISY}\n\ndef build(*, batch_size, seed):\n    return {RETURNED[request.param]}\n"))


def prepared(task: TaskParams) -> Trial:
    """Describes the task without building it, which takes most of the time of a test."""
    info = TaskInfo(name=task.name, score_name="accuracy", score_kind="score", examples=30, steps_per_epoch=5)
    files.PREPARED.mkdir(parents=True)
    info.write(files.PREPARED / TASK_INFO.name)
    files.write_manifest(files.PREPARED)
    return Trial(task, ModelParams(), TRAIN, Variant(policy="float32"), 3)


def images_trial(directory: Path, policy: str = "float32") -> Trial:
    return Trial(TaskParams(), ModelParams(), TRAIN, Variant(policy=policy), 3, directory=directory)


def run_steps(task: ReadyTask, steps: int = 3) -> None:
    """Runs training steps as `profile` does."""
    task.model.make_train_function()
    batches = iter(task.training.equal_batches())
    for _ in range(steps):
        task.model.train_function(batches)


def values(task: ReadyTask) -> list[np.ndarray]:
    """Weights, moving statistics, the states of random numbers, and the state of the optimizer."""
    return [np.array(variable) for variable in [*task.model.variables, *task.model.optimizer.variables]]


def random_state() -> tuple[Any, ...]:
    return random.getstate(), np.random.random(8).tolist(), tf.random.uniform((8,)).numpy().tolist()


def test_training_traces_the_step_once(trial: Trial, traces: list[Any]) -> None:
    assert train(trial).failure is None
    assert len(traces) == 1


def test_training_on_images_traces_the_step_once(prepared_template: Path, traces: list[Any]) -> None:
    train(images_trial(prepared_template, "mixed_float16"))  # with the variables of loss scaling
    symbolic = [batch for batch in traces if not hasattr(batch[0], "numpy")]  # others look for lost gradients
    assert len(symbolic) == 1


def test_profile_traces_the_step_once(trial: Trial, traces: list[Any]) -> None:
    run_steps(building.ready(trial))
    assert len(traces) == 1


def test_profile_of_images_traces_the_step_once(prepared_template: Path, traces: list[Any]) -> None:
    run_steps(building.ready(images_trial(prepared_template)))
    assert len(traces) == 1


def test_metrics_built_before_change_no_weight_and_no_random_number(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, weights = [], []
    for is_built in (True, False):
        if not is_built:
            monkeypatch.setattr(compiling, "_build_metrics", lambda *_: None)
        task = building.ready(replace(trial, variant=Variant(policy="mixed_bfloat16")))
        assert (len(task.model.metrics_variables) > LOSS_VARIABLES) == is_built
        states.append(random_state())
        weights.append(values(task))
        run_steps(task)
        weights[-1] += values(task)
    assert states[0] == states[1]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


UNUSUAL = {
    "no call": """
class Pair(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = network()
        self.inner.build((None, 4))
        self.built = True

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.losses.binary_crossentropy(y, self.inner(x, training=True)))
        self.optimizer.apply(tape.gradient(loss, self.inner.trainable_variables), self.inner.trainable_variables)
        return {"loss": loss}


def build(*, batch_size, seed):
    return changed(model=Pair(), compile={"optimizer": "adam"})
""",
    "call that cannot be traced without values": """
class Eager(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, activation="sigmoid", dtype="float32")
        self.dense.build((None, 4))
        self.built = True

    def call(self, inputs):
        np.random.random(), float(inputs[0, 0])
        return self.dense(inputs)


def build(*, batch_size, seed):
    return changed(model=Eager(), compile={"optimizer": "adam", "loss": "mse", "metrics": ["mae"], "run_eagerly": True})
""",
    "call for training alone": """
class Training(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, activation="sigmoid", dtype="float32")
        self.dense.build((None, 4))
        self.built = True

    def call(self, inputs, training=False):
        if not training:
            raise RuntimeError("only for training")
        return self.dense(inputs)


def build(*, batch_size, seed):
    return changed(model=Training(), compile=COMPILE)
""",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_cannot_be_built_before_is_built_by_the_first_step(own: Own, name: str) -> None:
    task = building.ready(prepared(own(NOISY + UNUSUAL[name])))
    before = [np.array(variable) for variable in task.model.trainable_variables]
    task.model.fit(task.training.from_step(0, 5), steps_per_epoch=5, verbose=0, shuffle=False)
    after = [np.array(variable) for variable in task.model.trainable_variables]
    assert not any(np.array_equal(*pair) for pair in zip(before, after, strict=True))
