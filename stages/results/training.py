"""`data/train/<variant>-<seed>/`: one training as files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stages import files
from stages.errors import ComparisonError
from stages.results.artifact import Document, read_array, read_table

METRICS, HISTORY, MODEL, PREDICTIONS = "metrics.json", "history.csv", "model.keras", "predictions.npy"
HISTORY_COLUMNS = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_time_s")
LOSS_SCALE_COLUMNS = ("loss_scale", "skipped_steps")  # only with loss scaling
_TRACKED = ("test_accuracy", "test_loss", "train_time_s", "train_images_per_s", "loss_scale")


class TrainingMetrics(Document):
    """`metrics.json`.

    Attributes:
        status: `failed` if the training ended for a numerical reason.
        reason: why it failed.
        epoch, step: where the first loss was not finite, counted from 1.
        test_accuracy: on the test set, as a fraction.
        test_loss: mean cross-entropy on the test set.
        train_time_s: seconds in `fit`, validation and compilation included.
        train_images_per_s: training images over `train_time_s`.
        loss_scale: at the end of the training.
        batch_size: images a step.
        data_sha256: sha256 of the manifest of the prepared images.
        environment: processor and releases of TensorFlow and Keras.
    """

    VERSION: ClassVar[int] = 2

    status: Literal["finished", "failed"]
    reason: str | None = None
    epoch: int | None = None
    step: int | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    train_time_s: float
    train_images_per_s: float
    loss_scale: float | None = None
    batch_size: int
    data_sha256: str
    environment: str

    @property
    def failed(self) -> bool:
        """Whether the training ended without a usable model."""
        return self.status == "failed"

    def tracked(self) -> dict[str, float]:
        """The numbers that MLflow shows, by name."""
        return self.model_dump(include=set(_TRACKED), exclude_none=True)


@dataclass(frozen=True)
class Training:
    """One training of one variant.

    Attributes:
        history: `history.csv`, a row an epoch; None if a failed training completed no epoch.
        probabilities: float32 `(test images, classes)`; None for a failed training.
    """

    seed: int
    metrics: TrainingMetrics
    history: pd.DataFrame | None = None
    probabilities: NDArray[np.float32] | None = None

    @cached_property
    def predicted(self) -> NDArray[np.int64] | None:
        """The most probable class, int64 `(test images,)`; None for a failed training."""
        return None if self.probabilities is None else self.probabilities.argmax(axis=1)

    @property
    def failed(self) -> bool:
        """Whether the training ended without a usable model."""
        return self.metrics.failed


def write_training(
    directory: Path,
    metrics: TrainingMetrics,
    epochs: Sequence[Any],
    save_model: Callable[[Path], Any],
    probabilities: np.ndarray | None,
) -> str:
    """Writes a training's folder and returns the sha256 of its manifest.

    Args:
        directory: emptied first, as DVC does before it starts the stage, so that the manifest covers all files.
        metrics: the content of `metrics.json`.
        epochs: one object an epoch with the columns of `history.csv` as attributes.
        save_model: called with the path of `model.keras`.
        probabilities: float32 `(test images, classes)`; None after a failure.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    metrics.write(directory / METRICS)
    columns = HISTORY_COLUMNS + (() if metrics.loss_scale is None else LOSS_SCALE_COLUMNS)
    history = pd.DataFrame([vars(epoch) for epoch in epochs], columns=list(columns))
    files.write_text(directory / HISTORY, history.to_csv(index=False, na_rep="nan"))
    with files.atomic_path(directory / MODEL) as temporary_path:
        save_model(temporary_path)
    if probabilities is not None:
        with files.atomic_path(directory / PREDICTIONS) as temporary_path:
            np.save(temporary_path, probabilities, allow_pickle=False)
    return files.write_manifest(directory)


def read_training(variant: str, seed: int, test_images: int) -> Training:
    """Reads a training after checking every file against the manifest.

    Raises:
        DataError: a file is missing.
        CorruptFileError: a file is not what was written.
        ComparisonError: the predictions are of another test set than one of `test_images` images.
    """
    directory = files.train_dir(variant, seed)
    files.verify_manifest(directory)
    metrics = TrainingMetrics.read(directory / METRICS)
    history = read_table(directory / HISTORY, HISTORY_COLUMNS, may_be_empty=metrics.failed)
    if metrics.failed:
        return Training(seed, metrics, None if history.empty else history)
    probabilities = read_probabilities(directory)
    if len(probabilities) != test_images:
        raise ComparisonError(
            f"{directory / PREDICTIONS} has {len(probabilities)} rows and the test set has {test_images} images: "
            f"run `dvc repro -f -s {files.stage_of(directory)}`"
        )
    return Training(seed, metrics, history, probabilities)


def read_probabilities(directory: Path) -> NDArray[np.float32]:
    """`predictions.npy`: class probabilities on the test set, float32 `(test images, classes)`."""
    return read_array(directory / PREDICTIONS, dimensions=2)


def finished_accuracies(variant: str, seeds: Sequence[int]) -> list[float]:
    """Test accuracy of each finished training of a variant, as fractions, in the order of the seeds.

    Raises:
        DataError: a training is missing.
        CorruptFileError: `metrics.json` is not what was written.
    """
    paths = [files.verified(files.train_dir(variant, seed), METRICS) for seed in seeds]
    metrics = [TrainingMetrics.read(path) for path in paths]
    return [found.test_accuracy for found in metrics if found.test_accuracy is not None]
