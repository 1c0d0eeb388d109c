"""The gate of a pull request: when it passes, and what it reports when it fails."""

from __future__ import annotations

import pytest

from halfstep.compare.gate import check_gate
from halfstep.compare.judge import document_of
from halfstep.compare.judging import Judging
from halfstep.compare.metrics import tracking_tags
from halfstep.errors import GateError
from tests.small_study import SmallStudy


def _only(project: SmallStudy, variant: str, *, gate: bool = True) -> Judging:
    """The comparison with one candidate."""
    found = project.compare(gate=gate)
    candidates = tuple(item for item in found.candidates if item.variant == variant)
    return Judging(project.load(variants=("float32", variant)), found.params, found.control, found.void, candidates)


def test_gate_passes_when_a_candidate_is_adopted(project: SmallStudy) -> None:
    check_gate(document_of(_only(project, "mixed_bfloat16")))


def test_gate_fails_when_nothing_is_adopted(project: SmallStudy) -> None:
    with pytest.raises(GateError, match="mixed_float16 reject"):
        check_gate(document_of(_only(project, "mixed_float16")))


def test_gate_fails_when_a_training_failed(comparison: Judging) -> None:
    with pytest.raises(GateError, match="a training of float16 failed"):
        check_gate(document_of(comparison))


@pytest.mark.parametrize(("variant", "state"), [("mixed_bfloat16", "passed"), ("mixed_float16", "failed")])
def test_state_of_the_gate_is_recorded_only_if_it_is_set(project: SmallStudy, variant: str, state: str) -> None:
    for gate in (True, False):
        result = document_of(_only(project, variant, gate=gate))
        assert result.gate == (state if gate else None)
        assert tracking_tags(result).get("gate") == (state if gate else None)


def test_gate_uses_the_adjusted_verdicts(project: SmallStudy) -> None:
    """A measure whose control differs adopts nothing, whatever its ratio is."""
    project.scale_times("_control", "rounds.csv", 1.2)
    with pytest.raises(GateError, match="mixed_bfloat16 inconclusive"):
        check_gate(document_of(_only(project, "mixed_bfloat16")))
