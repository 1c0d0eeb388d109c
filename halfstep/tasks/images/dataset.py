"""Reads `data/prepared` and makes batches. `train` and `profile` use the same input pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from halfstep.errors import CorruptFileError, DataError
from halfstep.params.schema import Augment, TrainParams
from halfstep.results.prepared import PreparedInfo
from halfstep.system import files
from halfstep.tasks.batches import PREFETCHED_BATCHES, ShuffledOrder
from halfstep.tensorflow_import import tf

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """One split: memory-mapped images, uint8 `(n, height, width, channels)`, and labels, int32 `(n,)`."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class PreparedImages:
    """The prepared images, and the sha256 of their manifest."""

    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    sha256: str


def open_prepared(directory: Path = files.PREPARED, verified_sha256: str | None = None) -> PreparedImages:
    """Opens the output of `prepare` after verifying every file against the manifest.

    Args:
        directory: folder of the prepared images.
        verified_sha256: sha256 of the manifest, as `files.verify_manifest` returned it in the parent process. Of the
            packed images, which may be gigabytes, only the sizes are then checked; all other files are verified again.

    Raises:
        DataError: there are no prepared images.
        CorruptFileError: a file was changed after it was written.
    """
    digest = (
        files.verify_manifest(directory) if verified_sha256 is None else _verify_small_files(directory, verified_sha256)
    )
    info = PreparedInfo.read(directory / "info.json")
    splits = {name: _open_split(directory, name) for name in SPLITS}
    return PreparedImages(**splits, classes=info.classes, image_shape=info.image_shape, sha256=digest)


def views_of_one_image(directory: Path, examples: int, seed: int) -> PreparedImages:
    """`examples` views of one random image, which take no memory until they are batched, as every split.

    Args:
        directory: folder of the prepared images, for their shape and classes.
        examples: number of views.
        seed: seed of the image and of the labels.
    """
    info, draw = PreparedInfo.read(directory / "info.json"), np.random.default_rng(seed)
    image = draw.integers(0, 256, (1, *info.image_shape), np.uint8)
    labels = draw.integers(0, len(info.classes), examples, np.int32)
    split = Split(np.broadcast_to(image, (examples, *info.image_shape)), labels)
    return PreparedImages(**dict.fromkeys(SPLITS, split), classes=info.classes, image_shape=info.image_shape, sha256="")


def _verify_small_files(directory: Path, expected_sha256: str) -> str:
    names = files.read_manifest(directory)
    digest = files.sha256_file(directory / files.MANIFEST)
    if digest != expected_sha256:
        raise CorruptFileError(f"{directory} was changed while a stage was reading it: run `dvc repro` again")
    for name in names:
        if name not in {f"{split}_images.npy" for split in SPLITS}:
            files.verified(directory, name)
    return digest


def _open_split(directory: Path, name: str) -> Split:
    path = directory / f"{name}_images.npy"
    labels = np.load(directory / f"{name}_labels.npy", allow_pickle=False)
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
        is_complete = path.stat().st_size == images.offset + images.nbytes and len(images) == len(labels)
    except (OSError, ValueError, EOFError):  # truncated, or without a valid header
        is_complete = False
    if not is_complete:
        raise CorruptFileError(f"{path} does not have its original size: run `dvc repro -f -s prepare`")
    return Split(images, labels)


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
