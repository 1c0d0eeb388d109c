"""Checks a task of the user's own before any training, and describes it. Imports TensorFlow."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages import files, precision
from stages.errors import TaskError
from stages.params import TaskParams, TrainParams, Variant
from stages.results.task import TASK_INFO, TaskInfo
from stages.tasks import own, scoring, user_code
from stages.tasks.ready import ReadyTask, from_task
from stages.tensorflow_import import keras, tf

COMPARED_BATCHES = 8  # of each part of the data, to see whether the same seed gives the same data
RELATIVE = 1e-5  # of weights and scores
FLOAT32 = Variant(policy="float32")
_SAME = "use `seed` where it shuffles, draws and initializes, so that all variants are trained from the same start"


def prepare_task(task: TaskParams, train: TrainParams, directory: Path) -> TaskInfo:
    """Fills the folder of the task's data, builds the task, checks it, and writes `task.json` and the manifest.

    The task is built with the first of `train.seeds`, in float32. One training step is run, and the score or metric is
    computed with the initial weights.

    Args:
        task, train: sections of the parameters.
        directory: folder of the prepared data, which the task's own `prepare` fills first, where there is one.

    Raises:
        TaskError: the task cannot be used; the message says why.
    """
    directory.mkdir(parents=True, exist_ok=True)
    own.prepare(task, directory.absolute())
    subject, seed = f"task.name = {task.name}", train.seeds[0]
    precision.activate(FLOAT32, require_gpu=train.require_gpu)
    found = _built(task, train, seed)
    with user_code.explained(subject, "has data that cannot be read", TaskError):
        examples = _test_examples(found)
    first = _described(found, subject)
    del found  # one model is alive at a time
    found = _built(task, train, seed)
    again = _described(found, subject)
    if problem := _difference(first, again):
        raise TaskError(f"{subject} {problem} when it is built again with the same seed; {_SAME}")
    _try(found, subject)
    info = TaskInfo(
        name=task.name,
        score_name=found.task.score_name,
        score_kind="metric" if found.task.score is None else "score",
        examples=examples,
        steps_per_epoch=found.training.steps_per_epoch,
        data_sha256=hashlib.sha256("".join(first.data.values()).encode()).hexdigest(),
    )
    info.write(directory / TASK_INFO.name)
    files.write_manifest(directory)
    return info


def _built(task: TaskParams, train: TrainParams, seed: int) -> ReadyTask:
    keras.utils.set_random_seed(seed)
    built = own.build(task, batch_size=train.batch_size, seed=seed)
    with user_code.explained(f"task.name = {task.name}", "has data that cannot be read", TaskError):
        return from_task(built, train, seed)


@dataclass(frozen=True)
class _Description:
    """What must be the same when a task is built again.

    Attributes:
        weights: initial weights, by path.
        data: a sha256 of the first batches of each part of the data, by name.
        scores: of the first test data with the initial weights; empty with a metric, which takes all of them.
    """

    weights: dict[str, NDArray[Any]]
    data: dict[str, str]
    scores: NDArray[np.float64]


def _described(found: ReadyTask, subject: str) -> _Description:
    """Reads the data and computes the score with the initial weights."""
    with user_code.explained(subject, "has data that cannot be read", TaskError):
        data = _digest(found)
        if data["test"] != _digest_of("test", found.test):
            raise TaskError(f"{subject} gives Task.test in another order when it is read again; do not shuffle it")
    weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in found.model.weights}
    with user_code.explained(subject, "cannot be tested", TaskError):
        scores = scoring.first_scores(found.task, found.test, lambda inputs: found.model(inputs, training=False))
    return _Description(weights, data, scores)


def _difference(first: _Description, again: _Description) -> str | None:
    """What is not the same, in words; None if everything is."""
    if changed := [name for name in first.data if first.data[name] != again.data[name]]:
        return f"gives other data in Task.{changed[0]}"
    if list(map(np.shape, first.weights.values())) != list(map(np.shape, again.weights.values())):
        return "has a model with other weights"
    pairs = zip(first.weights.items(), again.weights.values(), strict=True)
    if other := [path for (path, before), after in pairs if not _close(before, after)]:
        return f"has other initial weights ({other[0]})"
    return None if _close(first.scores, again.scores) else "gives another score with the same weights"


def _close(before: NDArray[Any], after: NDArray[Any]) -> bool:
    """Whether arrays are equal but for what `adapt` computes in another order."""
    if before.dtype.kind not in "fV":
        return np.array_equal(before, after)
    numbers, others = before.astype(np.float64), after.astype(np.float64)
    scale = float(np.max(np.abs(numbers), initial=0.0))
    return np.allclose(numbers, others, rtol=RELATIVE, atol=RELATIVE * scale, equal_nan=True)


def _digest(found: ReadyTask) -> dict[str, str]:
    """A sha256 of the first batches of each part of the data.

    Raises:
        TaskError: a part is empty.
    """
    parts = {"train": found.training.from_step(0, COMPARED_BATCHES), "validation": found.validation, "test": found.test}
    return {name: _digest_of(name, data) for name, data in parts.items() if data is not None}


def _digest_of(name: str, data: tf.data.Dataset) -> str:
    digest, batches = hashlib.sha256(), 0
    for batch in data.take(COMPARED_BATCHES):
        batches += 1
        for leaf in keras.tree.flatten(batch):
            array = np.asarray(leaf)
            array = array.astype(str) if array.dtype == object else np.ascontiguousarray(array)  # object: strings
            digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    if not batches:
        raise TaskError(f"Task.{name} is empty; give at least one batch")
    return digest.hexdigest()


def _test_examples(found: ReadyTask) -> int:
    return sum(len(keras.tree.flatten(y)[0]) for _, y in scoring.pairs(found.test))


def _try(found: ReadyTask, subject: str) -> None:
    """Computes the metric, and runs one training step: errors show here, not after a training."""
    model, task = found.model, found.task
    with user_code.explained(subject, "cannot be tested", TaskError):
        scoring.check_metric_of(task, found.test, lambda inputs: model(inputs, training=False))
    with user_code.explained(subject, "cannot be trained", TaskError):
        model.compile(**task.compile, jit_compile=False)
        model.fit(found.training.from_step(0, 1), steps_per_epoch=1, verbose=0, shuffle=False)
