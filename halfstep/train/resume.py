"""Captures the state of a training between two steps, and restores it bit for bit."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from halfstep.params.schema import TrainParams
from halfstep.tasks.batches import TrainingData
from halfstep.tasks.ready import ReadyTask
from halfstep.tasks.variables import optimizers_of
from halfstep.tensorflow_import import keras
from halfstep.train.callbacks import EpochRecorder, StopWhenNotFinite
from halfstep.train.checkpoint_files import Checkpoint
from halfstep.train.interruption import Interruption

Arrays = dict[str, np.ndarray]


def state_variables(network: keras.Model) -> dict[str, Any]:
    """Every variable that a step reads, by name: weights, moving averages, seeds, optimizer state and metrics."""
    groups = {
        "model": network.variables,
        "optimizer": [variable for optimizer in optimizers_of(network) for variable in optimizer.variables],
        "metrics": network.metrics_variables,
    }
    return {
        f"{group}/{number}": variable
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    }


def capture_state(variables: dict[str, Any]) -> Arrays:
    """Copies the values of variables. 16-bit floats become float32, which is exact and which `.npz` can store."""
    arrays = {name: np.array(keras.ops.convert_to_numpy(variable)) for name, variable in variables.items()}
    return {name: array.astype(np.float32) if _is_16bit_float(array) else array for name, array in arrays.items()}


def restore_state(variables: dict[str, Any], arrays: Arrays) -> None:
    """Assigns values of `capture_state` to variables. Variables without a value are not changed."""
    for name in variables.keys() & arrays.keys():
        variables[name].assign(arrays[name])


def _is_16bit_float(array: np.ndarray) -> bool:
    return array.dtype.itemsize == 2 and array.dtype.kind in "fV"  # NumPy has no bfloat16: its kind is V


def build_metrics(ready: ReadyTask) -> None:
    """Creates the variables of the metrics, which Keras creates at the first step. Changes nothing else.

    It does not read training data: a dataset that shuffles in each iteration would continue with the next order.
    """
    batches = ready.test if ready.validation is None else ready.validation
    ready.model.evaluate(batches.take(1), verbose=0)


@dataclass(frozen=True)
class Session:
    """One of the processes in which a training runs.

    Attributes:
        start: checkpoint to resume from.
        save: stores a checkpoint; None if none are stored.
        interruption: the request to end early.
    """

    start: Checkpoint = field(default_factory=Checkpoint)
    save: Callable[[Checkpoint], None] | None = None
    interruption: Interruption = field(default_factory=Interruption)


class CheckpointCallback(keras.callbacks.Callback):
    """Saves a checkpoint at the ends of epochs, and before the next step after a signal requested the end.

    It must be the last callback, so that the others have processed the epoch. Between steps it uses
    `on_train_batch_begin`, which Keras calls in the main thread without waiting for the device.
    """

    def __init__(
        self,
        recorder: EpochRecorder,
        guard: StopWhenNotFinite,
        session: Session,
        settings: TrainParams,
        training: TrainingData,
    ) -> None:
        super().__init__()
        self._recorder, self._guard, self._session = recorder, guard, session
        self._settings, self._steps, self._between_steps = settings, training.steps_per_epoch, training.is_indexed
        self._started_s = time.perf_counter()
        self._offset = 0
        self._metrics_before_validation: Arrays = {}
        self.latest = session.start  # the last checkpoint

    @property
    def train_time_s(self) -> float:
        """Seconds in `fit` so far, over all sessions, without the time of the recorder's listeners."""
        session_s = time.perf_counter() - self._started_s - self._recorder.listener_time_s
        return self._session.start.train_time_s + session_s

    @functools.cached_property
    def _variables(self) -> dict[str, Any]:
        return state_variables(self.model)  # after the first step, which creates those of the metrics

    @functools.cached_property
    def _metrics(self) -> dict[str, Any]:
        return {name: variable for name, variable in self._variables.items() if name.startswith("metrics/")}

    def set_offset(self, offset: int) -> None:
        """Sets the number of steps of the next epoch that are done; its metrics continue from the checkpoint."""
        self._offset = offset

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Restores the metrics of an epoch that is resumed; Keras has just reset them."""
        if self._offset:
            restore_state(self._metrics, self._session.start.arrays)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Ends the training before a step, if requested."""
        if self._session.interruption.requested:
            self._save(self._offset + batch)
            self._session.interruption.raise_for_signal()

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Captures the metrics of the epoch before the validation resets them."""
        self._metrics_before_validation = capture_state(self._metrics)

    def on_test_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Ends the training during a validation, if requested; the next session repeats the validation."""
        if self._session.interruption.requested:
            self._save(self._steps, self._metrics_before_validation)
            self._session.interruption.raise_for_signal()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Saves the checkpoint of the epoch. A training that has failed cannot be resumed."""
        self._offset = 0
        if self._guard.failure is not None:
            return
        is_due = (epoch + 1) % self._settings.checkpoint_every == 0 or epoch + 1 == self._settings.epochs
        if is_due or self._session.interruption.requested:
            self._save(0)
        if self._session.interruption.requested:
            self._session.interruption.raise_for_signal()

    def _save(self, steps_of_epoch: int, metrics: Arrays | None = None) -> None:
        """Saves the state after some steps of the current epoch; 0 if the previous epoch has just ended."""
        if self._session.save is None or (steps_of_epoch and not self._between_steps):
            return
        epochs = tuple(self._recorder.epochs)
        checkpoint = Checkpoint(
            step=len(epochs) * self._steps + steps_of_epoch,
            epochs=epochs,
            train_time_s=self.train_time_s,
            epoch_time_s=self._recorder.elapsed_s if steps_of_epoch else 0.0,
            not_finite_step=self._guard.first_step if steps_of_epoch else None,
            arrays=capture_state(self._variables) | (metrics or {}),
        )
        self.latest = checkpoint
        self._session.save(checkpoint)
