"""The training that all ways time: the built-in `cnn` on the digits, as a user's own code has it.

Imports TensorFlow: for processes that train only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from stages.params import ModelParams
from stages.tasks import Task
from stages.tasks.images import models
from stages.tensorflow_import import keras, tf

BATCH_SIZE, CLASSES, SCALE = 32, 10, 4
TRAIN_IMAGES, VALIDATION_IMAGES = 33 * BATCH_SIZE, 112  # whole batches: a last one of another size compiles once more


class Slowed:
    """A compiled training step with extra steps of the same work on another model, after every so many calls.

    Extra work is slowed down by other programs as the step is, so the share is the same on a busy machine. Waiting is
    not: on two busy cores, waits of 20 % made a training take 30 % longer. All else is asked of the step itself,
    because a trace looks into it.
    """

    def __init__(self, step: Any, extra: Callable[[], Any], slower_by: float) -> None:
        self._step, self._extra, self._every = step, extra, round(1 / slower_by)
        self._calls = 0

    def __call__(self, *arguments: Any) -> Any:
        found = self._step(*arguments)
        self._calls += 1
        if self._calls % self._every == 0:
            self._extra()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


def slow_down(task: Task, slower_by: float) -> None:
    """Makes the training steps of a task take longer by a share of their time: 0.05 is 5 %."""
    make, extra = task.model.make_train_function, compiled_step(digits_task(seed=0))

    def make_slowed(force: bool = False) -> None:
        make(force)
        if not isinstance(task.model.train_function, Slowed):
            task.model.train_function = Slowed(task.model.train_function, extra, slower_by)

    task.model.make_train_function = make_slowed


def compiled_step(task: Task) -> Callable[[], Any]:
    """A training step on the next batch, without `fit`, which has been compiled and run once."""
    task.model.compile(**task.compile)
    task.model.make_train_function()
    examples = tf.data.Dataset.from_tensor_slices(task.train).shuffle(TRAIN_IMAGES).repeat()
    batches = iter(examples.batch(BATCH_SIZE).prefetch(2))
    task.model.train_function(batches)
    return lambda: task.model.train_function(batches)


def task(*, seed: int = 0, slower_by: float = 0.0) -> Task:
    """The training as a task of halfstep, whose steps take longer by a known share."""
    found = digits_task(seed)
    if slower_by:
        slow_down(found, slower_by)
    return found


def digits_task(seed: int) -> Task:
    """The training as it is."""
    keras.utils.set_random_seed(seed)
    digits = load_digits()
    pixels = (digits.images * (255 / 16)).astype(np.uint8).repeat(SCALE, axis=1).repeat(SCALE, axis=2)
    images, labels = np.repeat(pixels[..., None], 3, axis=-1), digits.target
    model = models.build(ModelParams(), images.shape[1:], CLASSES)
    validation_end = TRAIN_IMAGES + VALIDATION_IMAGES
    return Task(
        model=model,
        compile={
            "optimizer": keras.optimizers.Adam(0.002),
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        train=(images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]),
        validation=(images[TRAIN_IMAGES:validation_end], labels[TRAIN_IMAGES:validation_end]),
        test=(images[validation_end:], labels[validation_end:]),
        score=lambda y_true, y_pred: (y_pred.argmax(axis=1) == y_true).astype(float),
        score_name="accuracy",
    )


def build(*, batch_size: int, seed: int) -> Task:
    """The training as it is, for `task.name`."""
    assert batch_size == BATCH_SIZE, "epochs have whole batches"
    return task(seed=seed)
