"""A task with its data as batches: `train` and `profile` use the same model and the same batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import TaskError
from halfstep.params.schema import TrainParams
from halfstep.tasks import scoring
from halfstep.tasks.batches import TrainingData, ordered_data, training_data
from halfstep.tasks.float32_layers import Float32Layers
from halfstep.tasks.task import Task, problems
from halfstep.tasks.variables import has_step_of_keras
from halfstep.tensorflow_import import keras, tf

_WEIGHTS_SHOWN = 8  # in metrics.json
TEST_BATCH_SIZE = 256  # fixed, so that results do not depend on `train.batch_size`


class OwnFit(Protocol):
    """Trains a model by code of the user."""

    def __call__(
        self, *, epochs: int, callbacks: Sequence[Any], validation: Any, folder: Path | None, verbose: Any
    ) -> None:
        """Trains for some epochs.

        Args:
            epochs: how many, if no callback ends the training before.
            callbacks: of halfstep, which come after those of the user.
            validation: what is validated on.
            folder: where the user's callbacks write files; None leaves those out.
            verbose: as of Keras's `fit`.
        """


@dataclass(frozen=True)
class ReadyTask:
    """A model and its data.

    Attributes:
        training: batches of the training.
        validation: one pass over the validation data; None without.
        test: one pass over the test data.
        keeps_predictions: whether the predictions themselves are stored, and not the scores.
        test_metrics: returns numbers for `metrics.json` by name, given what `outputs` returned.
        data_sha256: sha256 of the manifest of `data/prepared`.
        own_fit: trains as the user's code says, which has compiled the model itself; None where halfstep compiles it
            and trains by `Task.compile` and `training`.
        float32: the layers that a mixed policy leaves in float32 because the variant says so.
        learning_rate: largest learning rate, where the parameters decide it.
    """

    task: Task
    training: TrainingData
    validation: tf.data.Dataset | None
    test: tf.data.Dataset
    keeps_predictions: bool
    test_metrics: Callable[[NDArray[Any]], dict[str, float]]
    data_sha256: str
    own_fit: OwnFit | None = None
    float32: Float32Layers = field(default_factory=Float32Layers)
    learning_rate: float | None = None

    @property
    def model(self) -> keras.Model:
        """The model."""
        return self.task.model

    def inputs(self, examples: int) -> Any:
        """The first inputs of the test data, arrays with `examples` rows; repeated if there are fewer."""
        batches: list[Any] = []
        for x, _ in scoring.pairs(self.test):
            batches.append(x)
            if sum(len(keras.tree.flatten(part)[0]) for part in batches) >= examples:
                break
        whole = keras.tree.map_structure(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *batches)
        return keras.tree.map_structure(lambda array: np.resize(array[:examples], (examples, *array.shape[1:])), whole)

    def outputs(self, predict: Callable[[Any], Any], *, allow_not_finite: bool = False) -> NDArray[Any]:
        """What is stored of the test: predictions, float32, or scores, as `scoring.evaluate` describes them.

        Args:
            predict: the model's outputs for the inputs of a batch.
            allow_not_finite: give examples whose predictions are not finite the score NaN, instead of raising.
        """
        return self.tested(predict, allow_not_finite=allow_not_finite).outputs

    def tested(self, predict: Callable[[Any], Any], *, allow_not_finite: bool = False) -> scoring.Tested:
        """A test of the model; arguments as of `outputs`."""
        return scoring.evaluate(
            self.task,
            self.test,
            predict,
            keeps_predictions=self.keeps_predictions,
            allow_not_finite=allow_not_finite,
        )


def from_task(
    task: Task, train: TrainParams, seed: int, counted_steps: int | None = None, data_sha256: str = ""
) -> ReadyTask:
    """A task with its data as batches, not compiled; arguments as those of `training_data`.

    Raises:
        TaskError: the task or its data cannot be used; the message names all that is wrong.
    """
    wrong = list(problems(task, speed_only=not train.epochs))

    def made(make: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return make(*arguments)
        except TaskError as error:
            wrong.append(str(error))

    training = made(training_data, task.train, train.batch_size, seed, counted_steps, task.class_weight)
    validation = None if task.validation is None else made(ordered_data, task.validation, TEST_BATCH_SIZE, "validation")
    test = None if task.test is None else made(ordered_data, task.test, TEST_BATCH_SIZE, "test")
    if isinstance(task.model, keras.Model):
        wrong += _problems_of_variables(task.model)
    if wrong:
        raise TaskError("; ".join(wrong))
    return ReadyTask(
        task=task,
        training=training,
        validation=validation,
        test=untested(next(iter(training.from_step(0, 1)))) if test is None else test,
        keeps_predictions=False,
        test_metrics=functools.partial(test_metrics, task),
        data_sha256=data_sha256,
    )


def _problems_of_variables(model: keras.Model) -> Iterator[str]:
    """A model with a `train_step` of its own is built after it is compiled, and need not have been before."""
    if not model.built and has_step_of_keras(model):
        yield "Task.model is not built; start it with keras.Input, or call build() or the model on a batch"
    elif model.built and not model.trainable_variables:
        yield "Task.model has no trainable weights; call it on a batch to build its layers, or unfreeze some"


def untested(batch: Any) -> tf.data.Dataset:
    """A stand-in for missing test data: the inputs of one training batch, for timing inference."""
    x, *_ = keras.utils.unpack_x_y_sample_weight(batch)
    return tf.data.Dataset.from_tensors((x, 0))


def first_weights(model: keras.Model) -> str:
    """The first few weights of the largest variable that is trained, with five digits; empty without any."""
    if not model.trainable_variables:
        return ""
    largest = max(model.trainable_variables, key=lambda variable: math.prod(variable.shape))
    values = np.asarray(keras.ops.convert_to_numpy(largest), np.float64).reshape(-1)[:_WEIGHTS_SHOWN]
    return " ".join(f"{value:.5g}" for value in values)


def test_metrics(task: Task, outputs: NDArray[np.float64]) -> dict[str, float]:
    """The mean of the scores, or the metric, by its name in `metrics.json`."""
    return {f"test_{task.score_name}": float(outputs.mean() if task.score is not None else outputs[0])}
