"""One process that inspects a task of the user's own under one variant: builds it, tests it, and trains one step.

A function is called, and by the baseline's process twice; a script is run up to its call of `fit`. All that follows is
the same for both. Imports TensorFlow; the stage itself does not.
"""

from __future__ import annotations

import functools
import hashlib
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import HalfstepError, TaskError, one_line
from halfstep.prepare.trying import Inspection, TrialFailure
from halfstep.results.artifact import write_array
from halfstep.results.prepared import TEST_CLASSES
from halfstep.results.task import ScriptInfo, TaskInfo
from halfstep.stats.resampling import check_metric
from halfstep.system import files
from halfstep.tasks import compiling, examples, fit_call, own, scoring, script, script_files, script_score, user_code
from halfstep.tasks.examples import Batch
from halfstep.tasks.fit_call import FitCall
from halfstep.tasks.layer_calls import failed_layer
from halfstep.tasks.ready import ReadyTask, first_weights, from_task
from halfstep.tasks.step_call import StepModel
from halfstep.tasks.target_classes import classes_of
from halfstep.tasks.task import Task
from halfstep.tasks.traced_types import lost_inputs
from halfstep.tasks.trial import CallSite, Trial
from halfstep.tasks.variables import random_state_kept
from halfstep.tensorflow_import import keras, tf

COMPARED_BATCHES = 8  # of each part of the data, to see whether the same seed gives the same data
RELATIVE = 1e-5  # of weights and scores
_AGAIN = (
    "when it is built again with the same seed; use `seed` where it shuffles, draws and initializes, so that all "
    "variants are trained from the same start"
)
_TIMED_S, _MOST_TIMED_STEPS = 1.0, 20  # of steps, to say how long the trainings take
_FEWEST = 20  # examples to validate and to test on
_NO_STRATEGY = "_DefaultDistributionStrategy"  # of TensorFlow: one device
_ONE_BATCH = ", and one batch is timed again and again, without its input pipeline"
_CURE = '; what cannot compute in this type needs dtype="float32", in plain Keras, too'
_MISSING = (FileNotFoundError, NotADirectoryError, ImportError, tf.errors.NotFoundError)


def serve(connection: Connection, trial: Trial, first: Inspection | None) -> None:
    """What the process runs: sends what `inspect` returns, or what ended it."""

    def answer() -> None:
        try:
            answer: Inspection | TrialFailure = inspect(trial, first)
        except (HalfstepError, tf.errors.OpError) as error:
            answer = _failure(error, trial)
        connection.send(answer)

    fit_call.inside(trial, answer)


def _failure(error: Exception, trial: Trial) -> TrialFailure:
    """What the user's code has raised, with a cure if the variant's type may be the cause."""
    cause = error.__cause__ if isinstance(error, HalfstepError) else error
    text = str(error) if isinstance(error, HalfstepError) else f"{trial.subject}: {user_code.describe(error)}"
    is_users = not isinstance(error, HalfstepError) or error.__cause__ is not None
    return TrialFailure(
        text + (_CURE if is_users and trial.variant.dtype_policy.compute.bits < 32 else ""),
        raised="" if cause is None or trial.task.script is None else user_code.describe(cause),
        is_missing=isinstance(cause, _MISSING) and not script.has_called_fit(),
        layer=failed_layer(error),
    )


def inspect(trial: Trial, first: Inspection | None = None) -> Inspection:
    """Inspects a task.

    Args:
        trial: what is inspected.
        first: what the baseline's process has found; None in that process, which writes what the others read.

    Raises:
        TaskError: the task, its data or its model cannot be used; the message says why.
        PrecisionError: the variant is not in force.
    """
    if trial.task.script is not None:
        return _ScriptInspector(trial, first).run()
    return _FunctionInspector(trial, first).run()


