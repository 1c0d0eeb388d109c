"""Keras callbacks of a training: the history, and the end of a training whose loss is not finite."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from halfstep.errors import PrecisionError, TaskError
from halfstep.tasks import precision
from halfstep.tasks.user_code import REPEAT, UNEVEN
from halfstep.tensorflow_import import keras
from halfstep.train.epochs import Epoch
from halfstep.train.result import TrainingFailure


def _ordered(logs: dict[str, Any]) -> dict[str, float]:
    """The logs as numbers: the loss, the metrics, then both of the validation."""
    names = sorted(logs, key=lambda name: (name.startswith("val_"), not name.endswith("loss")))
    return {name: float(logs[name]) for name in names}


class EpochRecorder(keras.callbacks.Callback):
    """Records each epoch and passes it to listeners. Its time covers training and validation, until the device is done.

    Args:
        listeners: called with each `Epoch` when it ends.
        steps: training steps in an epoch; None for a script's, of which Keras knows the number, or nobody.
        epochs: epochs of earlier sessions.
        elapsed_s: seconds that earlier sessions spent on the next epoch.
    """

    def __init__(
        self,
        listeners: tuple[Callable[[Epoch], None], ...],
        steps: int | None,
        epochs: tuple[Epoch, ...] = (),
        elapsed_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.epochs: list[Epoch] = list(epochs)
        self._listeners, self._steps, self._earlier_s = listeners, steps, elapsed_s
        self._started_s, self._applied_before = 0.0, 0
        self.listener_time_s = 0.0  # for example of the tracking server; not part of the training time

    @property
    def elapsed_s(self) -> float:
        """Seconds that the current epoch has taken, over all sessions."""
        return self._earlier_s + time.perf_counter() - self._started_s

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Starts the clock."""
        if self._steps is None and self.model.optimizer:
            self._applied_before = self._applied
        self._started_s = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Records the epoch. All its steps are done, because Keras has read the metrics from the device."""
        scale, optimizer = precision.loss_scale(self.model), self.model.optimizer
        row = Epoch(
            epoch=epoch,
            logs=_ordered(logs or {}),
            learning_rate=float(keras.ops.convert_to_numpy(optimizer.learning_rate)) if optimizer else None,
            epoch_time_s=self.elapsed_s,
            loss_scale=scale,
            skipped_steps=None if scale is None else self._skipped_steps(epoch),
        )
        self._earlier_s = 0.0
        self.epochs.append(row)
        ended_s = time.perf_counter()
        for listener in self._listeners:
            listener(row)
        self.listener_time_s += time.perf_counter() - ended_s

    @property
    def _applied(self) -> int:
        """Steps that the optimizer has applied so far."""
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)  # Keras 3.8 counts there
        return int(keras.ops.convert_to_numpy(optimizer.iterations))

    def _skipped_steps(self, epoch: int) -> int | None:
        """Those of the epoch; None where nobody knows how many it has.

        Raises:
            PrecisionError: there are fewer than none, or more than the epoch has.
        """
        if self._steps is None:
            steps = self.params["steps"]
            skipped = None if steps is None else steps - (self._applied - self._applied_before)
        else:
            steps = self._steps
            skipped = (epoch + 1) * steps - self._applied - sum(row.skipped_steps or 0 for row in self.epochs)
        if skipped is not None and not 0 <= skipped <= steps:
            raise PrecisionError(f"epoch {epoch + 1} has {steps} steps, of which {skipped} were skipped for overflow")
        return skipped


class StopWhenNotFinite(keras.callbacks.Callback):
    """Ends a training whose loss is not finite, at the end of the epoch: waiting for the device at each step is slow.

    Args:
        steps: training steps in an epoch.
        first_step: first step of the current epoch, from 0, whose loss was not finite in an earlier session.
    """

    async_safe = True  # Keras reads the losses in another thread, and does not wait for the device

    def __init__(self, steps: int, first_step: int | None = None) -> None:
        super().__init__()
        self.failure: TrainingFailure | None = None
        self.first_step = first_step
        self._steps, self._offset, self._done = steps, 0, 0

    def set_offset(self, offset: int) -> None:
        """Sets the number of steps of the next epoch that are done."""
        self._offset = offset

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Records the first step after which the epoch's mean loss is not finite. The calls may be in any order."""
        step = self._offset + batch
        self._done = max(self._done, step + 1)
        if not math.isfinite((logs or {}).get("loss", 0.0)) and (self.first_step is None or step < self.first_step):
            self.first_step = step

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Records the reason and stops the training.

        Raises:
            TaskError: the data ended before the epoch.
        """
        done, self._offset, self._done = max(self._done, self._offset), 0, 0
        fewest = self._steps if self.model.steps_per_execution == 1 else 1  # several at once read beyond the epoch
        if done < fewest:
            raise TaskError(f"{UNEVEN}: epoch {epoch + 1} has {done} of {self._steps}; {REPEAT}")
        loss = float((logs or {}).get("loss", 0.0))
        if math.isfinite(loss):
            return
        step = None if self.first_step is None else self.first_step + 1
        scale = precision.loss_scale(self.model)
        parts = [f"the loss is {loss} in epoch {epoch + 1}"]
        parts += [f"from step {step} on"] if step else []
        parts += [f"at loss scale {scale:g}"] if scale else []
        self.failure = TrainingFailure(", ".join(parts), epoch + 1, step)
        self.model.stop_training = True
