"""The task `images`: the network that `model` names, trained on the images that `prepare` packed."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.params.schema import TrainParams
from halfstep.tasks.batches import TrainingData
from halfstep.tasks.images import arrays, dataset, models
from halfstep.tasks.ready import TEST_BATCH_SIZE, ReadyTask
from halfstep.tasks.task import Task
from halfstep.tasks.trial import Trial
from halfstep.tensorflow_import import keras

METRIC = "accuracy"


def build(trial: Trial, *, one_image: bool = False) -> ReadyTask:
    """The network and its batches, not compiled.

    Args:
        trial: the network, its training, and the folder of the prepared images.
        one_image: use views of one random image, which take no memory, instead of the prepared images.

    Raises:
        ModelError: the network cannot be built.
        DataError, CorruptFileError: the prepared images are missing or damaged, or fewer than a batch.
    """
    if one_image:
        prepared = arrays.views_of_one_image(trial.directory, trial.train.batch_size, trial.seed)
    else:
        prepared = arrays.open_prepared(trial.directory, trial.prepared_sha256)
    train, steps = trial.train, dataset.steps_per_epoch(prepared.train, trial.train.batch_size, trial.batch_key)
    ordered = functools.partial(dataset.ordered_batches, batch_size=TEST_BATCH_SIZE)
    task = Task(
        model=models.build(trial.model, prepared.image_shape, len(prepared.classes)),
        compile={
            "optimizer": _optimizer(train, steps),
            "loss": "sparse_categorical_crossentropy",
            "metrics": [METRIC],
        },
        train=TrainingData(
            steps_per_epoch=steps,
            from_step=functools.partial(dataset.training_batches, prepared.train, train, trial.seed),
            buffered_batches=dataset.buffered_batches(train),
            threads=train.input_threads,
            is_indexed=True,
        ),
        validation=ordered(prepared.validation, threads=train.input_threads),
        test=ordered(prepared.test, threads=1),
        score=is_correct,
        score_name=METRIC,
    )
    return ReadyTask(
        task=task,
        training=task.train,
        validation=task.validation,
        test=task.test,
        keeps_predictions=True,
        test_metrics=functools.partial(_test_metrics, prepared.test.labels),
        data_sha256=prepared.sha256,
        learning_rate=train.learning_rate,
    )


def is_correct(labels: np.ndarray, probabilities: np.ndarray) -> Any:
    """Whether the most probable class is the right one, `(n,)`."""
    return probabilities.argmax(axis=1) == labels


def _test_metrics(labels: np.ndarray, probabilities: NDArray[np.float32]) -> dict[str, float]:
    """Accuracy, and mean cross-entropy, clipped at `keras.config.epsilon()` as in Keras's loss; absent if infinite."""
    true_class = probabilities[np.arange(len(labels)), labels]
    loss = float(-np.log(np.clip(true_class, keras.config.epsilon(), 1.0)).mean())
    metrics = {"test_accuracy": float(np.mean(is_correct(labels, probabilities)))}
    return metrics | ({"test_loss": loss} if math.isfinite(loss) else {})


def _optimizer(train: TrainParams, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    rate = _schedule(train, steps_per_epoch)
    if train.optimizer == "sgd":
        return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)
    return {"adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}[train.optimizer](rate)


def _schedule(train: TrainParams, steps_per_epoch: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """A linear warm-up over `warmup_epochs`, followed by a cosine decay to zero or a constant rate.

    Without a training (`epochs: 0`), the measured steps are those at the beginning of one: its warm-up, or its first
    epoch. A warm-up keeps the gradients finite; with loss scaling, a step whose gradients overflow is cheaper.

    A class of Keras is used for both, so that the saved model loads without this code. `alpha` is the final rate as a
    fraction of the highest.
    """
    epochs = train.epochs or max(1, math.ceil(train.warmup_epochs))
    total_steps = epochs * steps_per_epoch
    warmup_steps = min(round(train.warmup_epochs * steps_per_epoch), total_steps)
    return keras.optimizers.schedules.CosineDecay(
        # a warm-up from 0 would waste the first step
        initial_learning_rate=train.learning_rate / max(warmup_steps, 1),
        decay_steps=max(total_steps - warmup_steps, 1),
        alpha=1.0 if train.schedule == "constant" else 0.0,
        warmup_target=train.learning_rate if warmup_steps else None,
        warmup_steps=warmup_steps,
    )
