"""The state of a training: taken between two steps, and put back bit for bit."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from stages.params import TrainParams
from stages.train.callbacks import EpochRecorder, StopWhenNotFinite
from stages.train.checkpoints import Checkpoint
from stages.train.stopping import Stop

Arrays = dict[str, np.ndarray]


def variables(network: keras.Model) -> dict[str, Any]:
    """Every variable that the next step reads, by a name: weights, moving averages, seeds, the optimizer's, metrics."""
    groups = {
        "model": network.variables,
        "optimizer": network.optimizer.variables,
        "metrics": network.metrics_variables,
    }
    return {f"{group}/{number}": variable for group, found in groups.items() for number, variable in enumerate(found)}


def taken(named: dict[str, Any]) -> Arrays:
    """Copies of the variables' values; 16-bit floats as float32, which holds them exactly and every reader knows."""
    arrays = {name: np.array(keras.ops.convert_to_numpy(variable)) for name, variable in named.items()}
    return {name: array.astype(np.float32) if _is_short(array) else array for name, array in arrays.items()}


def put_back(named: dict[str, Any], arrays: Arrays) -> None:
    """Gives variables the values that `taken` took; those without a value stay as they are."""
    for name in named.keys() & arrays.keys():
        named[name].assign(arrays[name])


def _is_short(array: np.ndarray) -> bool:
    return array.dtype.itemsize == 2 and array.dtype.kind in "fV"  # bfloat16 is none of numpy's own


def build_metrics(network: keras.Model, batches: Iterable[Any]) -> None:
    """Makes the metrics' variables, which Keras makes at the first step; changes nothing else."""
    images, labels = next(iter(batches))
    network.test_on_batch(images, labels)


@dataclass(frozen=True)
class Sitting:
    """One of the processes that a training takes.

    Attributes:
        start: where it goes on from.
        save: keeps a checkpoint; None where none are kept.
        stop: what asks it to end early.
    """

    start: Checkpoint = field(default_factory=Checkpoint)
    save: Callable[[Checkpoint], None] | None = None
    stop: Stop = field(default_factory=Stop)


class Keeper(keras.callbacks.Callback):
    """Takes a checkpoint at the ends of epochs, and one more at the next step where a signal asks for the end.

    It comes last of the callbacks, so that the others have done their part of an epoch. Between steps it looks in
    `on_train_batch_begin`, which Keras calls in the main thread and without waiting for the device.
    """

    def __init__(
        self, recorder: EpochRecorder, guard: StopWhenNotFinite, sitting: Sitting, settings: TrainParams, steps: int
    ) -> None:
        super().__init__()
        self._recorder, self._guard, self._sitting = recorder, guard, sitting
        self._settings, self._steps = settings, steps
        self._began_s = time.perf_counter()
        self._offset = 0
        self._before_validation: Arrays = {}

    @property
    def train_time_s(self) -> float:
        """Seconds in `fit` so far, over all sittings, without those in which epochs were told of."""
        present_s = time.perf_counter() - self._began_s - self._recorder.told_s
        return self._sitting.start.train_time_s + present_s

    @functools.cached_property
    def _variables(self) -> dict[str, Any]:
        return variables(self.model)  # after the first step, which makes those of the metrics

    @functools.cached_property
    def _metrics(self) -> dict[str, Any]:
        return {name: variable for name, variable in self._variables.items() if name.startswith("metrics/")}

    def begin_at(self, offset: int) -> None:
        """Says how many steps of the next epoch are done; its metrics go on from where they were."""
        self._offset = offset

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Gives the metrics of an epoch that is gone on with their values; Keras has just reset them."""
        if self._offset:
            put_back(self._metrics, self._sitting.start.arrays)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Ends the training between two steps where a signal asks for it."""
        if self._sitting.stop.requested:
            self._take(self._offset + batch)
            self._sitting.stop.obey()

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Holds the epoch's metrics, which the validation is about to reset."""
        self._before_validation = taken(self._metrics)

    def on_test_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Ends the training during a validation, which will be done again."""
        if self._sitting.stop.requested:
            self._take(self._steps, self._before_validation)
            self._sitting.stop.obey()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Takes the epoch's checkpoint, unless the training has failed: then there is nothing to go on with."""
        self._offset = 0
        if self._guard.failure is not None:
            return
        is_asked_for = (epoch + 1) % self._settings.checkpoint_every == 0 or epoch + 1 == self._settings.epochs
        if is_asked_for or self._sitting.stop.requested:
            self._take(0)
        if self._sitting.stop.requested:
            self._sitting.stop.obey()

    def _take(self, steps_of_epoch: int, metrics: Arrays | None = None) -> None:
        """Saves the state after some steps of the present epoch; 0 where the last one has just ended."""
        if self._sitting.save is None:
            return
        epochs = tuple(self._recorder.epochs)
        checkpoint = Checkpoint(
            step=len(epochs) * self._steps + steps_of_epoch,
            epochs=epochs,
            train_time_s=self.train_time_s,
            epoch_time_s=self._recorder.elapsed_s if steps_of_epoch else 0.0,
            not_finite_step=self._guard.first_step if steps_of_epoch else None,
            arrays=taken(self._variables) | (metrics or {}),
        )
        self._sitting.save(checkpoint)
