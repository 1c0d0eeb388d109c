"""Trains a task and tests it, without writing files and without MLflow."""

from __future__ import annotations

import math
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from halfstep.errors import HalfstepError, ModelError, TaskError, TrainingCodeError
from halfstep.machine import fingerprint, free_memory
from halfstep.params.schema import TrainParams
from halfstep.results.training import same_weights
from halfstep.system import files
from halfstep.system.files import require_free_space
from halfstep.tasks import building, precision, scoring, script_files, user_code
from halfstep.tasks.ready import ReadyTask, first_weights
from halfstep.tasks.scoring import NotFiniteError
from halfstep.tasks.trial import Trial
from halfstep.tensorflow_import import keras, tf
from halfstep.train.callbacks import EpochRecorder, StopWhenNotFinite
from halfstep.train.epochs import Epoch
from halfstep.train.fitting import Callbacks, Fit
from halfstep.train.numerics import located_overflow, located_underflow
from halfstep.train.result import TrainingFailure, TrainingResult
from halfstep.train.resume import Arrays, CheckpointCallback, Session, capture_state, state_variables
from halfstep.words.policies import FLOAT32

# A step that runs operation by operation keeps each result: 6.5 GiB instead of 1.9 for ResNet-50 at 128 px, batch 16.
_MEMORY_OF_LOOKING = 3


@dataclass(frozen=True)
class TrainedTask(TrainingResult):
    """A training and its test, with the task and the trained model."""

    ready: ReadyTask

    @property
    def model(self) -> keras.Model:
        """The trained model."""
        return self.ready.model


def train(
    trial: Trial,
    listeners: tuple[Callable[[Epoch], None], ...] = (),
    session: Session | None = None,
    folder: Path | None = None,
) -> TrainedTask:
    """Trains a task under a variant, and tests it on the test data.

    Args:
        trial: what is trained.
        listeners: called with each `Epoch` when it ends.
        session: checkpoint to resume from, and the request to end early; None for an uninterrupted training.
        folder: absolute path; where callbacks of a task or script write files, emptied first. None leaves those out.

    Raises:
        DataError: a batch is larger than the training set, or the disk has too little space for the results.
        ModelError, TaskError: the model cannot be built or trained, or runs out of memory.
        TrainingCodeError: the user's own code failed.
        PrecisionError: the variant is not in force.
    """
    session = session or Session()
    info = None if trial.task.script is None else trial.info
    read = {} if info is None else {Path(path).resolve(): digest for path, digest in (info.reads or {}).items()}
    ready = building.ready(trial)
    _require_space_for(ready)
    initial_weights = first_weights(ready.model)
    if info is not None and info.first_weights:
        _require_weights(trial, info.first_weights.get(trial.seed), initial_weights, read)
    is_watched = trial.variant.dtype_policy.compute.bits < FLOAT32.bits
    initial = capture_state(state_variables(ready.model)) if is_watched else {}
    callbacks = _fit(ready, trial, listeners, session, folder)
    trained = _test(ready, trial.train, callbacks, callbacks.checkpointer.train_time_s, initial_weights)
    return _located(trained, callbacks, initial) if is_watched else trained


def _require_weights(trial: Trial, expected: str | None, weights: str, read: Mapping[Path, str]) -> None:
    """Checks that a script starts from the weights that it had in `prepare`.

    Args:
        expected: as `first_weights`; None where they are not known.
        read: sha256 of the files that it read there.

    Raises:
        TaskError: it does not; the message names the file that made the difference.
    """
    if expected is None or trial.variant.dtype_policy.variables is not FLOAT32 or same_weights(expected, weights):
        return
    changed = [path for path, digest in read.items() if not path.is_file() or files.sha256_file(path) != digest]
    others = [path for path in sorted(script_files.files_read(temporary=True)) if Path(path) not in read]
    named = f"it reads {others[0]}, which it did not there" if others else "it reads something that changes"
    named = f"{changed[0]} has changed since" if changed else named
    raise TaskError(
        f"{trial.subject} starts from other weights than in `prepare`, so its accuracy would say nothing about the "
        f"precision: {named}; leave that out, so that every training starts anew"
    )


def _located(trained: TrainedTask, callbacks: Callbacks, initial: Arrays) -> TrainedTask:
    """The training with the layers in which numbers leave the range of 16 bits."""
    needed_bytes = _MEMORY_OF_LOOKING * 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if free_memory.free_bytes() < needed_bytes:  # the system would kill the training, which is at its end
        least = f"{needed_bytes / 2**30:.1f} GiB of free memory"
        print(f"train: the layers are not looked at for overflow and underflow, which takes {least}", file=sys.stderr)
        return trained
    latest = callbacks.checkpointer.latest
    start = (latest.step, latest.arrays) if latest.arrays else (0, initial)
    try:
        overflow = located_overflow(trained.ready, trained.failure, trained.loss_scale, start)
        is_scaled = trained.failure is None and trained.loss_scale is not None
        underflow = located_underflow(trained.ready) if is_scaled else None
    except Exception as error:  # of the user's own code, which was not written to run operation by operation
        print(f"train: the layers that overflow are not located: {user_code.describe(error)}", file=sys.stderr)
        return trained
    return replace(trained, overflow=overflow, underflow=underflow or None)


