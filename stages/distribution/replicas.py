"""What all replicas of a model do together: the training step, the validation step, and their state.

Keras's own `train_step` and `test_step` run on each replica: they scale the loss by the number of replicas, and the
optimizer sums the gradients. Set right here are what Keras leaves to replica 0 alone, the decision to skip a step, and
what it does alike on all replicas, random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stages.distribution.cluster import from_environment
from stages.tensorflow_import import keras, tf

_SEED_STATE = "seed_generator_state"  # Keras's name of the variable of each `SeedGenerator`
_SEEDS = 2**31 - 2  # Keras uses the state modulo this number

BatchNorm = Literal["global", "replica"]


@dataclass(frozen=True)
class Share:
    """The part of each batch that the replicas of one host take: `local` of `replicas`, from number `first` on."""

    replicas: int
    first: int
    local: int


class Replicas:
    """A model that was built under a strategy, once for each device. All hosts must call the same methods in turn.

    Args:
        strategy: the strategy.
        model: the model; it may be compiled later.
        batch_norm: `global`, statistics of the whole batch; or `replica`, of each replica's part of it.
    """

    def __init__(self, strategy: Any, model: keras.Model, batch_norm: BatchNorm) -> None:
        self.strategy, self.model = strategy, model
        self._local = len(strategy.extended.worker_devices)
        cluster = from_environment(self.count)
        self._first = self._local * (cluster.rank if cluster else 0)
        self._averages_statistics = batch_norm == "replica"
        self._stop: Any = None
        self._last_stops: Any = None
        for layer in _batch_norms(model):
            # only here: at one replica Keras would compute the variance in another way
            layer.synchronized = batch_norm == "global"

    @property
    def count(self) -> int:
        """Number of replicas, over all hosts."""
        return int(self.strategy.num_replicas_in_sync)

    def prepare(self, example: tuple[NDArray[Any], NDArray[Any]]) -> None:
        """Completes a compiled model: its step, its loss scale, its random numbers and the variables of its metrics.

        Args:
            example: a batch of training data; only shapes and types are used.
        """
        agree_on_loss_scale(self.model.optimizer)
        with self.strategy.scope():
            self.model._symbolic_build(data_batch=example)  # as `fit` does under a strategy
        self._draw_different_numbers()
        with tf.device("/cpu:0"):
            self._stop = tf.Variable(0.0, trainable=False)
        self.model.train_function = self._train_function()
        self.model.test_function = self._test_function()

    def distributed(self, make: Callable[[Share], tf.data.Dataset]) -> Any:
        """A dataset without an end whose elements are what all replicas of this host take in a step.

        Args:
            make: returns the batches of this host's replicas, one after the other, without an end: where data may end,
                TensorFlow asks all hosts before each step.
        """

        share = Share(self.count, self._first, self._local)
        return self.strategy.distribute_datasets_from_function(lambda _: make(share))

    def request_stop(self) -> None:
        """Asks all hosts to end; those that run a step learn of it by `last_stops`."""
        self._stop.assign(1.0)

    @property
    def last_stops(self) -> Any:
        """How many replicas asked for the end before the last training step, a scalar that may not be computed yet."""
        return self._last_stops

    def rows(self, variables: Sequence[Any]) -> list[NDArray[Any]]:
        """The values of variables on each replica, `(replicas, ...)`. All hosts must call it."""
        local = [self._local_values(variable) for variable in variables]
        if self.count == self._local:
            return [np.stack(values) for values in local]
        packed = [b"".join(array.tobytes() for array in one) for one in zip(*local, strict=True)]
        everywhere = self._gathered(packed)
        return [_unpacked(everywhere, local, place) for place in range(len(local))]

    def assign_rows(self, variables: Sequence[Any], rows: Sequence[NDArray[Any]]) -> None:
        """Inverse of `rows`."""
        for variable, values in zip(variables, rows, strict=True):
            mine = values[self._first : self._first + self._local]
            for part, value in zip(self.strategy.experimental_local_results(variable.value), mine, strict=True):
                part.assign(tf.cast(value, part.dtype))

    def average_statistics(self) -> None:
        """With `batch_norm: replica`, replaces the moving statistics of each replica by their mean over all replicas.

        Statistics of a normalization have no effect on training steps, only on predictions.
        """
        found = [variable for layer in _batch_norms(self.model) for variable in layer.non_trainable_variables]
        if self._averages_statistics and found:
            rows = self.rows(found)
            means = [np.broadcast_to(part.mean(axis=0, dtype=np.float64), part.shape) for part in rows]
            self.assign_rows(found, [mean.astype(part.dtype) for mean, part in zip(means, rows, strict=True)])

    def _local_values(self, variable: Any) -> list[NDArray[Any]]:
        """The values of a variable on the replicas of this host."""
        return [np.asarray(part) for part in self.strategy.experimental_local_results(variable.value)]

    def _gathered(self, packed: Sequence[bytes]) -> list[bytes]:
        """Bytes of each replica on all hosts, given those of this host; in one collective, which takes integers."""
        size = len(packed[0])
        numbers = [np.frombuffer(part.ljust(-(-size // 8) * 8, b"\0"), np.int64) for part in packed]
        local = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(numbers[context.replica_id_in_sync_group - self._first][None])
        )
        return [part.tobytes()[:size] for part in np.asarray(self.strategy.gather(local, axis=0))]

    def _draw_different_numbers(self) -> None:
        """Gives each replica its own part of each sequence of random numbers; replica 0 has that of one replica."""
        states = [variable for variable in self.model.variables if variable.name == _SEED_STATE]
        if states:
            rows = self.rows(states)
            distance = np.arange(self.count)[:, None] * np.array([0, _SEEDS // self.count])
            self.assign_rows(states, [part + distance for part in rows])

    def train_on(self, batch: Any) -> tuple[dict[str, Any], Any]:
        """A training step on what all replicas of this host take: the step that `train_function` compiles.

        Returns:
            The losses and metrics so far, means over all replicas; and how many replicas asked for the end.
        """
        names: list[str] = []

        def on_replica(part: Any) -> Any:
            logs = self.model.train_step(part)
            names[:] = logs
            return tf.stack([*(tf.cast(value, tf.float32) for value in logs.values()), self._stop.read_value()])

        found = self.strategy.run(on_replica, args=(batch,))
        *sums, stops = tf.unstack(self.strategy.reduce(tf.distribute.ReduceOp.SUM, found, axis=None))
        return {name: total / self.count for name, total in zip(names, sums, strict=True)}, stops

    def _train_function(self) -> Callable[[Any], dict[str, Any]]:
        step = tf.function(lambda iterator: self.train_on(iterator.get_next()), reduce_retracing=True)

        def train(iterator: Any) -> dict[str, Any]:
            logs, self._last_stops = step(iterator)
            return logs

        return train

    def _test_function(self) -> Callable[[Any], None]:
        def on_all(iterator: Any) -> None:
            self.strategy.run(self.model.test_step, args=(iterator.get_next(),))

        return tf.function(on_all, reduce_retracing=True)


def agree_on_loss_scale(optimizer: Any) -> None:
    """Makes all replicas skip a step, and halve the loss scale, if the gradients of any of them are not finite.

    Keras asks replica 0 alone, before the gradients are summed. The class of the optimizer stays Keras's, so that a
    saved model needs no code of this project.
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return
    of_one_replica = optimizer.check_finite

    def of_all_replicas(gradients: Any) -> Any:
        failed = tf.cast(tf.logical_not(of_one_replica(gradients)), tf.float32)
        context = tf.distribute.get_replica_context()
        return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, failed), 0.0)

    object.__setattr__(optimizer, "check_finite", of_all_replicas)


def _unpacked(packed: Sequence[bytes], local: Sequence[Sequence[NDArray[Any]]], place: int) -> NDArray[Any]:
    """The array of number `place` of each replica, `(replicas, ...)`."""
    start = sum(values[0].nbytes for values in local[:place])
    like = local[place][0]
    arrays = [np.frombuffer(part, like.dtype, like.size, start).reshape(like.shape) for part in packed]
    return np.stack(arrays)


def numbers_of_replicas(strategy: Any, number: int) -> list[int]:
    """The numbers that the hosts give, once for each replica. All hosts must call it."""
    local = strategy.run(lambda: tf.constant([number], tf.int64))
    return [int(found) for found in strategy.gather(local, axis=0)]


def differs_by_replica(variable: Any) -> bool:
    """Whether a variable of a model or a metric has a value for each replica.

    Weights and the state of optimizers are the same on all replicas; statistics, random numbers and metrics are not.
    """
    return isinstance(variable.value, tf.distribute.DistributedValues) and not variable.trainable


def _batch_norms(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
