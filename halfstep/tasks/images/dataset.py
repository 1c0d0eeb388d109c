"""Reads `data/prepared` and makes batches. `train` and `profile` use the same input pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np

from halfstep.errors import DataError
from halfstep.params.schema import Augment, TrainParams
from halfstep.tasks.batches import PREFETCHED_BATCHES, ShuffledOrder
from halfstep.tasks.images.arrays import Split
from halfstep.tensorflow_import import tf


def steps_per_epoch(split: Split, batch_size: int, key: str = "train.batch_size") -> int:
    """Number of full batches in an epoch. The incomplete last batch is dropped, so that every step has the same shape.

    Raises:
        DataError: the batch, which the parameter `key` sets, is larger than the split.
    """
    if batch_size > len(split):
        raise DataError(f"{key} is {batch_size}; allowed is at most {len(split)}, the number of training images")
    return len(split) // batch_size


def training_batches(
    split: Split, train: TrainParams, seed: int, first_step: int = 0, steps: int | None = None
) -> tf.data.Dataset:
    """Shuffled batches, from `first_step` on.

    A batch depends only on `(seed, step)`, so that a training can resume from any step.

    Args:
        split: the training images.
        train: batch size, augmentation and threads.
        seed: seed of the order and of the augmentation.
        first_step: number of the first step, counted over all epochs.
        steps: number of steps; None for all that remain in `train.epochs`.

    Returns:
        Batches `(images, labels)`: uint8 `(batch, height, width, channels)` and int32 `(batch,)`.
    """
    last_step = train.epochs * steps_per_epoch(split, train.batch_size) if steps is None else first_step + steps
    order = ShuffledOrder(len(split), train.batch_size, seed)
    batch_shape = (train.batch_size, *split.images.shape[1:])

    def load(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(
            lambda number: gather(split, order, int(number)), [step], [tf.uint8, tf.int32]
        )
        images, labels = tf.ensure_shape(images, batch_shape), tf.ensure_shape(labels, batch_shape[:1])
        if train.augment.enabled:
            images = augmented(images, train.augment, tf.stack([seed, tf.cast(step, tf.int32)]))
        return images, labels

    dataset = tf.data.Dataset.range(first_step, last_step)
    dataset = dataset.map(load, num_parallel_calls=train.input_threads, deterministic=True)
    return dataset.prefetch(PREFETCHED_BATCHES).with_options(fixed_options(train.input_threads))


def buffered_batches(train: TrainParams) -> int:
    """Largest number of batches that the input pipeline prepares in advance."""
    return PREFETCHED_BATCHES + train.input_threads


def ordered_batches(split: Split, batch_size: int, threads: int) -> tf.data.Dataset:
    """Batches `(images, labels)` of a split in its order, for validation and test; the last may be smaller."""

    def load(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(
            lambda at: rows_of(split, at, at + batch_size), [start], [tf.uint8, tf.int32]
        )
        return tf.ensure_shape(images, (None, *split.images.shape[1:])), tf.ensure_shape(labels, (None,))

    dataset = tf.data.Dataset.range(0, len(split), batch_size)
    return (
        dataset.map(load, num_parallel_calls=threads, deterministic=True)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(fixed_options(threads))
    )


def fixed_options(threads: int) -> Any:
    """Options with a fixed number of threads, and without the autotuner, which delays the end of every `fit`."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = threads
    return options


def augmented(images: tf.Tensor, augment: Augment, seed: tf.Tensor) -> tf.Tensor:
    """Flips, rotates and shifts each image at random, in one resampling. Pixels from outside the image are black.

    Args:
        images: uint8 `(batch, height, width, channels)`.
        augment: which changes are made, and their limits.
        seed: int32 `(2,)`; the same seed gives the same images.

    Returns:
        Images, uint8 `(batch, height, width, channels)`.
    """
    return changed(images, augment, random_draws(images.shape[0], seed))


def random_draws(count: int, seed: tf.Tensor) -> tf.Tensor:
    """Four random numbers from -1 to 1 for each image, `(4, count)`."""
    return tf.random.stateless_uniform((4, count), seed, minval=-1.0, maxval=1.0)


def changed(images: tf.Tensor, augment: Augment, draws: tf.Tensor) -> tf.Tensor:
    """What `augmented` does, given the `random_draws` of these images."""
    count, height, width = images.shape[0], images.shape[1], images.shape[2]
    mirror = tf.where(draws[0] < 0, -1.0, 1.0) if augment.flip else tf.ones(count)
    angle = draws[1] * (augment.rotate_degrees * np.pi / 180)
    shift_x, shift_y = draws[2] * augment.shift_fraction * width, draws[3] * augment.shift_fraction * height
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=_transforms(mirror, angle, shift_x, shift_y, height, width),
        output_shape=(height, width),
        fill_value=0.0,
        interpolation="BILINEAR",
    )


def _transforms(mirror: Any, angle: Any, shift_x: Any, shift_y: Any, height: int, width: int) -> Any:
    """Transforms about the centre, `(batch, 8)`: output (x, y) is sampled at input (a x + b y + c, d x + e y + f)."""
    centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
    cosine, sine = tf.cos(angle), tf.sin(angle)
    a, b, d, e = mirror * cosine, -mirror * sine, sine, cosine
    c = centre_x - a * centre_x - b * centre_y + shift_x
    f = centre_y - d * centre_x - e * centre_y + shift_y
    zero = tf.zeros_like(angle)
    return tf.stack([a, b, c, d, e, f, zero, zero], axis=1)


def rows_of(split: Split, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels from number `start` to `end`."""
    return np.asarray(split.images[start:end]), split.labels[start:end]


def gather(split: Split, order: ShuffledOrder, step: int, rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a step, or of some rows of its batch."""
    chosen = order.batch(step)[rows]
    return split.images[chosen], split.labels[chosen].astype(np.int32)
