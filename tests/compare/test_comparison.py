"""Comparisons of a complete study, read from files that the stages' writers wrote."""

from __future__ import annotations

import pytest

from stages.compare.comparison import Candidate, compare
from stages.errors import ComparisonError
from stages.params import CompareParams, Variant
from stages.results.profile import InForce
from stages.results.study import load_study
from tests.small_study import PROTOCOL, SmallStudy


def _codes(candidate: Candidate) -> list[str]:
    return [reason.code for reason in candidate.reasons]


def _in_force(policy: str, *, xla: bool = False, onednn: bool = True) -> InForce:
    return InForce(policy=policy, xla=xla, tf32=True, onednn=onednn)


def test_xla_that_is_requested_but_not_in_force_is_a_reason(project: SmallStudy) -> None:
    for name, policy in (("float32", "float32"), ("_control", "float32"), ("mixed_bfloat16", "mixed_bfloat16")):
        project.edit_profile(name, entry=Variant(policy=policy, xla=True), in_force=_in_force(policy, xla=True))  # type: ignore[arg-type]
    assert "xla_differs" not in _codes(project.compare().candidates[1])
    project.edit_profile("mixed_bfloat16", in_force=_in_force("mixed_bfloat16"))
    candidate = project.compare().candidates[1]
    (reason,) = [reason for reason in candidate.reasons if reason.code == "xla_differs"]
    assert reason.text == "XLA is off although the entry of variants requests it on."
    assert reason.evidence == {"requested_xla": True, "candidate_xla": False}


def test_onednn_that_is_off_in_all_variants_does_not_differ(project: SmallStudy) -> None:
    """TF_ENABLE_ONEDNN_OPTS=0 switches it off for the baseline too, whose entry requests it."""
    off = Variant(policy="mixed_float16", onednn=False)
    project.edit_profile("mixed_float16", entry=off, in_force=_in_force("mixed_float16", onednn=False))
    assert "onednn_differs" in _codes(project.compare().candidates[0])
    project.edit_profile("float32", in_force=_in_force("float32", onednn=False))
    assert "onednn_differs" not in _codes(project.compare().candidates[0])


def test_real_difference_of_onednn_is_a_reason_whatever_the_entries_request(project: SmallStudy) -> None:
    project.edit_profile("mixed_bfloat16", in_force=_in_force("mixed_bfloat16", onednn=False))
    candidate = project.compare().candidates[1]
    (reason,) = [reason for reason in candidate.reasons if reason.code == "onednn_differs"]
    assert reason.evidence == {"baseline_onednn": True, "candidate_onednn": False}
    assert candidate.limit is None


def test_intervals_have_the_confidence_of_the_measurement(project: SmallStudy) -> None:
    narrow = project.compare().candidates[1].speedups["train"]
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"confidence": 0.965}))
    wide = project.compare().candidates[1].speedups["train"]
    assert wide.ratio == narrow.ratio
    assert wide.low < narrow.low
    assert wide.high > narrow.high


def test_verdict_needs_a_speedup_above_the_noise_floor_of_its_measure(project: SmallStudy) -> None:
    project.spread_processes("_control", "inference.csv", 2.0)
    assert project.compare().candidates[1].verdicts == {
        "train": "adopt",
        "inference_b1": "inconclusive",
        "inference_b32": "inconclusive",
    }


def test_batch_size_that_was_not_measured_is_named(project: SmallStudy) -> None:
    study = load_study("float32", ("float32", "mixed_float16"), (1,), (1, 64))
    with pytest.raises(ComparisonError, match="batch size 64: nothing was measured"):
        compare(study, CompareParams())


def test_inference_need_not_be_measured(project: SmallStudy) -> None:
    project.remove_inference()
    study = load_study("float32", ("float32", "mixed_bfloat16"), (1, 2, 3), ())
    (candidate,) = compare(study, CompareParams()).candidates
    assert list(candidate.speedups) == list(candidate.verdicts) == ["train"]
