"""Reasons in the trainings: what overflowed, what failed."""

from __future__ import annotations

from stages.compare.arms import Arm
from stages.compare.evidence import Measurements, Reason


def loss_scale_collapse(seen: Measurements) -> Reason | None:
    """The loss scale fell below 1: gradients overflow float16 even without scaling."""
    scales = {
        f"seed {item.seed}": item.metrics["loss_scale"] for item in seen.trainings if "loss_scale" in item.metrics
    }
    collapsed = {seed: scale for seed, scale in scales.items() if scale < 1}
    if not collapsed:
        return None
    listed = ", ".join(f"{seed}: {scale:.2g}" for seed, scale in collapsed.items())
    return Reason(
        code="loss_scale_collapse",
        text=f"The loss scale ended below 1 in {len(collapsed)} of {len(scales)} trainings ({listed}): "
        "gradients do not fit float16.",
        evidence={"loss_scale": collapsed},
        advice="Lower train.learning_rate, or use mixed_bfloat16, which needs no loss scaling.",
    )


def arm_failed(arm: Arm, role: str = "candidate") -> Reason:
    """The reason of an arm that has no measurements because a training of it failed."""
    seeds_by_cause: dict[str, list[int]] = {}
    for training in arm.failures:
        seeds_by_cause.setdefault(training.failure, []).append(training.seed)
    listed = "; ".join(f"seed {', '.join(map(str, seeds))}: {cause}" for cause, seeds in seeds_by_cause.items())
    retries = " ".join(f"train@{arm.variant}-{training.seed}" for training in arm.failures)
    return Reason(
        code="arm_failed",
        text=f"{len(arm.failures)} of {len(arm.trainings)} trainings of the {role} {arm.variant} failed ({listed}).",
        evidence={
            "variant": arm.variant,
            "trainings": len(arm.trainings),
            "failed": {f"seed_{training.seed}": training.failure for training in arm.failures},
        },
        advice=f"Lower train.learning_rate, or try again with `dvc repro -f -s {retries}` and `dvc repro`.",
    )
