"""Trains a task and tests it, without writing files and without MLflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from numpy.typing import NDArray

from stages import files, fingerprint, precision
from stages.errors import HalfstepError, ModelError, TaskError
from stages.files import require_free_space
from stages.own_model import OWN_MODEL
from stages.params import TrainParams, Variant
from stages.results.training import TrainingMetrics
from stages.tasks import building, user_code
from stages.tasks.batches import TrainingData
from stages.tasks.ready import ReadyTask
from stages.tasks.scoring import NotFiniteError
from stages.tasks.spec import TaskSpec
from stages.tensorflow_import import keras, tf
from stages.train.callbacks import Epoch, EpochRecorder, Failure, StopWhenNotFinite
from stages.train.fitting import Callbacks, Fit
from stages.train.resume import CheckpointCallback, Session


@dataclass(frozen=True)
class Trained:
    """A training and its test.

    Attributes:
        ready: the task with the trained model.
        epochs: the epochs that have ended.
        failure: why the training ended early, for a numerical reason; None if it finished.
        train_time_s: seconds in `fit`, with validation and compilation, without logging. After an interruption, the
            sum over all sessions, without repeated work.
        outputs: what is stored of the test, as `ReadyTask.outputs` returns it; None after a failure.
        loss_scale: final loss scale; None without loss scaling.
        batch_size: examples per step.
    """

    ready: ReadyTask
    epochs: tuple[Epoch, ...]
    failure: Failure | None
    train_time_s: float
    outputs: NDArray[Any] | None
    loss_scale: float | None
    batch_size: int

    @property
    def model(self) -> keras.Model:
        """The trained model."""
        return self.ready.model

    def metrics(self) -> TrainingMetrics:
        """Content of `metrics.json`."""
        images = len(self.epochs) * self.ready.training.steps_per_epoch * self.batch_size
        return TrainingMetrics(
            status="failed" if self.failure else "finished",
            **(vars(self.failure) if self.failure else {}),
            **({} if self.outputs is None else self.ready.test_metrics(self.outputs)),
            train_time_s=self.train_time_s,
            train_images_per_s=images / self.train_time_s if self.ready.keeps_predictions else None,
            loss_scale=self.loss_scale,
            batch_size=self.batch_size,
            data_sha256=self.ready.data_sha256,
            environment=fingerprint.trained_on(),
        )


def train(
    spec: TaskSpec,
    variant: Variant,
    seed: int,
    listeners: tuple[Callable[[Epoch], None], ...] = (),
    session: Session | None = None,
    known_to_fit: int | None = None,
) -> Trained:
    """Trains a variant and tests it on the test data.

    Args:
        spec: the task.
        variant: an entry of `variants`.
        seed: seed of the initial weights, the order of the examples and the augmentation.
        listeners: called with each `Epoch` when it ends.
        session: checkpoint to resume from, and the request to end early; None for an uninterrupted training.
        known_to_fit: batch size that fits in the memory of the device, for the error message.

    Raises:
        DataError: a batch is larger than the training set, or the disk has too little space for the results.
        ModelError, TaskError: the model cannot be built or trained, or runs out of memory.
        PrecisionError: the variant is not in force.
    """
    session = session or Session()
    ready = building.ready(spec, variant, seed)
    _require_space_for(ready)
    callbacks = _callbacks(listeners, session, spec.train, ready.training)
    explained = _explain_own_code(spec, session), _explain_out_of_memory(spec.train, known_to_fit)
    with session.interruption.deferred(), explained[0], explained[1]:
        Fit(ready, spec.train.epochs, callbacks).resume(session.start)
        train_time_s = callbacks.checkpointer.train_time_s
    return _test(ready, spec.train, callbacks, train_time_s)


def _callbacks(
    listeners: tuple[Callable[[Epoch], None], ...], session: Session, settings: TrainParams, training: TrainingData
) -> Callbacks:
    steps = training.steps_per_epoch
    recorder = EpochRecorder(listeners, steps, session.start.epochs, session.start.epoch_time_s)
    nan_guard = StopWhenNotFinite(session.start.not_finite_step)
    return Callbacks(recorder, nan_guard, CheckpointCallback(recorder, nan_guard, session, settings, training))


def _test(ready: ReadyTask, settings: TrainParams, callbacks: Callbacks, train_time_s: float) -> Trained:
    failure, outputs = callbacks.nan_guard.failure, None
    if failure is None:
        try:
            outputs = ready.outputs(ready.model.predict_on_batch)
        except NotFiniteError as error:
            failure = Failure(str(error))
    return Trained(
        ready=ready,
        epochs=tuple(callbacks.recorder.epochs),
        failure=failure,
        train_time_s=train_time_s,
        outputs=outputs,
        loss_scale=precision.loss_scale(ready.model),
        batch_size=settings.batch_size,
    )


def _require_space_for(ready: ReadyTask) -> None:
    """Fails before the training, not after it, if the disk has too little space for the results and checkpoints."""
    variables = [*ready.model.variables, *(ready.model.optimizer.variables if ready.model.optimizer else ())]
    state_bytes = sum(variable.numpy().nbytes for variable in variables)
    copies = 3 + 3  # the model, DVC's cache and MLflow; two checkpoints while a third is written
    require_free_space(files.TRAIN, copies * state_bytes, "choose a smaller model")


@contextmanager
def _explain_own_code(spec: TaskSpec, session: Session) -> Iterator[None]:
    """Turns what the user's own code raises during the training into one line."""
    try:
        yield
    except (HalfstepError, OSError):
        raise
    except BaseException as error:
        if session.interruption.requested or (spec.is_images and not OWN_MODEL.fullmatch(spec.model.name)):
            raise
        kind = ModelError if spec.is_images else TaskError
        raise kind(f"{spec.subject} cannot be trained: {user_code.describe(error)}") from error


@contextmanager
def _explain_out_of_memory(settings: TrainParams, fits: int | None) -> Iterator[None]:
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        known = f" ({fits} is known to fit)" if fits else ""
        raise ModelError(
            f"train.batch_size is {settings.batch_size}, for which the memory of {_memory()} is too small; "
            f"reduce it{known}, or choose a smaller model or data.image_size"
        ) from error


def _memory() -> str:
    found = fingerprint.gpus() if keras.distribution.list_devices("gpu") else []
    if found and "memory_gib" in found[0]:
        return f"{found[0]['name']} ({found[0]['memory_gib']} GiB)"
    return f"this machine ({psutil.virtual_memory().total / 2**30:.0f} GiB)"
