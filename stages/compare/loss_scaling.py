"""Health of float16: how the loss scale went, what was skipped, and where a loss was no longer finite."""

from __future__ import annotations

from dataclasses import dataclass

from stages.compare.arms import Arm, Training


@dataclass(frozen=True)
class LossScaling:
    """The course of one training. `scales` is the loss scale at the end of each epoch, `(epochs,)`."""

    variant: str
    seed: int
    scales: tuple[float, ...]
    skipped_steps: int | None = None
    failed_at: dict[str, float] | None = None  # epoch, step and loss scale of the first loss that is not finite

    @property
    def text(self) -> str:
        """What happened, in one sentence."""
        found = [f"the loss scale went from {self.scales[0]:,g} to {self.scales[-1]:,g}"] if self.scales else []
        if self.skipped_steps is not None:
            found.append(f"{self.skipped_steps:,} step{'' if self.skipped_steps == 1 else 's'} skipped for overflow")
        if self.failed_at:
            where = ", ".join(f"{name.replace('_', ' ')} {value:,g}" for name, value in self.failed_at.items())
            found.append(f"the first loss that is not finite came at {where}")
        return f"{self.variant}, seed {self.seed}: {'; '.join(found)}."


def loss_scaling(arms: tuple[Arm, ...]) -> list[LossScaling]:
    """Every training that scaled its loss, or whose loss ceased to be finite."""
    found = (_of_training(arm.variant, training) for arm in arms for training in arm.trainings)
    return [course for course in found if course.scales or course.failed_at]


def _of_training(variant: str, training: Training) -> LossScaling:
    history = training.history
    scales: tuple[float, ...] = ()
    skipped = None
    if history is not None and "loss_scale" in history:
        scales = tuple(float(value) for value in history["loss_scale"].dropna())
    if scales and history is not None and "skipped_steps" in history:
        skipped = int(history["skipped_steps"].sum())
    failed_at = {
        name: float(training.metrics[name])
        for name in ("epoch", "step", "loss_scale")
        if training.failed and training.metrics.get(name) is not None
    }
    return LossScaling(variant, training.seed, scales, skipped, failed_at or None)
