"""`data/train/<variant>-<seed>/`: one training as files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import ComparisonError, DataError
from halfstep.results.artifact import Document, Record, csv_text, read_array, read_table, write_array
from halfstep.results.task import TaskInfo
from halfstep.system import files
from halfstep.system.records import ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from typing import Self

    import pandas as pd

METRICS, HISTORY = "metrics.json", "history.csv"
MODEL, WEIGHTS = "model.keras", "model.weights.h5"
PREDICTIONS, SCORES = "predictions.npy", "scores.npy"  # of images, of other tasks
HISTORY_COLUMNS = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_time_s")
OWN_HISTORY_COLUMNS = ("epoch", "epoch_time_s")  # of other tasks: further columns are the task's
_TRACKED_AS = {"train_images_per_s": "overall_images_per_s"}
_TRACKED = ("test_accuracy", "test_loss", "train_time_s", "train_images_per_s", "loss_scale")
_TEST = "test_"
LARGEST_FLOAT16 = 65504.0
Scores = NDArray[Any]  # of images booleans, whether each is right; of other tasks float64


class Overflow(Record):
    """Where the numbers of a training leave the range of 16 bits.

    Attributes:
        layer: path of the layer.
        direction: of the pass in which it happens; `inputs` where the model itself casts what it is given, so that the
            first layer is too late; `weight update` where gradients are finite and new weights are not.
        magnitude: the largest absolute value that the layer gives in float32 from the same state, or sends back; with
            loss scaling that of the scaled gradients. None where it is not known.
        step: of the training, from 1, or None for the state at its end.
        loss_scale: in force; None without loss scaling.
        readers: layers that read the layer's output, where this does not fit float16 even if it is computed in float32.
    """

    layer: str
    direction: Literal["inputs", "forward", "backward", "weight update"]
    magnitude: float | None = None
    step: int | None = None
    loss_scale: float | None = None
    readers: tuple[str, ...] = ()


class TrainingMetrics(Document):
    """`metrics.json`. The score of a task that is not `images` is one further key, `test_<score name>`.

    Attributes:
        status: `failed` if the training ended for a numerical reason; `not_trained` with `train.epochs: 0`, and where
            `trained` of the variant is false.
        reason: why it failed, or why it was not trained while others were.
        epoch, step: where the first loss was not finite, counted from 1.
        test_accuracy: on the test set, as a fraction.
        test_loss: mean cross-entropy on the test set.
        train_time_s: seconds in `fit`, validation and compilation included.
        train_images_per_s: training images over `train_time_s`.
        loss_scale: at the end of the training.
        skipped_share: of all steps, those that changed nothing: gradients overflowed. None without loss scaling.
        batch_size: images a step.
        data_sha256: sha256 of the manifest of the prepared images.
        environment: processor and releases of TensorFlow and Keras.
        initial_weights: the first weights of the largest kernel before the training. Those of one seed are the same in
            all variants that keep variables in float32.
        permuted_score: mean score of the predictions for other test examples, drawn at random.
        permuted_p: one-sided p-value of a paired t-test that the predictions themselves score better.
    """

    VERSION: ClassVar[int] = 2
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float]

    status: Literal["finished", "failed", "not_trained"]
    reason: str | None = None
    epoch: int | None = None
    step: int | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    train_time_s: float | None = None
    train_images_per_s: float | None = None
    loss_scale: float | None = None
    skipped_share: float | None = Field(default=None, ge=0.0, le=1.0)
    batch_size: int
    data_sha256: str
    environment: str
    initial_weights: str | None = None
    permuted_score: float | None = None
    permuted_p: float | None = None
    overflow: Overflow | None = None
    underflow: dict[str, float] | None = None

    @model_validator(mode="after")
    def _one_score(self) -> Self:
        unknown = [key for key in self.__pydantic_extra__ if not key.startswith(_TEST)]
        if unknown or len(self.__pydantic_extra__) > 1:
            raise ValueError(f"{', '.join(unknown or self.__pydantic_extra__)}: unknown keys")
        return self

    @property
    def failed(self) -> bool:
        """Whether the training ended without a usable model."""
        return self.status == "failed"

    @property
    def not_trained(self) -> bool:
        """Whether there was no training, because only the speed is compared."""
        return self.status == "not_trained"

    @property
    def test_score(self) -> float | None:
        """The score on the test set, in its units; None without a test."""
        return next(iter(self.__pydantic_extra__.values()), self.test_accuracy)

    def tracked(self) -> dict[str, float]:
        """The numbers that MLflow shows, by name; `train_images_per_s` of a profile's run is of steps alone."""
        values = self.model_dump(include={*_TRACKED, *self.__pydantic_extra__}, exclude_none=True)
        return {_TRACKED_AS.get(name, name): value for name, value in values.items()}


@dataclass(frozen=True)
class Training:
    """One training of one variant.

    Attributes:
        history: `history.csv`, a row an epoch; None if a failed training completed no epoch, or without a training.
        scores: `(test examples,)`, or the array of a metric as in `MetricScores`; None without a test.
        probabilities: float32 `(test images, classes)`; None without a test, and for tasks that are not `images`.
    """

    seed: int
    metrics: TrainingMetrics
    history: pd.DataFrame | None = None
    scores: Scores | None = None
    probabilities: NDArray[np.float32] | None = None

    @property
    def failed(self) -> bool:
        """Whether the training ended without a usable model."""
        return self.metrics.failed


