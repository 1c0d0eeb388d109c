"""What happens at the end of an epoch: a row of history, a line on the terminal, and the end of a hopeless run."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import keras

from stages import recipe


@dataclass(frozen=True)
class Epoch:
    """One epoch, counted from 0. `loss_scale` and `skipped_steps` are None where there is no loss scaling.

    `skipped_steps` are the epoch's steps whose gradients were not finite at the loss scale of that moment, and which
    changed nothing.
    """

    epoch: int
    loss: float
    accuracy: float
    val_loss: float
    val_accuracy: float
    learning_rate: float
    epoch_time_s: float
    loss_scale: float | None
    skipped_steps: int | None

    def metrics(self) -> dict[str, float]:
        """Name to value, without what does not apply and without the epoch's number."""
        values = {name: value for name, value in vars(self).items() if name != "epoch"}
        return {name: value for name, value in values.items() if value is not None}


class EpochRecorder(keras.callbacks.Callback):
    """Measures each epoch and hands it on; the time is that of training and validation, until the device is done.

    Args:
        receivers: called with each `Epoch` when it ends.
        steps: training steps in an epoch.
        epochs: those that have ended already.
        elapsed_s: seconds that the next epoch has taken already.
    """

    def __init__(
        self,
        receivers: tuple[Callable[[Epoch], None], ...],
        steps: int,
        epochs: tuple[Epoch, ...] = (),
        elapsed_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.epochs: list[Epoch] = list(epochs)
        self._receivers, self._steps, self._earlier_s = receivers, steps, elapsed_s
        self._started_s = 0.0
        self.told_s = 0.0  # seconds that the receivers took: a tracking server's time is not the training's

    @property
    def elapsed_s(self) -> float:
        """Seconds that the present epoch has taken, over all sittings."""
        return self._earlier_s + time.perf_counter() - self._started_s

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Reads the clock."""
        self._started_s = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Records the epoch; Keras has read the metrics from the device by now, so all its steps are done."""
        logs = logs or {}
        scale = recipe.loss_scale(self.model)
        row = Epoch(
            epoch=epoch,
            loss=float(logs["loss"]),
            accuracy=float(logs[recipe.METRIC]),
            val_loss=float(logs["val_loss"]),
            val_accuracy=float(logs[f"val_{recipe.METRIC}"]),
            learning_rate=float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)),
            epoch_time_s=self.elapsed_s,
            loss_scale=scale,
            skipped_steps=None if scale is None else self._skipped_steps(epoch),
        )
        self._earlier_s = 0.0
        self.epochs.append(row)
        ended_s = time.perf_counter()
        for receive in self._receivers:
            receive(row)
        self.told_s += time.perf_counter() - ended_s

    def _skipped_steps(self, epoch: int) -> int:
        """The optimizer counts the steps that it took; what is missing was skipped, in this epoch or before."""
        taken = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        return (epoch + 1) * self._steps - taken - sum(row.skipped_steps or 0 for row in self.epochs)


@dataclass(frozen=True)
class Failure:
    """Why a training ended as failed; `epoch` and `step` of the epoch count from 1, as `reason` does."""

    reason: str
    epoch: int | None = None
    step: int | None = None


class StopWhenNotFinite(keras.callbacks.Callback):
    """Ends a training whose loss is no longer a finite number: no later epoch can mend it.

    It ends at the end of an epoch: waiting for the device at every step would cost more than the rest of an epoch.

    Args:
        first_step: of the present epoch, from 0, whose loss was not finite, where that is known already.
    """

    async_safe = True  # Keras then reads the losses in a thread of its own, and does not wait for the device

    def __init__(self, first_step: int | None = None) -> None:
        super().__init__()
        self.failure: Failure | None = None
        self.first_step = first_step
        self._offset = 0

    def begin_at(self, offset: int) -> None:
        """Says how many steps of the next epoch are done."""
        self._offset = offset

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Notes the first step after which the epoch's mean loss is not finite; calls may come in any order."""
        step = self._offset + batch
        if not math.isfinite((logs or {}).get("loss", 0.0)) and (self.first_step is None or step < self.first_step):
            self.first_step = step

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Notes the reason and asks Keras to stop."""
        self._offset = 0
        loss = float((logs or {}).get("loss", 0.0))
        if math.isfinite(loss):
            return
        step = None if self.first_step is None else self.first_step + 1
        scale = recipe.loss_scale(self.model)
        words = [f"the loss is {loss} in epoch {epoch + 1}"]
        words += [f"from step {step} on"] if step else []
        words += [f"at loss scale {scale:g}"] if scale else []
        self.failure = Failure(", ".join(words), epoch + 1, step)
        self.model.stop_training = True


def epoch_line(name: str, epochs: int) -> Callable[[Epoch], None]:
    """A receiver that prints one line an epoch, for terminals that keep what is printed (logs, CI)."""

    def show(row: Epoch) -> None:
        print(
            f"{name}: epoch {row.epoch + 1}/{epochs}: loss {row.loss:.4f}, accuracy {row.accuracy:.4f}, "
            f"val_loss {row.val_loss:.4f}, val_accuracy {row.val_accuracy:.4f}, {row.epoch_time_s:.1f} s",
            flush=True,
        )

    return show


def verbosity() -> int:
    """Keras's progress bar on a terminal; nothing of Keras's own otherwise."""
    return 1 if sys.stdout.isatty() else 0
