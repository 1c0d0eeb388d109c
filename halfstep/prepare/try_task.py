"""One process that builds a task of the user's own under one variant, tests it, and trains one step.

Imports TensorFlow; the stage itself does not.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import HalfstepError, TaskError
from halfstep.params import Variant
from halfstep.prepare.trials import TrialFailure, Tried
from halfstep.results.artifact import write_array
from halfstep.results.prepared import TEST_CLASSES
from halfstep.results.task import TaskInfo
from halfstep.tasks import compiling, examples, own, scoring, traced_types, user_code
from halfstep.tasks.classes import classes_of
from halfstep.tasks.layer_calls import failed_layer
from halfstep.tasks.ready import ReadyTask, from_task
from halfstep.tasks.spec import TaskSpec
from halfstep.tasks.task import Task
from halfstep.tasks.variables import random_state_kept
from halfstep.tensorflow_import import keras, tf

COMPARED_BATCHES = 8  # of each part of the data, to see whether the same seed gives the same data
RELATIVE = 1e-5  # of weights and scores
_AGAIN = (
    "when it is built again with the same seed; use `seed` where it shuffles, draws and initializes, so that all "
    "variants are trained from the same start"
)
_CURE = '; what cannot compute in this type needs dtype="float32", in plain Keras, too'


def serve(connection: Connection, variant: Variant, spec: TaskSpec, seed: int, is_baseline: bool) -> None:
    """What the process runs: sends what `describe` or `try_candidate` returns, or what ended it."""
    try:
        answer: TaskInfo | Tried | TrialFailure = (describe if is_baseline else try_candidate)(spec, variant, seed)
    except (HalfstepError, tf.errors.OpError) as error:
        answer = TrialFailure(message_of(error, spec, variant), layer=failed_layer(error))
    connection.send(answer)


def message_of(error: Exception, spec: TaskSpec, variant: Variant) -> str:
    """The message of what the user's code has raised under a variant, with a cure if its type may be the cause."""
    text = str(error) if isinstance(error, HalfstepError) else f"{spec.subject}: {user_code.describe(error)}"
    raised_by_user = not isinstance(error, HalfstepError) or error.__cause__ is not None
    return f"{text}{_CURE}" if raised_by_user and variant.dtype_policy.compute.bits < 32 else text


def describe(spec: TaskSpec, variant: Variant, seed: int) -> TaskInfo:
    """Fills the folder of the task's data, builds the task twice, checks it, and describes it.

    One training step is run, and the score or metric is computed with the initial weights.

    Args:
        spec: the task. Its own `prepare` fills its folder first, where there is one.
        variant: the baseline.
        seed: of the training.

    Raises:
        TaskError: the task cannot be used; the message says why.
        PrecisionError: the variant is not in force.
    """
    directory, subject = spec.directory, spec.subject
    directory.mkdir(parents=True, exist_ok=True)
    own.prepare(spec.task, directory.absolute())
    compiling.activate(spec, variant)
    ready = _ready(_task(spec, seed), spec, variant, seed)
    compiling.verify_types(ready, variant)
    can_infer = _can_infer(ready, spec)
    with user_code.explained(subject, "has data that cannot be read", TaskError):
        test_examples = _test_examples(ready, directory)
    first, created = _described(ready, subject, can_infer), _created(ready.task)
    del ready  # one model is alive at a time
    task = _task(spec, seed, quiet=True)
    shared = {name for name, value in _created(task).items() if name in created and created[name]() is value()}
    if "model" in shared:
        raise TaskError(f"{subject} returns the same Task.model in every call; create it inside the function")
    ready = _ready(task, spec, variant, seed)
    again = _described(ready, subject, can_infer)
    if problem := _difference(first, again, shared):
        raise TaskError(f"{subject} {problem}")
    is_tested = can_infer and ready.task.test is not None
    _try(ready, spec, is_tested=is_tested)
    if (steps := int(ready.model.steps_per_execution)) > 1:
        print(f"prepare: {spec.task.name}: timed with one step a call, not with {steps}", flush=True)
    return TaskInfo(
        name=spec.task.name,
        score_name=ready.task.score_name or "none",
        score_kind="score" if ready.task.metric is None else "metric",
        examples=test_examples,
        steps_per_epoch=ready.training.steps_per_epoch,
        data_sha256=hashlib.sha256("".join(first.data.values()).encode()).hexdigest(),
        speed_only=None if is_tested and ready.task.score_name else "train.epochs is 0",
        can_infer=can_infer,
        restarts=bool(ready.task.callbacks),
    )


def try_candidate(spec: TaskSpec, variant: Variant, seed: int) -> Tried:
    """Builds the task under a candidate, computes its score, and runs one training step; errors as of `describe`."""
    compiling.activate(spec, variant)
    ready = _ready(_task(spec, seed, quiet=True), spec, variant, seed)
    types = compiling.verify_types(ready, variant)
    is_tested = _can_infer(ready, spec) and ready.task.test is not None
    if is_tested:
        _first_scores(ready, spec.subject)
    _try(ready, spec, is_tested=is_tested)
    first_batches = ready.training.from_step(0, COMPARED_BATCHES)
    lost = () if types is None else tuple(traced_types.lost_inputs(types, first_batches, ready.model))
    return Tried(ready.training.steps_per_epoch, lost)


def _task(spec: TaskSpec, seed: int, *, quiet: bool = False) -> Task:
    keras.utils.set_random_seed(seed)
    return own.build(spec.task, batch_size=spec.train.batch_size, seed=seed, quiet=quiet)


