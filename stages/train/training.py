"""Trains a network and tests it; writes nothing, and knows nothing of MLflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import keras
import numpy as np
import psutil
import tensorflow as tf

from stages import dataset, files, recipe
from stages.dataset import Prepared
from stages.environment import fingerprint
from stages.errors import ModelError
from stages.files import require_free_space
from stages.params import ModelParams, TrainParams, Variant
from stages.train.callbacks import Epoch, EpochRecorder, Failure, StopWhenNotFinite
from stages.train.fitting import TEST_BATCH_SIZE, Fit
from stages.train.resuming import Keeper, Sitting


@dataclass(frozen=True)
class Trained:
    """A training and its test.

    Attributes:
        model: the trained network.
        epochs: one row an epoch.
        failure: why the training ended early, for a numerical reason; None where it finished.
        train_time_s: seconds in `fit`, validation included; compilation is part of the first epoch, logging of none.
            Over all sittings where it was interrupted, without what was done twice.
        images: training images seen, over all epochs.
        probabilities: float32 `(test images, classes)`, in the order of the prepared test set; None after a failure.
        test_loss: mean cross-entropy on the test set; None after a failure.
        loss_scale: at the end; None without loss scaling.
        batch_size: images a step.
        data_sha256: digest of the manifest of the prepared images.
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
    sitting: Sitting | None = None,
    known_to_fit: int | None = None,
) -> Trained:
    """Trains `variant` from the weights of `seed`, and tests it on the test set.

    Args:
        prepared: the images.
        model, settings, variant: their sections of the parameters.
        seed: of the weights, the order of the images and the augmentation.
        receivers: called with each `Epoch` when it ends.
        sitting: where it goes on from, and how it may be interrupted; None for one that is neither.
        known_to_fit: a batch size that the device's memory is known to hold, for the message where it is too small.

    Raises:
        DataError: a batch is larger than the training set, or the disk too full for the results.
        ModelError: the network cannot be built, or runs out of memory.
        PrecisionError: the variant is not in force.
    """
    sitting = sitting or Sitting()
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
    start = sitting.start
    recorder = EpochRecorder(receivers, steps, start.epochs, start.epoch_time_s)
    guard = StopWhenNotFinite(start.not_finite_step)
    keeper = Keeper(recorder, guard, sitting, settings, steps)
    # a step is never cut in two, and neither is a checkpoint
    with sitting.stop.deferred(), _memory_errors_explained(settings, known_to_fit):
        Fit(network, prepared, settings, seed, steps, (recorder, guard, keeper)).go_on_from(start)
        train_time_s = keeper.train_time_s
    probabilities = None if guard.failure else predict(network, prepared)
    return Trained(
        model=network,
        epochs=tuple(recorder.epochs),
        failure=guard.failure or _not_finite(probabilities),
        train_time_s=train_time_s,
        images=len(recorder.epochs) * steps * settings.batch_size,
        probabilities=None if _not_finite(probabilities) else probabilities,
        test_loss=None if probabilities is None else _cross_entropy(probabilities, prepared.test.labels),
        loss_scale=recipe.loss_scale(network),
        batch_size=settings.batch_size,
        data_sha256=prepared.sha256,
    )


def predict(network: keras.Model, prepared: Prepared) -> np.ndarray:
    """Class probabilities of the test images, float32 `(test images, classes)`, in their order."""
    batches = dataset.ordered_batches(prepared.test, TEST_BATCH_SIZE, threads=1).map(lambda images, _: images)
    return np.asarray(network.predict(batches, verbose=0), dtype=np.float32)


def _require_space_for(network: keras.Model, prepared: Prepared) -> None:
    """Told before the training and not after it: the model in three places, three checkpoints, the predictions."""
    state_bytes = sum(variable.numpy().nbytes for variable in (*network.variables, *network.optimizer.variables))
    predictions_bytes = 4 * len(prepared.test) * len(prepared.classes)
    copies = 3 + 3  # model.keras, DVC's cache, MLflow; two checkpoints are kept while a third is written
    require_free_space(files.TRAIN, copies * state_bytes + predictions_bytes, "choose a smaller model")


@contextmanager
def _memory_errors_explained(settings: TrainParams, fits: int | None) -> Iterator[None]:
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        known = f" ({fits} is known to fit)" if fits else ""
        raise ModelError(
            f"train.batch_size is {settings.batch_size}, for which the memory of {_memory()} is too small; "
            f"make it smaller{known}, or choose a smaller model or data.image_size"
        ) from error


def _memory() -> str:
    found = fingerprint.gpus() if keras.distribution.list_devices("gpu") else []
    if found and "memory_gib" in found[0]:
        return f"{found[0]['name']} ({found[0]['memory_gib']} GiB)"
    return f"this machine ({psutil.virtual_memory().total / 2**30:.0f} GiB)"


def _not_finite(probabilities: np.ndarray | None) -> Failure | None:
    if probabilities is None or np.isfinite(probabilities).all():
        return None
    return Failure("the trained network's probabilities are not finite")


def _cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Mean negative logarithm of the right class's probability, cut at Keras's own smallest (1e-7)."""
    right = probabilities[np.arange(len(labels)), labels]
    loss = float(-np.log(np.clip(right, keras.config.epsilon(), 1.0)).mean())
    return loss if math.isfinite(loss) else None
