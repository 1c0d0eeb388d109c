"""Checks a task of the user's own before any training, and describes it. Imports TensorFlow."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from stages import files, precision
from stages.errors import TaskError
from stages.params import TaskParams, TrainParams, Variant
from stages.results.task import TASK_INFO, TaskInfo
from stages.tasks import own, scoring, user_code
from stages.tasks.ready import ReadyTask, from_task
from stages.tensorflow_import import keras, tf

COMPARED_BATCHES = 8  # of each part of the data, to see whether the same seed gives the same data
FLOAT32 = Variant(policy="float32")


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
        digest, examples = _digest(found), _test_examples(found)
        again = _digest(_built(task, train, seed))
        if digest["test"] != _digest_of("test", found.test):
            raise TaskError(f"{subject} gives Task.test in another order when it is read again; do not shuffle it")
    if changed := [name for name in digest if digest[name] != again[name]]:
        raise TaskError(
            f"{subject} gives other data in Task.{changed[0]} when it is built again with the same seed; use `seed` "
            "where it shuffles and draws, so that all variants are trained on the same data"
        )
    _try(found, subject)
    info = TaskInfo(
        name=task.name,
        score_name=found.task.score_name,
        score_kind="metric" if found.task.score is None else "score",
        examples=examples,
        steps_per_epoch=found.training.steps_per_epoch,
        data_sha256=hashlib.sha256("".join(digest.values()).encode()).hexdigest(),
    )
    info.write(directory / TASK_INFO.name)
    files.write_manifest(directory)
    return info


def _built(task: TaskParams, train: TrainParams, seed: int) -> ReadyTask:
    keras.utils.set_random_seed(seed)
    built = own.build(task, batch_size=train.batch_size, seed=seed)
    with user_code.explained(f"task.name = {task.name}", "has data that cannot be read", TaskError):
        return from_task(built, train, seed)


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
    """Computes the score on the first test data, and runs one training step: errors show here, not after a training."""
    model, task = found.model, found.task
    with user_code.explained(subject, "cannot be tested", TaskError):
        scoring.check(task, found.test, lambda inputs: model(inputs, training=False))
    with user_code.explained(subject, "cannot be trained", TaskError):
        model.compile(**task.compile, jit_compile=False)
        model.fit(found.training.from_step(0, 1), steps_per_epoch=1, verbose=0, shuffle=False)
