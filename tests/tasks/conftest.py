"""Modules with tasks of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import pytest

from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.prepare.inspection import inspect
from halfstep.prepare.trying import Inspection
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.results.training import SCORES, WEIGHTS
from halfstep.system import files
from halfstep.tasks.trial import Trial
from halfstep.train.training import TrainedTask, train

SOURCE = """
import sys

import keras
import numpy as np
import tensorflow as tf
from halfstep.tasks import Task

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")


def network():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="relu", name="hidden")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden))


def right(y_true, y_pred):
    return ((y_pred > 0.5) == (y_true > 0.5))[:, 0]


def options():
    return dict(
        model=network(),
        compile={"optimizer": "adam", "loss": "binary_crossentropy", "metrics": ["accuracy"]},
        train=(X, Y), validation=(X[:8], Y[:8]), test=(X[:30], Y[:30]),
        score=right, score_name="accuracy",
    )


def batches():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def changed(**changes):
    return Task(**(options() | changes))


def build(*, batch_size, seed):
    return changed()
"""

Own = Callable[..., TaskParams]


def prepare_task(task: TaskParams, train: TrainParams, directory: Path) -> TaskInfo:
    """What `prepare` does for a float32 baseline, in this process."""
    seen = inspect(Trial(task, ModelParams(), train, Variant(policy="float32"), train.seeds[0], directory=directory))
    for line in seen.lines:
        print(f"prepare: {line}")
    info = seen.info
    info.write(directory / TASK_INFO.name)
    files.write_manifest(directory)
    return info


def tried(trial: Trial) -> Inspection:
    """What `prepare` does for a candidate, in this process."""
    first = Inspection(TaskInfo(name="own", score_name="none", score_kind="score", examples=1))
    return inspect(trial, first)


def with_weights(trial: Trial, folder: Path) -> TrainedTask:
    """Trains a task, and writes the weights and the scores to a new folder, as `train` does."""
    result = train(trial)
    folder.mkdir()
    result.model.save_weights(folder / WEIGHTS)
    assert result.outputs is not None
    np.save(folder / SCORES, result.outputs)
    files.write_manifest(folder)
    return result


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Own]:
    """Writes a module with a task and more code, and returns the section `task` that names its function `build`."""
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)

    def write(code: str = "", **params: object) -> TaskParams:
        name = f"own_{tmp_path.name.replace('-', '_')}"
        Path(f"{name}.py").write_text(SOURCE + code)
        return TaskParams(**{"name": f"{name}:build", **params})  # type: ignore[arg-type]

    yield write
    keras.config.set_dtype_policy("float32")
    for name in set(sys.modules) - known:
        if name.startswith("own_"):
            del sys.modules[name]
