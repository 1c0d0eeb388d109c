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
    """One epoch, counted from 0. `loss_scale` is None where there is no loss scaling."""

    epoch: int
    loss: float
    accuracy: float
    val_loss: float
    val_accuracy: float
    learning_rate: float
    epoch_time_s: float
    loss_scale: float | None

    def metrics(self) -> dict[str, float]:
        """Name to value, without what does not apply and without the epoch's number."""
        values = {name: value for name, value in vars(self).items() if name != "epoch"}
        return {name: value for name, value in values.items() if value is not None}


class EpochRecorder(keras.callbacks.Callback):
    """Measures each epoch and hands it on; the time is that of training and validation, until the device is done."""

    def __init__(self, receivers: tuple[Callable[[Epoch], None], ...]) -> None:
        super().__init__()
        self.epochs: list[Epoch] = []
        self._receivers = receivers
        self._started_s = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Reads the clock."""
        self._started_s = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Records the epoch; Keras has read the metrics from the device by now, so all its steps are done."""
        logs = logs or {}
        row = Epoch(
            epoch=epoch,
            loss=float(logs["loss"]),
            accuracy=float(logs[recipe.METRIC]),
            val_loss=float(logs["val_loss"]),
            val_accuracy=float(logs[f"val_{recipe.METRIC}"]),
            learning_rate=float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)),
            epoch_time_s=time.perf_counter() - self._started_s,
            loss_scale=recipe.loss_scale(self.model),
        )
        self.epochs.append(row)
        for receive in self._receivers:
            receive(row)


class StopWhenNotFinite(keras.callbacks.Callback):
    """Ends a training whose loss is no longer a finite number: no later epoch can mend it.

    It looks once an epoch, at the mean over its steps: looking at every step would make the host wait for the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reason: str | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Notes the reason and asks Keras to stop."""
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            scale = recipe.loss_scale(self.model)
            self.reason = f"the loss is {loss} in epoch {epoch + 1}" + (f", at loss scale {scale:g}" if scale else "")
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
