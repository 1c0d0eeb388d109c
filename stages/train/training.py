"""Trains a network and tests it, without writing files and without MLflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psutil

from stages import dataset, files, fingerprint, recipe
from stages.dataset import PreparedImages
from stages.errors import HalfstepError, ModelError
from stages.files import require_free_space
from stages.models import user_code
from stages.own_model import OWN_MODEL
from stages.params import ModelParams, TrainParams, Variant
from stages.results.training import TrainingMetrics
from stages.tensorflow_import import keras, tf
from stages.train.callbacks import Epoch, EpochRecorder, Failure, StopWhenNotFinite
from stages.train.fitting import TEST_BATCH_SIZE, Callbacks, Fit
from stages.train.resume import CheckpointCallback, Session


@dataclass(frozen=True)
class Trained:
    """A training and its test.

    Attributes:
        model: the trained network.
        epochs: the epochs that have ended.
        failure: why the training ended early, for a numerical reason; None if it finished.
        train_time_s: seconds in `fit`, with validation and compilation, without logging. After an interruption, the
            sum over all sessions, without repeated work.
        images: number of training images, over all epochs.
        probabilities: float32 `(test images, classes)`, in the order of the prepared test set; None after a failure.
        test_loss: mean cross-entropy on the test set; None after a failure.
        loss_scale: final loss scale; None without loss scaling.
        batch_size: images per step.
        data_sha256: sha256 of the manifest of the prepared images.
    """

    model: keras.Model
    epochs: tuple[Epoch, ...]
    failure: Failure | None
    train_time_s: float
    images: int
    probabilities: np.ndarray | None
    test_loss: float | None
    loss_scale: float | None
    batch_size: int
    data_sha256: str

    def metrics(self, labels: np.ndarray) -> TrainingMetrics:
        """Content of `metrics.json`, given the labels of the test set, `(test images,)`."""
        predicted = None if self.probabilities is None else self.probabilities.argmax(axis=1)
        return TrainingMetrics(
            status="failed" if self.failure else "finished",
            **(vars(self.failure) if self.failure else {}),
            test_accuracy=None if predicted is None else float(np.mean(predicted == labels)),
            test_loss=self.test_loss,
            train_time_s=self.train_time_s,
            train_images_per_s=self.images / self.train_time_s,
            loss_scale=self.loss_scale,
            batch_size=self.batch_size,
            data_sha256=self.data_sha256,
            environment=fingerprint.trained_on(),
        )


def train(
    prepared: PreparedImages,
    model: ModelParams,
    settings: TrainParams,
    variant: Variant,
    seed: int,
    listeners: tuple[Callable[[Epoch], None], ...] = (),
    session: Session | None = None,
    known_to_fit: int | None = None,
) -> Trained:
    """Trains a variant and tests it on the test set.

    Args:
        prepared: the images.
        model, settings, variant: sections of the parameters.
        seed: seed of the initial weights, the order of the images and the augmentation.
        listeners: called with each `Epoch` when it ends.
        session: checkpoint to resume from, and the request to end early; None for an uninterrupted training.
        known_to_fit: batch size that fits in the memory of the device, for the error message.

    Raises:
        DataError: a batch is larger than the training set, or the disk has too little space for the results.
        ModelError: the network cannot be built, or runs out of memory.
        PrecisionError: the variant is not in force.
    """
    session = session or Session()
    steps = dataset.steps_per_epoch(prepared.train, settings.batch_size)
    network = recipe.compiled_model(
        model,
        settings,
        variant,
        input_shape=prepared.image_shape,
        classes=len(prepared.classes),
        steps_per_epoch=steps,
        seed=seed,
    )
    _require_space_for(network, prepared)
    callbacks = _callbacks(listeners, session, settings, steps)
    explained = _explain_own_model(model, session), _explain_out_of_memory(settings, known_to_fit)
    with session.interruption.deferred(), explained[0], explained[1]:
        Fit(network, prepared, settings, seed, steps, callbacks).resume(session.start)
        train_time_s = callbacks.checkpointer.train_time_s
    return _test(network, prepared, settings, callbacks, train_time_s)


def _callbacks(
    listeners: tuple[Callable[[Epoch], None], ...], session: Session, settings: TrainParams, steps: int
) -> Callbacks:
    recorder = EpochRecorder(listeners, steps, session.start.epochs, session.start.epoch_time_s)
    nan_guard = StopWhenNotFinite(session.start.not_finite_step)
    return Callbacks(recorder, nan_guard, CheckpointCallback(recorder, nan_guard, session, settings, steps))


def _test(
    network: keras.Model, prepared: PreparedImages, settings: TrainParams, callbacks: Callbacks, train_time_s: float
) -> Trained:
    epochs, failure = tuple(callbacks.recorder.epochs), callbacks.nan_guard.failure
    probabilities = None if failure else predict(network, prepared)
    if probabilities is not None and not np.isfinite(probabilities).all():
        failure, probabilities = Failure("the trained network's probabilities are not finite"), None
    return Trained(
        model=network,
        epochs=epochs,
        failure=failure,
        train_time_s=train_time_s,
        images=len(epochs) * dataset.steps_per_epoch(prepared.train, settings.batch_size) * settings.batch_size,
        probabilities=probabilities,
        test_loss=None if probabilities is None else _cross_entropy(probabilities, prepared.test.labels),
        loss_scale=recipe.loss_scale(network),
        batch_size=settings.batch_size,
        data_sha256=prepared.sha256,
    )


def predict(network: keras.Model, prepared: PreparedImages) -> np.ndarray:
    """Class probabilities of the test images, float32 `(test images, classes)`."""
    batches = dataset.ordered_batches(prepared.test, TEST_BATCH_SIZE, threads=1).map(lambda images, _: images)
    return np.asarray(network.predict(batches, verbose=0), dtype=np.float32)


def _require_space_for(network: keras.Model, prepared: PreparedImages) -> None:
    """Fails before the training, not after it, if the disk has too little space for the results and checkpoints."""
    state_bytes = sum(variable.numpy().nbytes for variable in (*network.variables, *network.optimizer.variables))
    predictions_bytes = 4 * len(prepared.test) * len(prepared.classes)
    copies = 3 + 3  # model.keras, DVC's cache and MLflow; two checkpoints while a third is written
    require_free_space(files.TRAIN, copies * state_bytes + predictions_bytes, "choose a smaller model")


@contextmanager
def _explain_own_model(model: ModelParams, session: Session) -> Iterator[None]:
    """Turns what a layer of the user's own model raises during the training into one line."""
    try:
        yield
    except (HalfstepError, OSError):
        raise
    except BaseException as error:
        if session.interruption.requested or not OWN_MODEL.fullmatch(model.name):
            raise
        raise ModelError(f"model.name = {model.name} cannot be trained: {user_code.describe(error)}") from error


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


def _cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Mean negative log probability of the true class, clipped at `keras.config.epsilon()` as in Keras's loss."""
    true_class = probabilities[np.arange(len(labels)), labels]
    loss = float(-np.log(np.clip(true_class, keras.config.epsilon(), 1.0)).mean())
    return loss if math.isfinite(loss) else None
