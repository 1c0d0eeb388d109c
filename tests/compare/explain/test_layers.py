"""Reasons that name layers, and carry `float32_layers` as their change."""

from __future__ import annotations

import pytest

from halfstep.advise.advice import advice_of
from halfstep.compare.document import document_of
from halfstep.params.schema import Params, Variant
from halfstep.results.comparison import Comparison, Reason
from halfstep.results.training import Overflow
from tests.small_study import FAILED, SmallStudy


def reason_of(comparison: Comparison, variant: str, code: str) -> Reason:
    return next(reason for reason in comparison.candidates[variant].reasons if reason.code == code)


def place(
    direction: str = "forward", magnitude: float | None = 81000.0, readers: tuple[str, ...] = ("norm",)
) -> Overflow:
    return Overflow(
        layer="block/dense", direction=direction, magnitude=magnitude, step=7, loss_scale=32768.0, readers=readers
    )


@pytest.mark.parametrize(
    ("overflow", "said"),
    [
        (place(), "step 7, the forward pass of block/dense reaches 81,000 in float32; float16 ends at 65,504."),
        (
            place(magnitude=4.0, readers=()),
            "step 7, the forward pass of block/dense overflows inside, though it gives 4.00 in float32",
        ),
        (
            place("backward", 2e5, ()),
            "step 7, the gradients of block/dense reach 200,000 in float32 at loss scale 32,768",
        ),
        (place("weight update", None, ()), "step 7, the update of block/dense overflows"),
    ],
)
def test_failed_training_names_the_layer_and_keeps_it_in_float32(
    project: SmallStudy, overflow: Overflow, said: str
) -> None:
    project.edit_training(FAILED, 1, overflow=overflow)
    comparison = document_of(project.compare())
    reason = reason_of(comparison, FAILED, "arm_failed")
    assert f"In seed 1, {said}" in reason.text
    assert reason.evidence["overflow"]["seed 1"]["layer"] == "block/dense"
    assert reason.change is not None
    assert reason.change.to == ("block/dense", *overflow.readers)


def test_gradients_that_vanish_are_a_reason(project: SmallStudy) -> None:
    project.edit_training("mixed_float16", 2, underflow={"first": 0.98, "second": 0.6})
    reason = reason_of(document_of(project.compare()), "mixed_float16", "gradient_underflow")
    assert "98 % in first, 60 % in second" in reason.text
    assert reason.change is not None
    assert reason.change.to == ("first", "second")


def test_layers_join_those_that_the_entry_keeps_already(project: SmallStudy) -> None:
    project.edit_training("mixed_float16", 2, underflow={"first": 0.98})
    kept = Variant(policy="mixed_float16", onednn=False, float32_layers=("norm",))
    settings = Params(variants=Params().variants | {"mixed_float16": kept})
    advice = [
        item for item in advice_of(document_of(project.compare()), settings) if item.reason.code == "gradient_underflow"
    ]
    assert advice[0].trial is not None
    assert advice[0].trial.entry.float32_layers == ("norm", "first")
    assert advice[0].trial.name == "mixed_float16_first_in_float32"
