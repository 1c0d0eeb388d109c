"""The comparison as numbers, computed from a small study with known numbers."""

from __future__ import annotations

import json

import pytest

from stages.compare.comparison import Comparison
from stages.compare.document import comparison_result, dvc_metrics, tracking_metrics, tracking_tags
from stages.results.profile import SameWeights
from tests.small_study import SmallStudy


def test_comparison_json_has_the_keys_of_its_contract(comparison: Comparison) -> None:
    found = comparison_result(comparison).as_json()
    assert set(found) == {
        "schema_version",
        "baseline",
        "environment",
        "control",
        "noise_floor",
        "min_speedup",
        "time_to_accuracy",
        "baseline_reasons",
        "candidates",
    }
    assert found["schema_version"] == 2
    assert found["baseline"] == "float32"
    fast = found["candidates"]["mixed_bfloat16"]
    assert set(fast["speedup"]["train"]) == {"ratio", "low", "high", "confidence", "rounds", "processes"}
    keys = {"name", "baseline", "candidate", "delta", "low", "high", "margin", "seeds", "examples", "outcome"}
    assert set(fast["quality"]) == keys
    assert set(found["control"]["train"]) == {"ratio", "low", "high"}
    for reason in found["candidates"]["mixed_float16"]["reasons"]:
        assert {"code", "text", "evidence", "advice"} <= set(reason)
    json.dumps(found, allow_nan=False)


def test_comparison_json_has_the_known_numbers(comparison: Comparison) -> None:
    found = comparison_result(comparison).as_json()
    slow, fast = found["candidates"]["mixed_float16"], found["candidates"]["mixed_bfloat16"]
    assert slow["speedup"]["train"]["ratio"] == pytest.approx(0.25)
    assert fast["speedup"]["train"]["ratio"] == pytest.approx(1.6)
    assert fast["speedup"]["inference_b32"]["ratio"] == pytest.approx(1.6)
    assert fast["speedup"]["train"]["low"] < 1.6 < fast["speedup"]["train"]["high"]
    assert fast["speedup"]["train"]["confidence"] == 0.95
    assert (fast["speedup"]["train"]["rounds"], fast["speedup"]["train"]["processes"]) == (20, 4)
    assert (slow["verdict"], fast["verdict"]) == ("reject", "adopt")
    assert fast["verdict_inference_b1"] == fast["verdict_inference_b32"] == "adopt"
    assert fast["quality"]["delta"] == pytest.approx(-1 / 400)
    assert (fast["quality"]["name"], fast["quality"]["outcome"], fast["quality"]["examples"]) == (
        "accuracy",
        "shown",
        400,
    )
    assert fast["peak_memory_mib"] == {"baseline": 210.0, "candidate": 180.0}
    assert "Use mixed_bfloat16" in fast["sentence"]
    assert "next_steps" not in fast
    assert [reason["code"] for reason in slow["reasons"]] == ["emulated_float16", "cast_overhead"]
    assert fast["limit"] == {"train": pytest.approx(10 / (1.5 + 8.5 / 2))}  # all compute is twice as fast
    assert "limit" not in slow  # no hardware for float16


def test_noise_floor_is_the_distance_of_the_control_from_1(comparison: Comparison) -> None:
    found = comparison_result(comparison)
    assert set(found.control) == set(found.noise_floor) == {"train", "inference_b1", "inference_b32"}
    control = found.control["train"]
    assert control.ratio == pytest.approx(1.0)
    assert control.low < 1 < control.high
    assert 0.005 < found.noise_floor["train"] < 0.03
    assert found.noise_floor["train"] == max(1 - control.low, control.high - 1)


def test_open_quality_has_a_sample_size(project: SmallStudy) -> None:
    fast = comparison_result(project.compare(quality_margin=0.0075)).candidates["mixed_bfloat16"]
    assert fast.quality is not None
    assert fast.quality.outcome == "not established"
    assert fast.quality.sample_size is not None
    assert fast.quality.sample_size["examples"] > 400
    assert fast.next_steps is not None


def test_same_weights_are_passed_on(project: SmallStudy) -> None:
    same = SameWeights(images=400, agreement=0.995, max_probability_difference=0.013, accuracy=0.98)
    project.edit_profile("mixed_bfloat16", same_weights=same)
    assert comparison_result(project.compare()).candidates["mixed_bfloat16"].same_weights == same


def test_failed_candidate_has_only_verdicts_and_reasons(comparison: Comparison) -> None:
    failed = comparison_result(comparison).as_json()["candidates"]["float16"]
    verdicts = {"verdict", "verdict_inference_b1", "verdict_inference_b32"}
    assert set(failed) == verdicts | {"sentence", "next_steps", "reasons"}
    assert failed["next_steps"] == [failed["reasons"][0]["advice"]]
    assert failed["verdict"] == failed["verdict_inference_b1"] == "inconclusive"
    assert [reason["code"] for reason in failed["reasons"]] == ["arm_failed"]


def test_failed_baseline_decides_nothing(project: SmallStudy) -> None:
    project.edit_training("float32", 2, status="failed", reason="the loss is inf")
    found = comparison_result(project.compare())
    assert (found.control, found.noise_floor) == ({}, {})
    for candidate in found.candidates.values():
        assert set(candidate.verdicts.values()) == {"inconclusive"}
        assert candidate.speedup is None
        assert candidate.reasons[-1].evidence["variant"] == "float32"


def test_baseline_alone_has_no_candidates(project: SmallStudy) -> None:
    found = comparison_result(Comparison(project.load(variants=("float32",)), project.compare().params, {}, ()))
    assert found.candidates == {}


def test_dvc_metrics_are_grouped_by_variant(comparison: Comparison) -> None:
    metrics = dvc_metrics(comparison, comparison_result(comparison))
    baseline = comparison.study.baseline.profile
    assert baseline is not None
    assert list(metrics) == ["float32", "mixed_float16", "mixed_bfloat16", "_control"]  # float16 failed
    assert metrics["float32"] == {
        "test_accuracy": pytest.approx(0.98),
        "step_time_ms_p50": baseline.metrics["step_time_ms/p50"],
        "time_to_accuracy_s": 10.0,
    }
    assert metrics["mixed_bfloat16"]["memory_saved_mib"] == pytest.approx(30.0)
    assert metrics["mixed_bfloat16"]["speedup_train"] == pytest.approx(1.6)
    assert set(metrics["_control"]) == {"noise_floor_train", "noise_floor_inference_b1", "noise_floor_inference_b32"}


def test_tracking_names_are_those_of_the_contract(comparison: Comparison) -> None:
    result = comparison_result(comparison)
    metrics, tags = tracking_metrics(result), tracking_tags(result)
    for measure in ("speedup_train", "speedup_inference_b1", "speedup_inference_b32", "accuracy_delta"):
        for end in ("", "_low", "_high"):
            assert f"mixed_bfloat16/{measure}{end}" in metrics
    assert {"noise_floor/train", "noise_floor/inference_b1", "noise_floor/inference_b32"} <= set(metrics)
    assert metrics["float32/time_to_accuracy_s"] == 10.0
    assert not any(name.startswith("float16/") for name in metrics)
    assert tags["verdict.mixed_bfloat16"] == "adopt"
    assert tags["verdict_inference_b1.mixed_float16"] == "reject"
    assert tags["verdict.float16"] == "inconclusive"