def same_weights(one: str, other: str) -> bool:
    """Whether first weights, as in `metrics.json`, are equal but for their last digits, as on two machines."""
    before, after = (np.array([float(value) for value in text.split()]) for text in (one, other))
    return before.shape == after.shape and np.allclose(before, after, rtol=1e-3, atol=1e-6, equal_nan=True)


def write_training(
    directory: Path,
    metrics: TrainingMetrics,
    history: Sequence[Mapping[str, float]],
    save_model: Callable[[Path], Any],
    outputs: NDArray[Any] | None,
    *,
    model: str = MODEL,
    outputs_file: str = PREDICTIONS,
) -> str:
    """Writes a training's folder and returns the sha256 of its manifest.

    Args:
        directory: emptied first, as DVC does before it starts the stage, so that the manifest covers all files.
        metrics: the content of `metrics.json`.
        history: a row an epoch, by column.
        save_model: called with the path of the model's file.
        outputs: predictions, float32 `(test images, classes)`, or scores, float64; None after a failure.
        model: name of the model's file.
        outputs_file: name of the file for `outputs`.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    metrics.write(directory / METRICS)
    columns = HISTORY_COLUMNS if outputs_file == PREDICTIONS else OWN_HISTORY_COLUMNS
    files.write_text(directory / HISTORY, csv_text(history, columns))
    with files.atomic_path(directory / model) as temporary_path:
        save_model(temporary_path)
    if outputs is not None:
        write_array(directory / outputs_file, outputs)
    return files.write_manifest(directory)


def saved_model(directory: Path) -> Path:
    """The model of a training: `model.keras`, or `model.weights.h5` where plain Keras cannot load the model.

    Raises:
        DataError: there is neither.
    """
    for name in (MODEL, WEIGHTS):
        if (directory / name).is_file():
            return directory / name
    raise DataError(f"{directory} has no {MODEL}: run `dvc repro -f -s {files.stage_of(directory)}`")


def write_not_trained(directory: Path, metrics: TrainingMetrics) -> str:
    """Writes the folder of a variant that is not trained, without a model; returns the sha256 of its manifest."""
    shutil.rmtree(directory, ignore_errors=True)
    metrics.write(directory / METRICS)
    if metrics.failed:
        files.write_text(directory / HISTORY, csv_text([], OWN_HISTORY_COLUMNS))
    return files.write_manifest(directory)


def read_training(variant: str, seed: int, task: TaskInfo, labels: NDArray[np.int64] | None) -> Training:
    """Reads a training after checking every file against the manifest.

    Args:
        variant, seed: which training.
        task: what was trained.
        labels: true classes of images, int64 `(test images,)`; None for other tasks.

    Raises:
        DataError: a file is missing.
        CorruptFileError: a file is not what was written.
        ComparisonError: the predictions or scores are of another test set.
    """
    directory = files.train_dir(variant, seed)
    files.verify_manifest(directory)
    metrics = TrainingMetrics.read(directory / METRICS)
    if metrics.not_trained:
        return Training(seed, metrics)
    columns = HISTORY_COLUMNS if task.has_classes else OWN_HISTORY_COLUMNS
    history = read_table(directory / HISTORY, columns, may_be_empty=metrics.failed)
    if metrics.failed:
        return Training(seed, metrics, None if history.empty else history)
    if labels is None:
        return Training(seed, metrics, history, read_scores(directory / SCORES, task))
    probabilities = read_probabilities(directory)
    check_test_examples(directory / PREDICTIONS, len(probabilities), task)
    return Training(seed, metrics, history, correct(probabilities, labels), probabilities)


def read_scores(path: Path, task: TaskInfo) -> Scores:
    """Scores of a task that is not `images`, float64 `(test examples,)`, or a metric's array.

    Raises:
        DataError: the file is missing.
        CorruptFileError: it holds no finite numbers.
        ComparisonError: it is of another number of test examples.
    """
    scores = read_array(path, dimensions=1).astype(np.float64)
    if task.score_kind == "score":
        check_test_examples(path, len(scores), task)
    return scores


def check_test_examples(path: Path, rows: int, task: TaskInfo) -> None:
    """Raises ComparisonError unless a file has a row for each test example."""
    if rows != task.examples:
        raise ComparisonError(
            f"{path} has {rows} rows and the test set has {task.examples} {task.examples_word}: "
            f"run `dvc repro -f -s {files.stage_of(path)}`"
        )


def correct(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The scores of images: whether the most probable class is the true one; an overflow is wrong."""
    is_right = (probabilities.argmax(axis=1) == labels) & np.isfinite(probabilities).all(axis=1)
    return np.asarray(is_right)


def read_probabilities(directory: Path) -> NDArray[np.float32]:
    """`predictions.npy`: class probabilities on the test set, float32 `(test images, classes)`."""
    return read_array(directory / PREDICTIONS, dimensions=2)


def read_metrics(variant: str, seed: int) -> TrainingMetrics:
    """Reads `metrics.json` alone.

    Raises:
        DataError: the training is missing.
        CorruptFileError: `metrics.json` is not what was written.
    """
    return TrainingMetrics.read(files.verified(files.train_dir(variant, seed), METRICS))


def finished_scores(variant: str, seeds: Sequence[int]) -> list[float]:
    """Test score of each finished training of a variant, in its units, in the order of the seeds.

    Raises:
        DataError: a training is missing.
        CorruptFileError: `metrics.json` is not what was written.
    """
    metrics = [read_metrics(variant, seed) for seed in seeds]
    return [training_metrics.test_score for training_metrics in metrics if training_metrics.test_score is not None]
