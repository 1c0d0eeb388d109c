"""What the histories of the trainings show: the loss scale by epoch, and the time to a given score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from halfstep.compare.study import VariantResult
from halfstep.results.training import Training


@dataclass(frozen=True)
class LossScaling:
    """The loss scaling of one training.

    Attributes:
        scales: loss scale at the end of each epoch, `(epochs,)`.
        skipped_steps: steps skipped because a gradient overflowed.
        failed_at: epoch, step and loss scale of the first loss that was not finite.
    """

    variant: str
    seed: int
    scales: tuple[float, ...]
    skipped_steps: int | None = None
    failed_at: dict[str, float] | None = None

    @property
    def label(self) -> str:
        """Name of the training in charts and sentences."""
        return f"{self.variant}, seed {self.seed}"

    @property
    def text(self) -> str:
        """What happened, in one sentence."""
        found = []
        if self.scales:
            first, last = self.scales[0], self.scales[-1]
            found.append(f"the loss scale was {first:,g} after the first epoch and {last:,g} after the last")
        if self.skipped_steps is not None:
            found.append(f"{self.skipped_steps:,} step{'' if self.skipped_steps == 1 else 's'} skipped for overflow")
        if self.failed_at:
            where = ", ".join(f"{name.replace('_', ' ')} {value:,g}" for name, value in self.failed_at.items())
            found.append(f"the first loss that is not finite occurred at {where}")
        return f"{self.label}: {'; '.join(found)}."


def loss_scaling(variants: Sequence[VariantResult]) -> list[LossScaling]:
    """Every training that scaled its loss, or whose loss became infinite or NaN."""
    found = [_of_training(result.variant, training) for result in variants for training in result.trainings]
    return [item for item in found if item.scales or item.failed_at]


def _of_training(variant: str, training: Training) -> LossScaling:
    history = pd.DataFrame() if training.history is None else training.history
    scales = tuple(map(float, history["loss_scale"].dropna())) if "loss_scale" in history else ()
    skipped = int(history["skipped_steps"].sum()) if scales else None
    failed_at = (
        training.metrics.model_dump(include={"epoch", "step", "loss_scale"}, exclude_none=True)
        if training.failed
        else {}
    )
    return LossScaling(variant, training.seed, scales, skipped, failed_at or None)


@dataclass(frozen=True)
class TimeToScore:
    """Seconds of training, one a seed, until every variant reaches the validation score `target`."""

    target: float
    seconds: dict[str, tuple[float, ...]]

    @property
    def means_s(self) -> dict[str, float]:
        """Mean over the seeds, by variant."""
        return {variant: float(np.mean(seconds)) for variant, seconds in self.seconds.items()}


def time_to_score(variants: Sequence[VariantResult], score_name: str) -> TimeToScore | None:
    """Time to the best validation score that all trainings reach; None if a training does not compute it by epoch.

    Variants with a failed training are left out. Whole epochs count, the first with its compilation. The times are
    those of the trainings, which were not interleaved.
    """
    column = f"val_{score_name}"
    histories = {
        result.variant: [training.history for training in result.trainings if training.history is not None]
        for result in variants
        if not result.failures
    }
    best = [
        float(history[column].max()) if column in history else np.nan
        for found in histories.values()
        for history in found
    ]
    if not best or not np.isfinite(best).all():
        return None
    target = min(best)
    times = {
        variant: tuple(_seconds(history, column, target) for history in found) for variant, found in histories.items()
    }
    return TimeToScore(target, times)


def _seconds(history: pd.DataFrame, column: str, target: float) -> float:
    reached = int(np.argmax(history[column].to_numpy() >= target))
    return float(history["epoch_time_s"].iloc[: reached + 1].sum())
