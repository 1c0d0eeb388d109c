"""Trains a network and tests it; knows nothing of files and of MLflow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np

from stages import dataset, recipe
from stages.dataset import Prepared
from stages.errors import ModelError
from stages.params import ModelParams, TrainParams, Variant
from stages.train.callbacks import Epoch, EpochRecorder, StopWhenNotFinite, verbosity

TEST_BATCH_SIZE = 256  # fixed, so that predictions do not depend on the batch size of the training


@dataclass(frozen=True)
class Trained:
    """A training and its test.

    Attributes:
        model: the trained network.
        epochs: one row an epoch.
        failure: why the training ended early, for a numerical reason; None where it finished.
        train_time_s: seconds in `fit`, validation included; compilation is part of the first epoch.
        images: training images seen, over all epochs.
        probabilities: float32 `(test images, classes)`, in the order of the prepared test set; None after a failure.
        test_loss: mean cross-entropy on the test set; None after a failure.
        loss_scale: at the end; None without loss scaling.
    """

    model: keras.Model
    epochs: tuple[Epoch, ...]
    failure: str | None
    train_time_s: float
    images: int
    probabilities: np.ndarray | None
    test_loss: float | None
    loss_scale: float | None

    def test_accuracy(self, labels: np.ndarray) -> float | None:
        """Share of the test images whose most probable class is the right one; None after a failure."""
        if self.probabilities is None:
            return None
        return float(np.mean(self.probabilities.argmax(axis=1) == labels))


def train(
    prepared: Prepared,
    model: ModelParams,
    settings: TrainParams,
    variant: Variant,
    seed: int,
    receivers: tuple[Callable[[Epoch], None], ...] = (),
) -> Trained:
    """Trains `variant` from the weights of `seed`, and tests it on the test set.

    Args:
        prepared: the images.
        model, settings, variant: their sections of the parameters.
        seed: of the weights, the order of the images and the augmentation.
        receivers: called with each `Epoch` when it ends.

    Raises:
        DataError: a batch is larger than the training set.
        ModelError: the network cannot be built, or runs out of memory.
        PrecisionError: the variant is not in force.
    """
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
    recorder, guard = EpochRecorder(receivers), StopWhenNotFinite()
    started_s = time.perf_counter()
    _fit(network, prepared, settings, seed, steps, [recorder, guard])
    train_time_s = time.perf_counter() - started_s
    probabilities = None if guard.reason else predict(network, prepared)
    return Trained(
        model=network,
        epochs=tuple(recorder.epochs),
        failure=guard.reason or _not_finite(probabilities),
        train_time_s=train_time_s,
        images=len(recorder.epochs) * steps * settings.batch_size,
        probabilities=None if _not_finite(probabilities) else probabilities,
        test_loss=None if probabilities is None else _cross_entropy(probabilities, prepared.test.labels),
        loss_scale=recipe.loss_scale(network),
    )


def predict(network: keras.Model, prepared: Prepared) -> np.ndarray:
    """Class probabilities of the test images, float32 `(test images, classes)`, in their order."""
    batches = dataset.ordered_batches(prepared.test, TEST_BATCH_SIZE, threads=1).map(lambda images, _: images)
    return np.asarray(network.predict(batches, verbose=0), dtype=np.float32)


def _fit(
    network: keras.Model,
    prepared: Prepared,
    settings: TrainParams,
    seed: int,
    steps: int,
    callbacks: list[keras.callbacks.Callback],
) -> None:
    from tensorflow import errors

    try:
        network.fit(
            dataset.training_batches(prepared.train, settings, seed),
            epochs=settings.epochs,
            steps_per_epoch=steps,
            validation_data=dataset.ordered_batches(prepared.validation, TEST_BATCH_SIZE, settings.input_threads),
            callbacks=callbacks,
            shuffle=False,  # the batches are shuffled already
            verbose=verbosity(),
        )
    except errors.ResourceExhaustedError as error:
        raise ModelError(
            f"train.batch_size is {settings.batch_size}, for which the device's memory is too small; "
            "make it smaller, or choose a smaller model or data.image_size"
        ) from error


def _not_finite(probabilities: np.ndarray | None) -> str | None:
    if probabilities is None or np.isfinite(probabilities).all():
        return None
    return "the trained network's probabilities are not finite"


def _cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Mean negative logarithm of the right class's probability, cut at Keras's own smallest (1e-7)."""
    right = probabilities[np.arange(len(labels)), labels]
    loss = float(-np.log(np.clip(right, keras.config.epsilon(), 1.0)).mean())
    return loss if math.isfinite(loss) else None
