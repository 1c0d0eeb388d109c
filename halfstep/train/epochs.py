"""The epochs of a training, and the lines that are printed of them. Does not import TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from halfstep.system import files
from halfstep.system.telling import progress
from halfstep.words.text import hours_text

_LONG_S = 1800.0  # of the rest of a training


@dataclass(frozen=True)
class Epoch:
    """One epoch, counted from 0.

    `skipped_steps` is the number of steps that changed nothing, because their gradients were not finite at the current
    loss scale. It is None without loss scaling, and so is `loss_scale`. `learning_rate` is None if the model has no
    single optimizer.

    Attributes:
        logs: what Keras reports of the epoch: loss and metrics, and with `val_` those of the validation.
    """

    epoch: int
    logs: dict[str, float]
    learning_rate: float | None
    epoch_time_s: float
    loss_scale: float | None
    skipped_steps: int | None

    def metrics(self) -> dict[str, float]:
        """Values by name, without the epoch's number and without those that are None."""
        others = {name: value for name, value in vars(self).items() if name not in ("epoch", "logs")}
        return {name: value for name, value in (self.logs | others).items() if value is not None}

    def as_dict(self) -> dict[str, float]:
        """The row of `history.csv`."""
        return {"epoch": self.epoch, **self.metrics()}


def epoch_line(name: str, epochs: int) -> Callable[[Epoch], None]:
    """Returns a listener that shows how far a training is, for output without a progress bar (logs, CI)."""

    def show(row: Epoch) -> None:
        progress(name, ", ".join([f"epoch {row.epoch + 1}/{epochs}", *_score(row.logs)]))

    return show


def length_line(name: str, epochs: int, trainings: int) -> Callable[[Epoch], None]:
    """Returns a listener that says at the second epoch's end, the first without compilation, how long a study takes.

    Args:
        name: of the training.
        epochs: of each training.
        trainings: of the study: each variant with each seed.
    """

    def show(row: Epoch) -> None:
        left_s = row.epoch_time_s * (epochs - row.epoch - 1)
        if row.epoch == 1 and left_s > _LONG_S:
            fewer = "train.epochs: fewer, or 0 for the speed alone"
            if files.judged_folder() is not None:
                fewer = "--set train.epochs=N: fewer; --speed-only: the speed alone"
            all_s = row.epoch_time_s * epochs * trainings
            print(
                f"{name}: its {epochs:,} epochs end in about {hours_text(left_s)}, and all {trainings} trainings take "
                f"about {hours_text(all_s)} ({fewer})",
                file=sys.stderr,
                flush=True,
            )

    return show


def _score(logs: Mapping[str, float]) -> list[str]:
    """The validation's score, or else its loss, or the loss."""
    scores = [name for name in logs if name.startswith("val_") and name != "val_loss"]
    names = [*scores, *(name for name in ("val_loss", "loss") if name in logs)]
    return [f"{name} {logs[name]:.4f}" for name in names[:1]]
