"""Reasons about the trainings and their weights: overflow, failure, and weights that were not evaluated."""

from __future__ import annotations

from stages.compare.explain.evidence import Evidence
from stages.compare.study import VariantResult
from stages.results.comparison import Reason
from stages.text import TRAIN, measure_text


def loss_scale_collapse(data: Evidence) -> Reason | None:
    """The loss scale fell below 1: gradients overflow float16 even without scaling."""
    found = {f"seed {item.seed}": item.metrics.loss_scale for item in data.trainings}
    scales = {seed: scale for seed, scale in found.items() if scale is not None}
    collapsed = {seed: scale for seed, scale in scales.items() if scale < 1}
    if not collapsed:
        return None
    bf16 = data.has_hardware_for("mixed_bfloat16") is not False and "mixed_bfloat16" not in data.rejected
    by_seed = ", ".join(f"{seed}: {scale:.2g}" for seed, scale in collapsed.items())
    return Reason(
        code="loss_scale_collapse",
        text=f"The loss scale ended below 1 in {len(collapsed)} of {len(scales)} trainings ({by_seed}): "
        "gradients do not fit float16.",
        evidence={"loss_scale": collapsed},
        advice="Lower train.learning_rate" + (", or use mixed_bfloat16, which needs no loss scaling." if bf16 else "."),
    )


def same_weights_missing(data: Evidence, measure: str) -> Reason | None:
    """The quality that a verdict on inference asks for is not known."""
    if measure == TRAIN or not data.lacks_same_weights:
        return None
    return Reason(
        code="same_weights_missing",
        measure=measure,
        text="The weights of the baseline were not evaluated in the precision of this variant, so nothing is concluded "
        f"about {measure_text(measure)}.",
        evidence={},
        advice="The warnings of the report have the cause. Measure again: dvc repro -f -s profile, then dvc repro.",
    )


def arm_failed(result: VariantResult, role: str = "candidate") -> Reason:
    """The reason of a variant that was not measured because a training of it failed."""
    causes = {training.seed: str(training.metrics.reason) for training in result.failures}
    seeds_by_cause: dict[str, list[int]] = {}
    for seed, cause in causes.items():
        seeds_by_cause.setdefault(cause, []).append(seed)
    by_cause = "; ".join(f"seed {', '.join(map(str, seeds))}: {cause}" for cause, seeds in seeds_by_cause.items())
    retries = " ".join(f"train@{result.variant}-{seed}" for seed in causes)
    return Reason(
        code="arm_failed",
        text=f"{len(causes)} of {len(result.trainings)} trainings of the {role} {result.variant} failed ({by_cause}).",
        evidence={
            "variant": result.variant,
            "trainings": len(result.trainings),
            "failed": {f"seed_{seed}": cause for seed, cause in causes.items()},
        },
        advice=f"Lower train.learning_rate, or try again with `dvc repro -f -s {retries}` and `dvc repro`.",
    )
