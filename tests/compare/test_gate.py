"""The gate of a pull request: when it passes, and what it reports when it fails."""

from __future__ import annotations

import pytest

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.gate import check_gate, gate_of
from halfstep.compare.metrics import tracking_tags
from halfstep.errors import GateError
from halfstep.params.schema import CompareParams
from halfstep.results.comparison import Candidate
from tests.small_study import SmallStudy, given


def _only(project: SmallStudy, variant: str, *, gate: bool = True) -> Judging:
    """The comparison with one candidate."""
    judging = project.compare(gate=gate)
    cases = tuple(case for case in judging.cases if case.variant == variant)
    return given(judging, study=project.load(variants=("float32", variant)), cases=cases)


def test_gate_passes_when_a_candidate_is_adopted(project: SmallStudy) -> None:
    check_gate(document_of(_only(project, "mixed_bfloat16")))


def test_gate_fails_when_a_training_failed(comparison: Judging) -> None:
    judging = given(comparison, params=CompareParams(gate=True))
    with pytest.raises(GateError, match="a training of float16 failed"):
        check_gate(document_of(judging))


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


def candidate(project: SmallStudy, low: float, high: float, outcome: str = "shown") -> Candidate:
    """One whose interval in training is given; of inference nothing is known."""
    original = document_of(_only(project, "mixed_bfloat16")).candidates["mixed_bfloat16"]
    assert original.speedup is not None
    assert original.quality is not None
    speedup = original.speedup["train"].model_copy(update={"low": low, "high": high, "value": (low * high) ** 0.5})
    quality = original.quality.model_copy(update={"outcome": outcome})
    return original.model_copy(update={"speedup": {"train": speedup}, "quality": quality, "quality_same_weights": None})


@pytest.mark.parametrize(
    ("low", "high", "outcome", "state", "strict", "text"),
    [
        (0.98, 1.02, "shown", "passed", "passed", None),
        (0.97, 1.02, "shown", "passed", "passed", None),
        (0.90, 0.96, "shown", "failed", "failed", "is slower in training: 0.93× (0.90 to 0.96), and at least 0.97×"),
        (0.90, 1.02, "shown", "passed", "failed", "is not shown to be as fast in training: 0.96× (0.90 to 1.02)"),
        (1.50, 1.60, "refuted", "failed", "failed", "loses more accuracy than the margin"),
        (1.50, 1.60, "not established", "passed", "failed", "is not shown to have the same accuracy"),
    ],
)
def test_not_slower(
    project: SmallStudy, low: float, high: float, outcome: str, state: str, strict: str, text: str | None
) -> None:
    candidates = {"new": candidate(project, low, high, outcome)}
    for gate, expected in (("not_slower", state), ("not_slower_strict", strict)):
        result = gate_of(candidates, (), (), CompareParams.model_validate({"gate": gate}))
        assert result.state == expected
        assert (result.text is None) == (text is None)
        assert text is None or f"new {text}" in (result.text or "")


def test_measure_that_decides_nothing_is_open(project: SmallStudy) -> None:
    candidates = {"new": candidate(project, 0.5, 0.6)}
    result = gate_of(candidates, (), ("train",), CompareParams(gate="not_slower"))
    assert result == ("passed", "new: training decides nothing in this run")
    assert gate_of(candidates, (), ("train",), CompareParams(gate="not_slower_strict")).state == "failed"


def test_what_is_left_open_is_printed(project: SmallStudy, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(_only(project, "mixed_bfloat16"))
    check_gate(document.model_copy(update={"gate": "passed", "gate_text": "new was not measured"}))
    assert capsys.readouterr().out == "compare.gate passes; new was not measured\n"