class _Inspector:
    """Inspects a task; what it differs in by kind is in the classes below.

    Attributes:
        subject: names the task in messages.
    """

    is_script = False

    def __init__(self, trial: Trial, first: Inspection | None) -> None:
        self.trial, self.variant, self.first = trial, trial.variant, first
        self.subject, self.directory = trial.subject, trial.directory.absolute()
        self.depends = [files.resolve_data_path(name).absolute() for name in trial.task.depends]

    def explained(self, failure: str) -> Any:
        """As `user_code.explained`."""
        return user_code.explained(self.subject, failure, TaskError, is_script=self.is_script)

    def compiled(self, ready: ReadyTask, batches: Iterable[Any]) -> tuple[ReadyTask, list[str]]:
        """The task with the variant in force, and what its type cannot hold of the inputs of these batches."""
        compiling.put_in_force(ready, self.trial)
        types = compiling.verify_types(ready, self.variant)
        held = [] if self.variant.dtype_policy.variables.bits < 32 else [*_held_in_16_bits(ready.model)]
        self.held = [f"{self.trial.name} holds {_few(held)} in 16 bits"] if held else []
        ready = compiling.with_input_of(ready, self.variant)
        return ready, [] if types is None else list(lost_inputs(types, batches, ready.model))

    def can_infer(self, ready: ReadyTask) -> bool:
        """Whether the model has outputs for inputs alone."""
        try:
            with random_state_kept(), self.explained(f"cannot be {'evaluated' if self.is_script else 'tested'}"):
                x, _ = next(scoring.pairs(ready.test))
                ready.model(x, training=False)
        except TaskError as error:
            if not isinstance(error.__cause__, NotImplementedError):
                raise
            return False
        return True

    def train_a_step(self, ready: ReadyTask, fit: Callable[..., Any]) -> float | None:
        """Errors show here, not after a training.

        Returns:
            About the seconds of a step, in the first process; None in others.
        """

        def seconds(steps: int) -> float:
            began_s = time.monotonic()
            fit(ready.model, ready.training.batches(0, steps), steps_per_epoch=steps, verbose=0, shuffle=False)
            return time.monotonic() - began_s

        with self.explained("cannot be trained"):
            seconds(1)
        if self.first is not None:
            return None
        try:
            call_s = seconds(1)  # which has nothing to compile
            steps = min(_MOST_TIMED_STEPS, int(_TIMED_S / call_s), ready.training.steps_per_epoch - 1)
            return (max(0.0, seconds(1 + steps) - call_s) / steps) if steps else call_s
        except Exception:  # of the user's code, such as of data that end: the training says what is wrong
            return None

    def lines(self, ready: ReadyTask, *others: Iterable[str]) -> tuple[str, ...]:
        """What the user should know; of the first process also what is the same in each."""
        steps, own_lines = int(ready.model.steps_per_execution), list[str]()
        if self.first is None and steps > 1:
            own_lines.append(f"timed with one step a call, not with {steps}")
        name = self.trial.task.shown
        return tuple(f"{name}: {line}" for line in chain(own_lines, self.held, *others))


