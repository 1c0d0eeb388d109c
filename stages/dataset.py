"""From `data/prepared` to batches: what is trained on is what is timed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from stages import files
from stages.errors import CorruptFileError, DataError
from stages.params import Augment, TrainParams

PREFETCHED_BATCHES = 2
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Images of one split: uint8 `(n, height, width, channels)`, memory-mapped, and their int32 labels `(n,)`."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Prepared:
    """The prepared images, and the digest of their manifest."""

    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    synthetic: bool
    sha256: str


def open_prepared(directory: Path = files.PREPARED, checked_sha256: str | None = None) -> Prepared:
    """Opens what `prepare` wrote, after checking every file against its manifest.

    Args:
        directory: where it lies.
        checked_sha256: what `files.check_manifest` has returned to the process that started this one. The packed
            images, gigabytes perhaps, are then not read again to be checked: their sizes must be right, and the
            manifest and all other files what they were.

    Raises:
        DataError: nothing has been prepared.
        CorruptFileError: a file is not what was written.
    """
    digest = files.check_manifest(directory) if checked_sha256 is None else _check_small(directory, checked_sha256)
    info = files.read_json(directory / "info.json")
    splits = {name: _open_split(directory, name) for name in SPLITS}
    height, width, channels = info["image_shape"]
    return Prepared(
        **splits,
        classes=tuple(info["classes"]),
        image_shape=(height, width, channels),
        synthetic=info["synthetic"],
        sha256=digest,
    )


def _check_small(directory: Path, expected_sha256: str) -> str:
    names = files.read_manifest(directory)
    found = files.sha256_file(directory / files.MANIFEST)
    if found != expected_sha256:
        raise CorruptFileError(f"{directory} was changed while a stage was at work in it: run `dvc repro` again")
    for name in names:
        if name not in {f"{split}_images.npy" for split in SPLITS}:
            files.checked(directory, name)
    return found


def _open_split(directory: Path, name: str) -> Split:
    path = directory / f"{name}_images.npy"
    labels = np.load(directory / f"{name}_labels.npy", allow_pickle=False)
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
        is_whole = path.stat().st_size == images.offset + images.nbytes and len(images) == len(labels)
    except (OSError, ValueError, EOFError):  # cut short, or with a header that is none
        is_whole = False
    if not is_whole:
        raise CorruptFileError(f"{path} has not the size that it was written with: run `dvc repro -f -s prepare`")
    return Split(images, labels)


def steps_per_epoch(split: Split, batch_size: int) -> int:
    """Full batches in one pass; the rest of an epoch is left out, so that every step has the same shape.

    Raises:
        DataError: a batch is larger than the split.
    """
    if batch_size > len(split):
        raise DataError(
            f"train.batch_size is {batch_size}; allowed is at most {len(split)}, the number of training images"
        )
    return len(split) // batch_size


def training_batches(
    split: Split, train: TrainParams, seed: int, first_step: int = 0, steps: int | None = None
) -> tf.data.Dataset:
    """Shuffled batches for the steps from `first_step` on.

    The batch of a step is a function of `(seed, step)` alone, so that a training can go on from any step.

    Args:
        split: the images to train on.
        train: batch size, augmentation and threads.
        seed: seed of the order and of the augmentation.
        first_step: number of the first step; steps count on from epoch to epoch.
        steps: how many; None for as many as `train.epochs` hold.

    Returns:
        A data set of `(images, labels)`: uint8 `(batch, height, width, channels)`, int32 `(batch,)`.
    """
    last_step = train.epochs * steps_per_epoch(split, train.batch_size) if steps is None else first_step + steps
    order = _Order(len(split), train.batch_size, seed)
    batch_shape = (train.batch_size, *split.images.shape[1:])

    def load(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(
            lambda number: _gather(split, order, int(number)), [step], [tf.uint8, tf.int32]
        )
        images, labels = tf.ensure_shape(images, batch_shape), tf.ensure_shape(labels, batch_shape[:1])
        return (
            augmented(images, train.augment, tf.stack([seed, tf.cast(step, tf.int32)]))
            if train.augment.enabled
            else images
        ), labels

    dataset = tf.data.Dataset.range(first_step, last_step)
    dataset = dataset.map(load, num_parallel_calls=train.input_threads, deterministic=True)
    return dataset.prefetch(PREFETCHED_BATCHES).with_options(fixed_options(train.input_threads))


def buffered_batches(train: TrainParams) -> int:
    """Batches that the input pipeline makes ahead of the step that asks for them."""
    return PREFETCHED_BATCHES + train.input_threads


def ordered_batches(split: Split, batch_size: int, threads: int) -> tf.data.Dataset:
    """`(images, labels)` of a split in their order, as `evaluate` and validation take them."""

    def load(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(
            lambda at: (np.asarray(split.images[at : at + batch_size]), split.labels[at : at + batch_size]),
            [start],
            [tf.uint8, tf.int32],
        )
        return tf.ensure_shape(images, (None, *split.images.shape[1:])), tf.ensure_shape(labels, (None,))

    dataset = tf.data.Dataset.range(0, len(split), batch_size)
    return (
        dataset.map(load, num_parallel_calls=threads, deterministic=True)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(fixed_options(threads))
    )


def fixed_options(threads: int) -> Any:
    """A fixed number of threads and no autotuner, which holds up the end of every `fit` by up to its whole length."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = threads
    return options