def _fit(
    ready: ReadyTask,
    trial: Trial,
    listeners: tuple[Callable[[Epoch], None], ...],
    session: Session,
    folder: Path | None = None,
) -> Callbacks:
    """Trains."""
    callbacks = _callbacks(listeners, session, trial.train, ready)
    with session.interruption.deferred(), _explain_own_code(trial, session), _explain_out_of_memory(trial):
        if folder is not None and (ready.own_fit is not None or ready.task.callbacks):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        if ready.own_fit is not None:
            ready.own_fit(
                epochs=trial.train.epochs,
                callbacks=callbacks,
                validation=ready.validation,
                folder=folder,
                verbose=0,
            )
        else:
            Fit(ready, trial.train.epochs, callbacks, folder).resume(session.start)
    return callbacks


def _callbacks(
    listeners: tuple[Callable[[Epoch], None], ...], session: Session, settings: TrainParams, ready: ReadyTask
) -> Callbacks:
    steps = 1 if ready.own_fit else ready.training.steps_per_epoch  # a script's epochs may differ
    counted = None if ready.own_fit else steps
    recorder = EpochRecorder(listeners, counted, session.start.epochs, session.start.epoch_time_s)
    nan_guard = StopWhenNotFinite(steps, session.start.not_finite_step)
    checkpointer = CheckpointCallback(recorder, nan_guard, session, settings, ready.training)
    return Callbacks(recorder, nan_guard, checkpointer)


def _test(
    ready: ReadyTask, settings: TrainParams, callbacks: Callbacks, train_time_s: float, initial_weights: str
) -> TrainedTask:
    failure, tested = callbacks.nan_guard.failure, None
    if failure is None:
        try:
            tested = ready.tested(ready.model.predict_on_batch)
        except NotFiniteError as error:
            failure = TrainingFailure(str(error))
    return TrainedTask(
        ready=ready,
        epochs=tuple(callbacks.recorder.epochs),
        failure=failure,
        train_time_s=train_time_s,
        outputs=None if tested is None else tested.outputs,
        tested={} if tested is None else ready.test_metrics(tested.outputs),
        permuted=None if tested is None else scoring.permuted_scores(ready.task, tested),
        loss_scale=precision.loss_scale(ready.model),
        steps_per_epoch=ready.training.steps_per_epoch,
        batch_size=settings.batch_size,
        keeps_predictions=ready.keeps_predictions,
        score_name=ready.task.score_name,
        data_sha256=ready.data_sha256,
        releases=fingerprint.versions(),
        initial_weights=initial_weights,
    )


def _require_space_for(ready: ReadyTask) -> None:
    """Fails before the training, not after it, if the disk has too little space for the results and checkpoints."""
    variables = [*ready.model.variables, *(ready.model.optimizer.variables if ready.model.optimizer else ())]
    state_bytes = sum(math.prod(variable.shape) * tf.dtypes.as_dtype(variable.dtype).size for variable in variables)
    copies = 3 + 3  # the model, DVC's cache and MLflow; two checkpoints while a third is written
    require_free_space(files.TRAIN, copies * state_bytes, "choose a smaller model")


@contextmanager
def _explain_own_code(trial: Trial, session: Session) -> Iterator[None]:
    """Turns what the user's own code raises during the training into one line."""
    try:
        yield
    except HalfstepError:
        raise
    except BaseException as error:
        if isinstance(error, OSError) and trial.task.script is None:  # what halfstep writes meanwhile
            raise
        if session.interruption.requested or not trial.runs_own_code:
            raise
        in_callback = f" in its callback {name}" if (name := user_code.callback_of(error)) else ""
        text = f"{trial.subject} cannot be trained{user_code.under_policy()}{in_callback}: {user_code.describe(error)}"
        if isinstance(error, OSError | MemoryError):  # the machine's fault, and no result
            raise TaskError(text) from error
        raise TrainingCodeError(text) from error


@contextmanager
def _explain_out_of_memory(trial: Trial) -> Iterator[None]:
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise ModelError(
            f"{trial.batch_key} is {trial.train.batch_size}, for which the memory of {_memory()} is too small; "
            "reduce it, or choose a smaller model or data.image_size; with a batch that fits, profile.find_max_batch: "
            "true finds the largest"
        ) from error


def _memory() -> str:
    gpus = fingerprint.gpus() if keras.distribution.list_devices("gpu") else []
    if gpus and "memory_gib" in gpus[0]:
        return f"{gpus[0]['name']} ({gpus[0]['memory_gib']} GiB)"
    return f"this machine ({fingerprint.memory_bytes() / 2**30:.0f} GiB)"
