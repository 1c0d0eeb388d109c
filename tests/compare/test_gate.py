"""The gate of a pull request: what opens it, what keeps it shut, and what is left behind when it stays shut."""

from __future__ import annotations

from typing import Any

import pytest

from stages.compare.comparison import Comparison
from stages.compare.contents import as_json, as_tracking_tags
from stages.compare.gate import check_gate
from stages.errors import GateError


def test_gate_passes_when_a_candidate_is_adopted(project: Any) -> None:
    comparison = project.compare(gate=True)
    healthy = Comparison(
        project.load(variants=("float32", "mixed_bfloat16")),
        comparison.params,
        comparison.noise,
        comparison.candidates[1:2],
    )
    check_gate(healthy)


def test_gate_refuses_when_nothing_is_adopted(project: Any) -> None:
    comparison = project.compare(gate=True)
    rejected = Comparison(
        project.load(variants=("float32", "mixed_float16")),
        comparison.params,
        comparison.noise,
        comparison.candidates[:1],
    )
    with pytest.raises(GateError, match="mixed_float16 reject"):
        check_gate(rejected)


def test_gate_refuses_a_failed_arm(comparison: Comparison) -> None:
    with pytest.raises(GateError, match="float16 failed"):
        check_gate(comparison)


@pytest.mark.parametrize(("variant", "state"), [("mixed_bfloat16", "passed"), ("mixed_float16", "failed")])
def test_the_state_of_the_gate_is_told_only_where_there_is_one(project: Any, variant: str, state: str) -> None:
    for gate in (True, False):
        whole = project.compare(gate=gate)
        kept = tuple(item for item in whole.candidates if item.variant == variant)
        comparison = Comparison(project.load(variants=("float32", variant)), whole.params, whole.noise, kept)
        assert as_json(comparison).get("gate") == (state if gate else None)
        assert as_tracking_tags(comparison).get("gate") == (state if gate else None)
