"""One process that runs a script up to its call of `fit`, under one variant, and looks at what the call says.

Imports TensorFlow; the stage itself does not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from halfstep import files
from halfstep.errors import HalfstepError, TaskError
from halfstep.params import Variant
from halfstep.prepare.trials import ComparedExamples, Look, TrialFailure
from halfstep.prepare.try_task import COMPARED_BATCHES, message_of
from halfstep.results.artifact import write_array
from halfstep.results.prepared import TEST_CLASSES
from halfstep.stats.resampling import check_metric
from halfstep.tasks import compiling, examples, fit_call, script, script_files, script_score, traced_types, user_code
from halfstep.tasks.classes import classes_of
from halfstep.tasks.examples import Batch
from halfstep.tasks.fit_call import FitCall
from halfstep.tasks.layer_calls import failed_layer
from halfstep.tasks.ready import ReadyTask, first_weights, test_metrics
from halfstep.tasks.spec import TaskSpec
from halfstep.tasks.step_call import StepModel
from halfstep.tasks.task import Task
from halfstep.tasks.variables import random_state_kept
from halfstep.tensorflow_import import keras, tf

_MISSING = (FileNotFoundError, NotADirectoryError, ImportError, tf.errors.NotFoundError)


def serve(
    connection: Connection,
    variant: Variant,
    spec: TaskSpec,
    seed: int,
    log: Path,
    directory: Path | None,
    first: Look | None = None,
) -> None:
    """What the process runs: sends a `Look`, or what ended it."""
    try:
        answer: Look | TrialFailure = look(spec, variant, seed, log, directory, first)
    except (HalfstepError, tf.errors.OpError) as error:
        answer = TrialFailure(message_of(error, spec, variant), layer=failed_layer(error))
        if not script.has_called_fit() and (cause := error.__cause__) is not None:
            answer = replace(answer, raised=user_code.describe(cause), is_missing=isinstance(cause, _MISSING))
    connection.send(answer)


def look(
    spec: TaskSpec, variant: Variant, seed: int, log: Path, directory: Path | None, first: Look | None = None
) -> Look:
    """Runs the script, and trains one step.

    Args:
        spec: the task.
        variant: under which the script runs.
        seed: of the training.
        log: where the script's output goes.
        directory: where the validation examples are written; None if another process writes them.
        first: what that process has seen.

    Raises:
        TaskError: the script, its data or its model cannot be used.
        PrecisionError: the variant is not in force.
    """
    directory = None if directory is None else directory.absolute()
    named = [files.resolve_data_path(name).absolute() for name in spec.task.depends]
    compiling.activate(spec, variant)
    no_strategy = tf.distribute.get_strategy()  # not at the import: it starts a thread, with which nothing is forked
    call = fit_call.captured(spec, variant, seed, log)
    assert call.site is not None, "it is the judged one"
    at_line = f"{spec.subject}, line {call.site.line},"
    if type(strategy := call.model.distribute_strategy) is not type(no_strategy):
        raise TaskError(
            f"{at_line} trains under {type(strategy).__name__}, which halfstep cannot measure: leave the strategy out, "
            "and train on one device"
        )
    fit, batch_size = _data(call, spec, at_line)
    with user_code.explained(at_line, "cannot be built", TaskError, is_script=True):
        fit.build()
    weights = first_weights(call.model)
    with user_code.explained(at_line, "has data that cannot be read", TaskError, is_script=True):
        first_batches = fit.first_batches(COMPARED_BATCHES)  # before the validation data, as `fit` does
        steps = fit.steps_per_epoch()
    with user_code.explained(at_line, "cannot be evaluated", TaskError, is_script=True):
        can_infer = _can_infer(fit)
        quality = (
            _quality(fit, spec, directory, first)
            if can_infer
            else ComparedExamples(speed_only=_without_outputs(call.model))
        )
    ready, scaled = _ready(fit, steps), compiling.scales_its_loss(call.model)
    compiling.put_in_force(ready, spec, variant)
    types = compiling.verify_types(ready, variant)
    with user_code.explained(at_line, "cannot be trained", TaskError, is_script=True):
        _train_a_step(fit)
    return Look(
        site=call.site,
        quality=quality,
        batch_size=batch_size,
        epochs=fit.epochs,
        steps_per_epoch=steps,
        steps_per_execution=int(call.model.steps_per_execution),
        can_infer=can_infer,
        held_out=fit.held_out,
        train_sha256=examples.sha256(first_batches),
        weights=weights,
        unnamed_files=_unnamed(script_files.files_read(), named),
        unscaled_float16=_is_unscaled(call.model, variant),
        unscaled=scaled and not compiling.scales_its_loss(call.model),
        lost_inputs=() if types is None else tuple(traced_types.lost_inputs(types, first_batches, call.model)),
    )


def _without_outputs(model: keras.Model) -> str:
    """Why the quality of a model that gives no outputs is not compared."""
    if not isinstance(model, StepModel):
        return "its model has no call()"
    without_input = (
        ", and one batch is timed again and again, without its input pipeline" if model.without_input else ""
    )
    return f"its training step is a function of its own{without_input}"


def _is_unscaled(model: keras.Model, variant: Variant) -> bool:
    """Whether small gradients of a step of the script's own are lost in float16."""
    return isinstance(model, StepModel) and variant.dtype_policy.scales_loss and not model.scales_loss


