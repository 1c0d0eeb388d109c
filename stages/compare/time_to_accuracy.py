"""Seconds of training until an accuracy is reached that all arms reach: what a faster step is good for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from stages.compare.arms import Arm


@dataclass(frozen=True)
class TimeToAccuracy:
    """`target` is the validation accuracy, a fraction; `seconds` holds one tuple a variant, one time a seed."""

    target: float
    seconds: dict[str, tuple[float, ...]]

    def mean_s(self, variant: str) -> float | None:
        """Mean over the seeds; None for an arm that is left out because a training of it failed."""
        return float(np.mean(self.seconds[variant])) if variant in self.seconds else None


def time_to_accuracy(arms: Sequence[Arm]) -> TimeToAccuracy | None:
    """Time to the best validation accuracy that every training of every arm reaches; None where there is none.

    Whole epochs count, the first with its compilation: this is what a user waits for, not a paired measurement.
    """
    histories = {
        arm.variant: [training.history for training in arm.trainings if training.history is not None]
        for arm in arms
        if not arm.failures
    }
    all_histories = [history for of_arm in histories.values() for history in of_arm]
    if not all_histories or not all("epoch_time_s" in history for history in all_histories):
        return None
    target = min(float(history["val_accuracy"].max()) for history in all_histories)
    if not np.isfinite(target):
        return None
    times = {variant: tuple(_seconds(history, target) for history in of_arm) for variant, of_arm in histories.items()}
    return TimeToAccuracy(target, times)


def _seconds(history: pd.DataFrame, target: float) -> float:
    reached = int(np.argmax(history["val_accuracy"].to_numpy() >= target))
    return float(history["epoch_time_s"].iloc[: reached + 1].sum())
