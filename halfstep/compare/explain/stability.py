"""Reasons about the trainings and their weights: overflow, failure, and weights that were not evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from halfstep.compare.explain.evidence import Evidence
from halfstep.compare.study import VariantResult
from halfstep.policies import BFLOAT16
from halfstep.results.comparison import Reason, Remedy
from halfstep.results.training import LARGEST_FLOAT16, Overflow, Training
from halfstep.text import MEASURE_AGAIN, TRAIN, measure_text, number_text

_SHOWN = 5  # layers


def loss_scale_collapse(data: Evidence) -> Reason | None:
    """The loss scale fell below 1: gradients overflow float16 even without scaling."""
    loss_scales = {f"seed {item.seed}": item.metrics.loss_scale for item in data.trainings}
    scales = {seed: scale for seed, scale in loss_scales.items() if scale is not None}
    collapsed = {seed: scale for seed, scale in scales.items() if scale < 1}
    if not collapsed:
        return None
    bf16 = data.has_hardware_for(BFLOAT16) is not False and "mixed_bfloat16" not in data.rejected
    by_seed = ", ".join(f"{seed}: {scale:.2g}" for seed, scale in collapsed.items())
    return Reason(
        code="loss_scale_collapse",
        text=f"The loss scale ended below 1 in {len(collapsed)} of {len(scales)} trainings ({by_seed}): "
        f"gradients do not fit float16.{_places_text(data.trainings)}",
        evidence={"loss_scale": collapsed} | _places(data.trainings),
        advice="Lower train.learning_rate" + (", or use mixed_bfloat16, which needs no loss scaling." if bf16 else "."),
        change=_kept_in_float32(data.candidate.summary.variant, data.trainings),
    )


def gradient_underflow(data: Evidence) -> Reason | None:
    """Most gradients of a layer are 0 in float16 at the loss scale in force, and are not in float32."""
    underflow: dict[str, float] = {}
    for training in data.trainings:
        for layer, share in (training.metrics.underflow or {}).items():
            underflow[layer] = max(share, underflow.get(layer, 0.0))
    if not underflow:
        return None
    shares = ", ".join(f"{100 * share:.0f} % in {layer}" for layer, share in list(underflow.items())[:_SHOWN])
    return Reason(
        code="gradient_underflow",
        text=f"At the loss scale in force, gradients are 0 in float16 that are not 0 in float32: {shares}. "
        "These layers learn little.",
        evidence={"zero_gradients": underflow},
        advice="Keep them in float32, or use mixed_bfloat16, which has the range of float32.",
        change=data.changed("float32_layers", tuple(underflow)),
    )


def _located(trainings: Iterable[Training]) -> dict[int, Overflow]:
    return {item.seed: item.metrics.overflow for item in trainings if item.metrics.overflow is not None}


def _places(trainings: Iterable[Training]) -> dict[str, Any]:
    """Where trainings overflow, as evidence."""
    overflows = {f"seed {seed}": place.model_dump(exclude_none=True) for seed, place in _located(trainings).items()}
    return {"overflow": overflows} if overflows else {}


def _places_text(trainings: Iterable[Training]) -> str:
    """Such as ` In seed 0, step 3, the forward pass of 'block' reaches 81,000; float16 ends at 65,504.`."""
    return "".join(f" In seed {seed}, {_place_text(place)}." for seed, place in _located(trainings).items())


def _place_text(place: Overflow) -> str:
    """Such as `step 3, the forward pass of block/dense reaches 81,000 in float32; float16 ends at 65,504`."""
    step = f"step {place.step}, " if place.step else ""
    size = None if place.magnitude is None else number_text(place.magnitude)
    if place.direction == "inputs":
        text = f"the inputs of the model reach {size}, and it casts them to float16 before {place.layer} gets them"
    elif place.direction == "backward":
        scaled = f" at loss scale {place.loss_scale:,.6g}" if place.loss_scale else ""
        text = f"the gradients of {place.layer} {'overflow' if size is None else f'reach {size} in float32'}{scaled}"
    elif place.direction == "weight update":
        text = f"the update of {place.layer} overflows"
    elif place.magnitude is None or place.magnitude > LARGEST_FLOAT16:
        text = f"the forward pass of {place.layer} {'overflows' if size is None else f'reaches {size} in float32'}"
    else:
        text = f"the forward pass of {place.layer} overflows inside, though it gives {size} in float32"
    return f"{step}{text}; float16 ends at 65,504"


def _kept_in_float32(variant: str, trainings: Iterable[Training]) -> Remedy | None:
    """To keep the layers in float32, too, that overflow, and those that read what does not fit."""
    places = [place for place in _located(trainings).values() if place.direction != "inputs"]
    layers = [path for place in places for path in (place.layer, *place.readers)]
    return Remedy(key=f"variants.{variant}.float32_layers", to=tuple(dict.fromkeys(layers))) if layers else None


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
        advice=f"The warnings of the report have the cause. Measure again: `{MEASURE_AGAIN}`.",
    )


def arm_failed(result: VariantResult, role: str = "candidate", left_out: str | None = None) -> Reason:
    """The reason of a variant that was not measured because a training of it failed.

    Args:
        result: of the variant.
        role: what it is in the comparison.
        left_out: why `prepare` has found that it cannot be trained; None where it has not.
    """
    causes = {training.seed: str(training.metrics.reason) for training in result.failures}
    seeds_by_cause: dict[str, list[int]] = {}
    for seed, cause in causes.items():
        seeds_by_cause.setdefault(cause, []).append(seed)
    by_cause = "; ".join(f"seed {', '.join(map(str, seeds))}: {cause}" for cause, seeds in seeds_by_cause.items())
    retries = " ".join(f"train@{result.variant}-{seed}" for seed in causes)
    is_numerical = any(training.metrics.train_time_s is not None for training in result.failures)
    cure = "Lower train.learning_rate" if is_numerical else "Mend what the reason says"
    text = f"{len(causes)} of {len(result.trainings)} trainings of the {role} {result.variant} failed ({by_cause})."
    advice = f"{cure}, or try again with `dvc repro -f -s {retries}` and `dvc repro`."
    if left_out is not None:
        text = f"The {role} {result.variant} cannot be trained: {left_out}."
        advice = f"{cure}, and run `dvc repro`; or take {result.variant} out of train.variants."
    return Reason(
        code="arm_failed",
        text=f"{text}{_places_text(result.failures)}",
        evidence={
            "variant": result.variant,
            "trainings": len(result.trainings),
            "failed": {f"seed_{seed}": cause for seed, cause in causes.items()},
        }
        | _places(result.failures),
        advice=advice,
        change=_kept_in_float32(result.variant, result.failures),
    )