def _ready(task: Task, spec: TaskSpec, variant: Variant, seed: int) -> ReadyTask:
    with user_code.explained(spec.subject, "has data that cannot be read", TaskError):
        ready = from_task(task, spec.train, seed)
        size = None if variant.batch_size is None else ready.training.examples_per_step(variant.batch_size)
    if size != variant.batch_size:
        raise TaskError(
            f"{spec.subject} makes batches of {size} and not of {variant.batch_size}, the batch_size of this entry of "
            "variants; make them of its argument batch_size"
        )
    compiling.put_in_force(ready, spec, variant)
    return compiling.with_input_of(ready, variant)


def _created(task: Task) -> dict[str, weakref.ref[Any]]:
    """What each call of the function should create, by its name in the task. Arrays have no state."""
    references = {}
    for name in ("model", "train", "validation", "test"):
        with suppress(TypeError):  # of a tuple
            references[name] = weakref.ref(getattr(task, name))
    return references


def _can_infer(ready: ReadyTask, spec: TaskSpec) -> bool:
    """Whether the model has outputs for inputs alone.

    Raises:
        TaskError: it has none, and it is tested.
    """
    try:
        with random_state_kept(), user_code.explained(spec.subject, "cannot be tested", TaskError):
            x, _ = next(scoring.pairs(ready.test))
            ready.model(x, training=False)
    except TaskError as error:
        if not isinstance(error.__cause__, NotImplementedError):
            raise
        if spec.train.epochs:
            raise TaskError(
                f"{spec.subject}: Task.model has no call(), which the test needs; write one, or set train.epochs to 0 "
                "to compare the speed alone"
            ) from None
        return False
    return True


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


def _described(ready: ReadyTask, subject: str, can_infer: bool) -> _Description:
    """Reads the data and computes the score with the initial weights."""
    with user_code.explained(subject, "has data that cannot be read", TaskError):
        data = _digest(ready)
        if data["test"] != _digest_of("test", ready.test):
            raise TaskError(f"{subject} gives Task.test in another order when it is read again; do not shuffle it")
    weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in ready.model.weights}
    is_tested = can_infer and ready.task.test is not None
    scores = _first_scores(ready, subject) if is_tested else np.empty(0)
    return _Description(weights, data, scores)


def _first_scores(ready: ReadyTask, subject: str) -> NDArray[np.float64]:
    """Those of the first batch of test data; empty for a task without a score of each example."""
    with user_code.explained(subject, "cannot be tested", TaskError):
        return scoring.first_scores(ready.task, ready.test, lambda inputs: ready.model(inputs, training=False))


def _difference(first: _Description, again: _Description, shared: Set[str]) -> str | None:
    """What is not the same in a second call of the function, and what to do; None if everything is.

    Args:
        first, again: of both calls.
        shared: what both calls have returned, by its name in the task.
    """
    if changed := [name for name in first.data if first.data[name] != again.data[name]]:
        if changed[0] in shared:
            return (
                f"returns the same Task.{changed[0]} in every call, with other data each time; create it inside the "
                "function"
            )
        return f"gives other data in Task.{changed[0]} {_AGAIN}"
    if list(map(np.shape, first.weights.values())) != list(map(np.shape, again.weights.values())):
        return f"has a model with other weights {_AGAIN}"
    pairs = zip(first.weights.items(), again.weights.values(), strict=True)
    if other := [path for (path, before), after in pairs if not _close(before, after)]:
        return f"has other initial weights ({other[0]}) {_AGAIN}"
    return None if _close(first.scores, again.scores) else f"gives another score with the same weights {_AGAIN}"


def _close(before: NDArray[Any], after: NDArray[Any]) -> bool:
    """Whether arrays are equal but for what `adapt` computes in another order."""
    if before.dtype.kind not in "fV":
        return np.array_equal(before, after)
    numbers, others = before.astype(np.float64), after.astype(np.float64)
    scale = float(np.max(np.abs(numbers), initial=0.0))
    return np.allclose(numbers, others, rtol=RELATIVE, atol=RELATIVE * scale, equal_nan=True)


def _digest(ready: ReadyTask) -> dict[str, str]:
    """A sha256 of the first batches of each part of the data.

    Raises:
        TaskError: a part is empty.
    """
    parts = {"train": ready.training.from_step(0, COMPARED_BATCHES), "validation": ready.validation, "test": ready.test}
    return {name: _digest_of(name, data) for name, data in parts.items() if data is not None}


def _digest_of(name: str, data: tf.data.Dataset) -> str:
    digest = examples.sha256(data.take(COMPARED_BATCHES))
    if not digest:
        raise TaskError(f"Task.{name} is empty; give at least one batch")
    return digest


def _test_examples(ready: ReadyTask, directory: Path) -> int:
    """Number of test examples, whose classes it writes, if they have some; 1 for a task without any."""
    if ready.task.test is None:
        return 1
    targets = [y for _, y in scoring.pairs(ready.test)]
    if (classes := classes_of(targets)) is not None:
        write_array(directory / TEST_CLASSES, classes)
    return sum(len(keras.tree.flatten(y)[0]) for y in targets)


def _try(ready: ReadyTask, spec: TaskSpec, *, is_tested: bool) -> None:
    """Computes the metric, and runs one training step: errors show here, not after a training."""
    model, task = ready.model, ready.task
    if is_tested:
        with user_code.explained(spec.subject, "cannot be tested", TaskError):
            scoring.check_metric_of(task, ready.test, lambda inputs: model(inputs, training=False))
    with user_code.explained(spec.subject, "cannot be trained", TaskError):
        model.fit(ready.training.batches(0, 1), steps_per_epoch=1, verbose=0, shuffle=False)
