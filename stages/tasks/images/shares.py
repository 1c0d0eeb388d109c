"""The part of each batch of images that the replicas of one host take."""

from __future__ import annotations

from stages.distribution.replicas import Share
from stages.errors import DataError
from stages.params import TrainParams
from stages.tasks.batches import PREFETCHED_BATCHES, ShuffledOrder
from stages.tasks.images.dataset import Split, changed, fixed_options, gather, random_draws, rows_of
from stages.tensorflow_import import tf


def training_shares(split: Split, train: TrainParams, seed: int, first_step: int, share: Share) -> tf.data.Dataset:
    """What the replicas of one host take of the batches of `training_batches`, without an end.

    Only these images are read. Together, the shares of all replicas are the batch that one replica would train on.

    Returns:
        For each step and each replica of the host `(images, labels)`: uint8 `(batch / replicas, height, width,
        channels)` and int32 `(batch / replicas,)`.
    """
    order, size = ShuffledOrder(len(split), train.batch_size, seed), train.batch_size // share.replicas
    shape = (size, *split.images.shape[1:])

    def load(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        step, start = number // share.local, (share.first + number % share.local) * size
        images, labels = tf.numpy_function(
            lambda at, first: gather(split, order, int(at), slice(int(first), int(first) + size)),
            [step, start],
            [tf.uint8, tf.int32],
        )
        images, labels = tf.ensure_shape(images, shape), tf.ensure_shape(labels, shape[:1])
        if train.augment.enabled:
            draws = random_draws(train.batch_size, tf.stack([seed, tf.cast(step, tf.int32)]))
            images = changed(images, train.augment, tf.ensure_shape(draws[:, start : start + size], (4, size)))
        return images, labels

    dataset = tf.data.Dataset.counter(first_step * share.local)
    dataset = dataset.map(load, num_parallel_calls=train.input_threads, deterministic=True)
    return dataset.prefetch(PREFETCHED_BATCHES * share.local).with_options(fixed_options(train.input_threads))


def ordered_shares(split: Split, batch_size: int, threads: int, share: Share) -> tf.data.Dataset:
    """What the replicas of one host take of a split, again and again; each image is in one share of one batch.

    Batches and shares differ by at most one image in size, so that none is empty and nothing is padded.

    Raises:
        DataError: there are fewer images than replicas.
    """
    if len(split) < share.replicas:
        raise DataError(
            f"train.replicas is {share.replicas}, and there are {len(split)} validation images; each replica needs "
            "one: raise data.validation_fraction, or lower train.replicas"
        )
    batches = ordered_steps(split, batch_size)
    parts = batches * share.replicas
    bounds = [len(split) * part // parts for part in range(parts + 1)]

    def load(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = number // share.local * share.replicas + share.first + number % share.local
        images, labels = tf.numpy_function(
            lambda at: rows_of(split, bounds[int(at)], bounds[int(at) + 1]), [part], [tf.uint8, tf.int32]
        )
        return tf.ensure_shape(images, (None, *split.images.shape[1:])), tf.ensure_shape(labels, (None,))

    dataset = tf.data.Dataset.range(batches * share.local).repeat()
    return (
        dataset.map(load, num_parallel_calls=threads, deterministic=True)
        .prefetch(PREFETCHED_BATCHES * share.local)
        .with_options(fixed_options(threads))
    )


def ordered_steps(split: Split, batch_size: int) -> int:
    """Number of batches in one pass over a split, the last of which may be smaller."""
    return -(-len(split) // batch_size)