class _FunctionInspector(_Inspector):
    """A function that returns a `Task`. The baseline's process calls it twice: both calls must give the same."""

    def run(self) -> Inspection:
        """What is found."""
        if self.first is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            own.prepare(self.trial.task, self.directory)
        compiling.activate(self.trial)
        ready, lost = self._built(quiet=self.first is not None)
        can_infer = self._can_be_tested(ready)
        is_tested = can_infer and ready.task.test is not None
        test_examples, digest = 1, ""
        if self.first is None:
            with self.explained("has data that cannot be read"):
                test_examples = self._test_examples(ready)
            before, created = self._described(ready, is_tested), _created(ready.task)
            del ready  # one model is alive at a time
            ready, _ = self._built(quiet=True, beside=created)
            again = _created(ready.task)
            shared = {name for name in created.keys() & again.keys() if created[name]() is again[name]()}
            self._require_same(before, self._described(ready, is_tested), shared)
            digest = hashlib.sha256("".join(before[0].values()).encode()).hexdigest()
        elif is_tested:
            self._first_scores(ready)
        if is_tested:
            with self.explained("cannot be tested"):
                scoring.check_metric_of(ready.task, ready.test, lambda x: ready.model(x, training=False))
        step_s = self.train_a_step(ready, type(ready.model).fit)
        info = TaskInfo(
            name=self.trial.task.name,
            score_name=ready.task.score_name or "none",
            score_kind="score" if ready.task.metric is None else "metric",
            examples=test_examples,
            steps_per_epoch=ready.training.steps_per_epoch,
            data_sha256=digest,
            speed_only=None if is_tested and ready.task.score_name else "train.epochs is 0",
            can_infer=can_infer,
            restarts=bool(ready.task.callbacks),
        )
        return Inspection(info, lines=self.lines(ready, lost), step_s=step_s)

    def _built(self, *, quiet: bool, beside: dict[str, weakref.ref[Any]] | None = None) -> tuple[ReadyTask, list[str]]:
        keras.utils.set_random_seed(self.trial.seed)
        task = own.build(self.trial.task, batch_size=self.trial.train.batch_size, seed=self.trial.seed, quiet=quiet)
        if beside and "model" in beside and beside["model"]() is task.model:
            raise TaskError(f"{self.subject} returns the same Task.model in every call; create it inside the function")
        with self.explained("has data that cannot be read"):
            ready, asked = from_task(task, self.trial.train, self.trial.seed), self.variant.batch_size
            size = None if asked is None else ready.training.examples_per_step(asked)
        if size != asked:
            raise TaskError(
                f"{self.subject} makes batches of {size} and not of {asked}, the batch_size of this entry of variants; "
                "make them of its argument batch_size"
            )
        return self.compiled(ready, ready.training.from_step(0, COMPARED_BATCHES))

    def _can_be_tested(self, ready: ReadyTask) -> bool:
        can_infer = self.can_infer(ready)
        if not can_infer and self.trial.train.epochs:
            raise TaskError(
                f"{self.subject}: Task.model has no call(), which the test needs; write one, or set train.epochs to 0 "
                "to compare the speed alone"
            )
        return can_infer

    def _test_examples(self, ready: ReadyTask) -> int:
        """Number of test examples, whose classes it writes, if they have some; 1 for a task without any."""
        if ready.task.test is None:
            return 1
        targets = [y for _, y in scoring.pairs(ready.test)]
        _write_classes(self.directory, targets)
        return sum(len(keras.tree.flatten(y)[0]) for y in targets)

    def _first_scores(self, ready: ReadyTask) -> NDArray[np.float64]:
        """Those of the first batch of test data; empty for a task without a score of each example."""
        with self.explained("cannot be tested"):
            return scoring.first_scores(ready.task, ready.test, lambda x: ready.model(x, training=False))

    def _described(self, ready: ReadyTask, is_tested: bool) -> tuple[dict[str, str], dict[str, Any], NDArray[Any]]:
        """What must be the same in a second call: sha256 of each part of the data, initial weights, first scores."""
        first = ready.training.from_step(0, COMPARED_BATCHES)
        parts = {"train": first, "validation": ready.validation, "test": ready.test}
        with self.explained("has data that cannot be read"):
            data = {name: _digest_of(name, part) for name, part in parts.items() if part is not None}
            if data["test"] != _digest_of("test", ready.test):
                raise TaskError(
                    f"{self.subject} gives Task.test in another order when it is read again; do not shuffle it"
                )
        weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in ready.model.weights}
        return data, weights, self._first_scores(ready) if is_tested else np.empty(0)

    def _require_same(self, first: Any, again: Any, shared: set[str]) -> None:
        (data, weights, scores), (other_data, other_weights, other_scores) = first, again
        pairs = zip(weights.items(), other_weights.values(), strict=False)
        problem: str | None = None
        if changed := [name for name in data if data[name] != other_data[name]]:
            problem = f"gives other data in Task.{changed[0]} {_AGAIN}"
            if changed[0] in shared:
                problem = (
                    f"returns the same Task.{changed[0]} in every call, with other data each time; create it inside "
                    "the function"
                )
        elif list(map(np.shape, weights.values())) != list(map(np.shape, other_weights.values())):
            problem = f"has a model with other weights {_AGAIN}"
        elif other := [path for (path, before), after in pairs if not _close(before, after)]:
            problem = f"has other initial weights ({other[0]}) {_AGAIN}"
        elif not _close(scores, other_scores):
            problem = f"gives another score with the same weights {_AGAIN}"
        if problem:
            raise TaskError(f"{self.subject} {problem}")