def _data(call: script.Call, spec: TaskSpec, at_line: str) -> tuple[FitCall, int]:
    """The call's data, and the number of examples in the first batch; errors as of `look`."""
    with user_code.explained(at_line, "has data that cannot be read", TaskError, is_script=True):
        fit = FitCall(call, spec.train.batch_size)
        batch_size = len(keras.tree.flatten(fit.first_batch)[0])
    if spec.train.batch_size is not None and not fit.takes_batch_size:
        raise TaskError(
            f"train.batch_size is {spec.train.batch_size}, and {at_line} makes its own batches, of {batch_size}: set "
            "train.batch_size to null"
        )
    return fit, batch_size


def _unnamed(read: Iterable[str], named: Iterable[Path]) -> tuple[str, ...]:
    """Those of the files that are read which are none of the named ones, and in none of the named folders."""
    folders = [path.resolve() for path in named]
    return tuple(sorted(path for path in read if not any(Path(path).is_relative_to(folder) for folder in folders)))


def _can_infer(fit: FitCall) -> bool:
    x, *_ = keras.utils.unpack_x_y_sample_weight(fit.first_batch)
    try:
        with random_state_kept():
            fit.call.model.predict_on_batch(x)
    except NotImplementedError:
        return False
    return True


def _quality(fit: FitCall, spec: TaskSpec, directory: Path | None, first: Look | None) -> ComparedExamples:
    """Reads the validation examples, and writes them; all of them also where the first ones are not as expected."""
    if fit.validation is None:
        return ComparedExamples(speed_only="it gives fit no validation data")
    read: list[Batch] = []
    try:
        with random_state_kept():
            batches = fit.validation_batches()
            read += islice(batches, COMPARED_BATCHES)
            digest = examples.sha256(batch.parts() for batch in read)
            is_as_expected = first is not None and digest == first.quality.sha256
            read += () if is_as_expected else batches
    except TaskError as error:
        return ComparedExamples(speed_only=f"it {error}")
    seen = ComparedExamples(sha256=digest, set_sha256="" if is_as_expected else examples.set_sha256(read))
    total = sum(map(len, read))
    if total < 2 or read[0].y is None:
        why = "its data have no targets" if total else "its validation data are empty"
        return replace(seen, speed_only=why)
    model, given = fit.call.model, spec.task.score
    if given is not None and ":" not in given:
        return _metric(model, read, given, seen, directory)
    scored = fit_call.score(fit, read[0], given)
    if scored is None:
        return replace(seen, speed_only="its model has no loss that depends on outputs and targets")
    read = [Batch(batch.x, batch.y, batch.sample_weight, fit_call.mask_of(model, batch.x)) for batch in read]
    outputs = model.predict_on_batch(read[0].x)
    subject = "its loss" if given is None else f"task.score = {given}"
    with user_code.explained(subject, "cannot be computed for single examples", TaskError, is_script=True):
        scores = scored[1](script_score.targets(read[0]), keras.tree.map_structure(np.asarray, outputs))
    if np.shape(scores) != (len(read[0]),):
        if given is not None:
            raise TaskError(
                f"{subject} returns shape {np.shape(scores)} for {len(read[0])} examples; it must return one number "
                f"for each, shape ({len(read[0])},)"
            )
        return replace(seen, speed_only="its loss is not a number for each example")
    if directory is not None:
        examples.write(directory, read)
        _write_classes(directory, read)
    return replace(seen, score_name=scored[0], examples=total - total // 2)


def _write_classes(directory: Path, read: Sequence[Batch]) -> None:
    """Writes the classes of the test examples, if they have some."""
    _, test = examples.halves([Batch(batch.y, batch.y) for batch in read])
    if (classes := classes_of(batch.y for batch in test)) is not None:
        write_array(directory / TEST_CLASSES, classes)


def _metric(
    model: keras.Model, read: list[Batch], given: str, seen: ComparedExamples, directory: Path | None
) -> ComparedExamples:
    """The quality by a metric of all examples, which is computed once."""
    name, metric = script_score.metric_of(model, given)
    read = [Batch(batch.x, batch.y, batch.sample_weight, fit_call.mask_of(model, batch.x)) for batch in read]
    whole = [(script_score.targets(batch), model.predict_on_batch(batch.x)) for batch in read]
    y, predicted = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *whole)
    with user_code.explained(f"task.score = {given}", "cannot be computed", TaskError, is_script=True):
        check_metric(metric, y, predicted)
    if directory is not None:
        examples.write(directory, read)
    total = sum(map(len, read))
    return replace(seen, score_name=name, score_kind="metric", examples=total - total // 2)


def _ready(fit: FitCall, steps: int) -> ReadyTask:
    """The model and the batches, without a test."""
    task = Task(model=fit.call.model, compile={}, train=None, test=None, score=lambda *_: None, score_name="none")
    return ReadyTask(
        task=task,
        training=fit_call.training_of(fit, steps),
        validation=None,
        test=fit.batches,
        keeps_predictions=False,
        test_metrics=lambda outputs: test_metrics(task, outputs),
        data_sha256="",
        own_fit=fit.fit,
    )


def _train_a_step(fit: FitCall) -> None:
    """Trains one step as `fit` does, without the script's callbacks."""
    values = fit.arguments | {"callbacks": None, "verbose": 0, "steps_per_epoch": 1, "validation_steps": None}
    values |= {"epochs": values["initial_epoch"] + 1}
    with warnings.catch_warnings(action="ignore"):  # of data that have more steps
        fit.call.fit(fit.call.model, **values)