def augmented(images: tf.Tensor, augment: Augment, seed: tf.Tensor) -> tf.Tensor:
    """Mirrors, rotates and shifts each image at random, in one resampling; what comes in from outside is black.

    Args:
        images: uint8 `(batch, height, width, channels)`.
        augment: which changes, and how far.
        seed: int32 `(2,)`; the same seed gives the same images.

    Returns:
        Images of the same shape and type.
    """
    count, height, width = images.shape[0], images.shape[1], images.shape[2]
    draws = tf.random.stateless_uniform((4, count), seed, minval=-1.0, maxval=1.0)
    mirror = tf.where(draws[0] < 0, -1.0, 1.0) if augment.flip else tf.ones(count)
    angle = draws[1] * (augment.rotate_degrees * np.pi / 180)
    shift_x, shift_y = draws[2] * augment.shift_fraction * width, draws[3] * augment.shift_fraction * height
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=_about_centre(mirror, angle, shift_x, shift_y, height, width),
        output_shape=(height, width),
        fill_value=0.0,
        interpolation="BILINEAR",
    )


def _about_centre(mirror: Any, angle: Any, shift_x: Any, shift_y: Any, height: int, width: int) -> Any:
    """Transforms as TensorFlow takes them, `(batch, 8)`: pixel (x, y) is read at (a x + b y + c, d x + e y + f)."""
    centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
    cosine, sine = tf.cos(angle), tf.sin(angle)
    a, b, d, e = mirror * cosine, -mirror * sine, sine, cosine
    c = centre_x - a * centre_x - b * centre_y + shift_x
    f = centre_y - d * centre_x - e * centre_y + shift_y
    none = tf.zeros_like(angle)
    return tf.stack([a, b, c, d, e, f, none, none], axis=1)


class _Order:
    """The order of the images: a new permutation every epoch, drawn from the seed and the epoch's number."""

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self._count, self._batch_size = count, batch_size
        # batches on either side of an epoch's end are loaded at the same time, so more than one is kept
        self._permutation = functools.lru_cache(maxsize=3)(
            lambda epoch: np.random.default_rng((seed, epoch)).permutation(count)
        )

    def batch(self, step: int) -> np.ndarray:
        """Indices of the images in a step, int64 `(batch,)`."""
        epoch, position = divmod(step, self._count // self._batch_size)
        return self._permutation(epoch)[position * self._batch_size : (position + 1) * self._batch_size]


def _gather(split: Split, order: _Order, step: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = order.batch(step)
    return split.images[chosen], split.labels[chosen].astype(np.int32)