class _ScriptInspector(_Inspector):
    """A script up to its call of `fit`. What later processes see is compared with what the first one has."""

    is_script = True

    def run(self) -> Inspection:
        """What is found."""
        call = script.call()
        assert call.site is not None, "it is the judged one"
        self.subject = f"{self.trial.subject}, line {call.site.line},"
        if type(strategy := call.model.distribute_strategy).__name__ != _NO_STRATEGY:
            raise TaskError(
                f"{self.subject} trains under {type(strategy).__name__}, which halfstep cannot measure: leave the "
                "strategy out, and train on one device"
            )
        fit = self._data(call)
        with self.explained("cannot be built"):
            fit.build()
        weights = first_weights(call.model)
        with self.explained("has data that cannot be read"):
            first_batches = fit.first_batches(COMPARED_BATCHES)  # before the validation data, as `fit` does
            steps = fit.steps_per_epoch()
        ready = fit_call.untested_task(fit, steps)
        with self.explained("cannot be evaluated"):
            can_infer = self.can_infer(ready)
            quality = self._quality(fit) if can_infer else {"speed_only": _without_outputs(call.model)}
        scaled = compiling.scales_its_loss(call.model)
        ready, lost = self.compiled(ready, first_batches)
        step_s = self.train_a_step(ready, call.fit)
        unscaled = scaled and not compiling.scales_its_loss(call.model)
        size = len(keras.tree.flatten(fit.first_batch)[0])
        return Inspection(
            TaskInfo(
                name=self.trial.task.shown,
                **{"score_name": "none", "score_kind": "score", "examples": 1} | quality,
                steps_per_epoch=steps,
                data_sha256=examples.sha256(first_batches),
                script=ScriptInfo(line=call.site.line, epochs=fit.epochs, batch_size=size),
                can_infer=can_infer,
                restarts=True,
            ),
            weights=weights,
            reads=tuple(self._reads),
            compared=self._compared,
            lines=(
                *self._site_lines(call.site, fit),
                *self.lines(ready, self._scaling(call.model, unscaled), lost),
            ),
            seconds=call.site.seconds,
            step_s=step_s,
        )

    def _data(self, call: script.Call) -> FitCall:
        """The call's data; errors as of `inspect`."""
        with self.explained("has data that cannot be read"):
            fit, size = FitCall(call, self.trial.train.batch_size), self.trial.train.batch_size
            own_size = len(keras.tree.flatten(fit.first_batch)[0])
        if size not in (None, own_size) and not fit.takes_batch_size:
            raise TaskError(
                f"train.batch_size is {size}, and {self.subject} makes its own batches, of {own_size}: set "
                "train.batch_size to null"
            )
        return fit

    _compared = ("", "")

    def _quality(self, fit: FitCall) -> dict[str, Any]:
        """What the quality is judged by, as fields of `TaskInfo`. The first process writes the examples.

        All of them are read also where the first ones are not as expected.
        """
        if fit.validation is None:
            assert fit.call.site is not None, "it is the judged one"
            of_batch = f"its training step is {fit.call.site.step}{_ONE_BATCH}"
            return {"speed_only": of_batch if fit.call.site.step else "it gives fit no validation data"}
        read: list[Batch] = []
        try:
            with random_state_kept():
                batches = fit.validation_batches()
                read += islice(batches, COMPARED_BATCHES)
                digest = examples.sha256(batch.parts() for batch in read)
                is_as_expected = self.first is not None and digest == self.first.compared[0]
                read += () if is_as_expected else batches
        except TaskError as error:
            return {"speed_only": f"it {error}"}
        self._compared = digest, "" if is_as_expected else examples.set_sha256(read)
        total = sum(map(len, read))
        if 0 < total < _FEWEST:
            return {"speed_only": f"it validates on {total} examples, of which half are the test: too few to judge by"}
        if not total or read[0].y is None:
            return {"speed_only": "its data have no targets" if total else "its validation data are empty"}
        name, kind = self._score(fit, read)
        if kind is None:
            return {"speed_only": name}
        return {"score_name": name, "score_kind": kind, "examples": total - total // 2}

    def _score(self, fit: FitCall, read: list[Batch]) -> tuple[str, str | None]:
        """Name and kind of the score, which is computed once; or why there is none, and None."""
        model, given = fit.call.model, self.trial.task.score
        is_metric = given is not None and ":" not in given
        subject = "its loss" if given is None else f"task.score = {given}"
        scored: Any = (
            script_score.metric_of(model, given) if is_metric and given else fit_call.score(fit, read[0], given)
        )
        if scored is None:
            return "its model has no loss that depends on outputs and targets", None
        read = [Batch(*batch.parts()[:3], fit_call.mask_of(model, batch.x)) for batch in read]
        scored_batches = read if is_metric else read[:1]
        pairs = [(script_score.targets(batch), model.predict_on_batch(batch.x)) for batch in scored_batches]
        y, predicted = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *pairs)
        failure = "cannot be computed" if is_metric else "cannot be computed for single examples"
        with user_code.explained(subject, failure, TaskError, is_script=True):
            shape = () if is_metric else np.shape(scored[1](y, predicted))
            if is_metric:
                check_metric(scored[1], y, predicted)
        if not is_metric and shape != (size := (len(read[0]),)):
            if given is None:
                return "its loss is not a number for each example", None
            raise TaskError(
                f"{subject} returns shape {shape} for {size[0]} examples; it must return one number for each, shape "
                f"{size}"
            )
        if self.first is None:
            examples.write(self.directory, read)
            if not is_metric:
                _, test = examples.halves([Batch(batch.y, batch.y) for batch in read])
                _write_classes(self.directory, [batch.y for batch in test])
        return scored[0], "metric" if is_metric else "score"

    def _scaling(self, model: keras.Model, unscaled: bool) -> Iterator[str]:
        scales_loss = self.variant.dtype_policy.scales_loss
        if isinstance(model, StepModel) and scales_loss and not model.scales_loss:
            yield (
                f"its step scales no loss in {self.trial.name}, so that small gradients are lost: this variant shows "
                "the speed alone"
            )
        if unscaled:
            yield "its LossScaleOptimizer is used where the policy is mixed_float16, and nowhere else"

    def _site_lines(self, site: CallSite, fit: FitCall) -> Iterator[str]:
        """What is known of the call; the first process says it."""
        name, step = self.trial.task.shown, site.step
        if self.first is not None:
            return
        lines = ", ".join(map(str, site.later_lines))
        which = "task.fit names another, or last" if step is None else "task.step names a function of all of them"
        later = f"; later ones (line {lines}) are not: {which}" if lines else ""
        taken = "the call of fit" if step is None else f"the first call of {step}"
        yield f"{name}: {taken} in line {site.line} is taken{later}"
        if site.number > 1:
            before = "1 before it is" if site.number == 2 else f"{site.number - 1} before it are"
            yield f"{name}: {before} trained once, and all variants go on from there"
        if site.is_in_loop:
            yield f"{name} calls fit in a loop: one training of several is judged"
        yield from (f"{name}: {text}" for text in site.notes)
        if fit.held_out:
            yield (
                f"{name} has no validation data: the last fifth of its training arrays is held out, which changes the "
                "script"
            )
        if isinstance(fit.arguments["x"], keras.utils.PyDataset) and not self.depends:
            yield (
                f"{name} reads its examples in fit, which is not seen: name their folder in task.depends, so that a "
                "change of it runs the stages again"
            )
        if named := [path for path in self._reads if files.WORK_DIR.name not in Path(path).parts]:
            yield f"{name} reads {_few(named)}: an edit runs the stages again"
        if unseen := sorted(set(self._unlisted_reads) - set(self._reads)):
            yield (
                f"{name} reads {_few(unseen)}, which task.depends does not name: add it, or its folder, so that a "
                "change of it runs the stages again"
            )

    @functools.cached_property
    def _reads(self) -> list[str]:
        """What is looked at again at each start."""
        found = set(script_files.files_read_in(self.trial.task.import_folders))
        return [path for path in self._unlisted_reads if path in found]

    @functools.cached_property
    def _unlisted_reads(self) -> list[str]:
        named = [path.resolve() for path in self.depends]
        return sorted(path for path in script_files.files_read() if not any(map(Path(path).is_relative_to, named)))


