"""The training that all ways time: the built-in `cnn` on the digits, as a user's own code has it.

Imports TensorFlow: for processes that train only.
"""

from __future__ import annotations

import time
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
    """A compiled training step that takes longer by a share of its own time, by waiting busily.

    Where another program has the processor as a wait ends, it is too long; the next ones are shorter by that. The first
    call compiles, which no precision makes faster or slower, and is not slowed. All else is asked of the step itself,
    because a trace looks into it.
    """

    def __init__(self, step: Any, slower_by: float) -> None:
        self._step, self._slower_by = step, slower_by
        self._owed_s, self._is_compiled = 0.0, False

    def __call__(self, *arguments: Any) -> Any:
        started_s = time.perf_counter()
        found = self._step(*arguments)
        now_s = began_s = time.perf_counter()
        self._owed_s += self._is_compiled * self._slower_by * (now_s - started_s)
        self._is_compiled = True
        while now_s - began_s < self._owed_s:  # sleeping is not precise enough
            now_s = time.perf_counter()
        self._owed_s -= now_s - began_s
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


def slow_down(model: keras.Model, slower_by: float) -> None:
    """Makes each training step of a model take longer by a share of its time: 0.05 is 5 %."""
    make = model.make_train_function

    def make_slowed(force: bool = False) -> None:
        make(force)
        if not isinstance(model.train_function, Slowed):
            model.train_function = Slowed(model.train_function, slower_by)

    model.make_train_function = make_slowed


def task(*, batch_size: int = BATCH_SIZE, seed: int = 0, slower_by: float = 0.0) -> Task:
    """The training as a task of halfstep, whose steps take longer by a known share."""
    keras.utils.set_random_seed(seed)
    digits = load_digits()
    pixels = (digits.images * (255 / 16)).astype(np.uint8).repeat(SCALE, axis=1).repeat(SCALE, axis=2)
    images, labels = np.repeat(pixels[..., None], 3, axis=-1), digits.target
    model = models.build(ModelParams(), images.shape[1:], CLASSES)
    slow_down(model, slower_by)
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
    return task(batch_size=batch_size, seed=seed)


def endless_batches(task: Task) -> Any:
    """An iterator over shuffled batches, for a step without `fit`."""
    examples = tf.data.Dataset.from_tensor_slices(task.train).shuffle(TRAIN_IMAGES).repeat()
    return iter(examples.batch(BATCH_SIZE).prefetch(2))