def _held_in_16_bits(model: keras.Model) -> Iterator[str]:
    """Paths of the variables of the model and of its optimizer that a layer's own dtype, or the optimizer, holds so."""
    optimizer = () if model.optimizer is None else model.optimizer.variables
    yield from (
        item.path
        for item in (*model.variables, *optimizer)
        if keras.backend.standardize_dtype(item.dtype) in ("float16", "bfloat16")
    )


def _few(paths: list[str]) -> str:
    others = f" and {len(paths) - 1:,} more" if paths[1:] else ""
    return f"{one_line(paths[0], 200)}{others}"


def _without_outputs(model: keras.Model) -> str:
    """Why the quality of a model that gives no outputs is not compared."""
    if not isinstance(model, StepModel):
        return "its model has no call()"
    return f"its training step is a function of its own{_ONE_BATCH if model.without_input else ''}"


def _write_classes(directory: Path, targets: Sequence[Any]) -> None:
    """Writes the classes of the test examples, if they have some."""
    if (classes := classes_of(targets)) is not None:
        write_array(directory / TEST_CLASSES, classes)


def _created(task: Task) -> dict[str, weakref.ref[Any]]:
    """What each call of the function should create, by its name in the task. Arrays have no state."""
    references = {}
    for name in ("model", "train", "validation", "test"):
        with suppress(TypeError):  # of a tuple
            references[name] = weakref.ref(getattr(task, name))
    return references


def _close(before: NDArray[Any], after: NDArray[Any]) -> bool:
    """Whether arrays are equal but for what `adapt` computes in another order."""
    if before.dtype.kind not in "fV":
        return np.array_equal(before, after)
    numbers, others = before.astype(np.float64), after.astype(np.float64)
    scale = float(np.max(np.abs(numbers), initial=0.0))
    return np.allclose(numbers, others, rtol=RELATIVE, atol=RELATIVE * scale, equal_nan=True)


def _digest_of(name: str, data: tf.data.Dataset) -> str:
    digest = examples.sha256(data.take(COMPARED_BATCHES))
    if not digest:
        raise TaskError(f"Task.{name} is empty; give at least one batch")
    return digest
