"""The comparison as numbers, computed from a small study with known numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from halfstep import files
from halfstep.compare.case import Judging
from halfstep.compare.document import document_of, judged
from halfstep.compare.metrics import dvc_metrics, tracking_metrics, tracking_tags
from halfstep.params import CompareParams
from halfstep.results.profile import same_weights_file
from tests.small_study import IMAGES, SEEDS, SmallStudy


def test_comparison_json_has_the_keys_of_its_contract(comparison: Judging) -> None:
    document = document_of(comparison).as_json()
    assert set(document) == {
        "schema_version",
        "baseline",
        "baseline_reasons",
        "environment",
        "control",
        "noise_floor",
        "min_speedup",
        "time_to_accuracy",
        "train_time_s",
        "startup_s",
        "candidates",
        "failed",
        "score",
        "setup",
    }
    assert document["train_time_s"] == pytest.approx(
        dict.fromkeys(("float32", "mixed_float16", "mixed_bfloat16"), 12.0)
    )
    assert document["startup_s"]["mixed_float16"] == pytest.approx(26.0)
    assert document["schema_version"] == 5
    assert document["baseline"] == "float32"
    fast = document["candidates"]["mixed_bfloat16"]
    intervals = {"ratio", "low", "high", "confidence", "processes", "unit"}
    assert set(fast["speedup"]["train"]) == intervals | {
        "rounds",
        "typical_ratio",
        "baseline_time_ms",
        "candidate_time_ms",
    }
    factors = document["candidates"]["mixed_float16"]["factors"]
    assert set(factors) == {"train", "inference_b1", "inference_b32"}
    assert set(factors["train"]) == {"settings", "precision"}
    assert set(factors["train"]["precision"]) == intervals
    assert "factors" not in fast
    assert set(fast["tests"]) == set(fast["speedup"])
    assert set(fast["tests"]["train"]) == {"p", "p_adjusted"}
    keys = {"name", "baseline", "candidate", "delta", "low", "high", "margin", "seeds", "examples", "unit", "outcome"}
    keys |= {"confidence", "kind", "sentence"}
    assert set(fast["quality"]) == set(fast["quality_same_weights"]) == keys
    assert set(document["control"]["train"]) == intervals | {"differs", "rounds"}
    for reason in document["candidates"]["mixed_float16"]["reasons"]:
        assert {"code", "text", "evidence", "advice"} <= set(reason)
    json.dumps(document, allow_nan=False)


def test_comparison_json_has_the_known_numbers(comparison: Judging) -> None:
    document = document_of(comparison).as_json()
    slow, fast = document["candidates"]["mixed_float16"], document["candidates"]["mixed_bfloat16"]
    assert slow["speedup"]["train"]["ratio"] == pytest.approx(0.25)
    assert fast["speedup"]["train"]["ratio"] == pytest.approx(1.6)
    assert fast["speedup"]["inference_b32"]["ratio"] == pytest.approx(1.6)
    assert fast["speedup"]["train"]["low"] < 1.6 < fast["speedup"]["train"]["high"]
    assert fast["speedup"]["train"]["confidence"] == 0.95
    assert (fast["speedup"]["train"]["rounds"], fast["speedup"]["train"]["processes"]) == (20, 4)
    assert (fast["speedup"]["train"]["baseline_time_ms"], fast["speedup"]["train"]["candidate_time_ms"]) == (
        pytest.approx(13.0),
        pytest.approx(13.0 / 1.6),
    )
    assert slow["factors"]["train"]["settings"]["ratio"] == pytest.approx(0.8)
    assert slow["factors"]["inference_b1"]["precision"]["ratio"] == pytest.approx(0.3125)
    assert fast["tests"]["train"]["p"] < fast["tests"]["train"]["p_adjusted"] < 0.001
    assert slow["tests"]["train"]["p_adjusted"] == 1.0
    assert document["control"]["train"]["differs"] is False
    assert (slow["verdict"], fast["verdict"]) == ("reject", "adopt")
    assert fast["verdict_inference_b1"] == fast["verdict_inference_b32"] == "adopt"
    assert fast["quality"]["delta"] == pytest.approx(-3 / IMAGES)
    assert (fast["quality"]["name"], fast["quality"]["outcome"], fast["quality"]["examples"]) == (
        "accuracy",
        "shown",
        IMAGES,
    )
    assert fast["quality_same_weights"]["delta"] == pytest.approx(-1 / IMAGES)
    assert fast["peak_memory_mib"] == {"baseline": 210.0, "candidate": 180.0}
    assert "Use mixed_bfloat16" in fast["sentence"]
    assert "next_steps" not in fast
    assert {"emulated_float16", "cast_overhead"} <= {reason["code"] for reason in slow["reasons"]}
    assert fast["limit"] == {"train": pytest.approx(10 / (4.5 + 5.5 / 2))}  # all compute is twice as fast
    assert "limit" not in slow  # no hardware for float16


def test_noise_floor_is_the_distance_of_the_control_from_1(comparison: Judging) -> None:
    document = document_of(comparison)
    assert set(document.control) == set(document.noise_floor) == {"train", "inference_b1", "inference_b32"}
    control = document.control["train"]
    assert control.ratio == pytest.approx(1.0)
    assert control.low < 1 < control.high
    assert 0.005 < document.noise_floor["train"] < 0.05
    assert document.noise_floor["train"] == max(1 - control.low, control.high - 1)


@pytest.mark.parametrize(("measure", "ratio"), [("rounds.csv", "train"), ("inference.csv", "inference_b1")])
def test_control_that_differs_is_marked(project: SmallStudy, measure: str, ratio: str) -> None:
    project.scale_times("_control", measure, 1.2)
    document = document_of(project.compare())
    assert document.control[ratio].differs
    assert document.control[ratio].ratio == pytest.approx(1 / 1.2)
    assert document.candidates["mixed_bfloat16"].verdicts[ratio] == "inconclusive"
    assert not all(control.differs for control in document.control.values())


def test_quotient_of_the_times_is_the_ratio(project: SmallStudy) -> None:
    project.spread_processes("mixed_bfloat16", "rounds.csv", 1.2)
    project.scale_times("_control", "rounds.csv", 1.01)
    for candidate in document_of(project.compare()).candidates.values():
        for speedup in (candidate.speedup or {}).values():
            assert speedup.baseline_time_ms / speedup.candidate_time_ms == pytest.approx(speedup.ratio)


def test_overflow_of_the_same_weights_is_a_wrong_answer(project: SmallStudy) -> None:
    """Image 100 is right, and image 400 is too, until half of the numbers overflow."""
    for seed in SEEDS:
        path = same_weights_file("mixed_float16", seed)
        probabilities = np.load(path)
        probabilities[100], probabilities[400, 0] = np.nan, np.inf
        np.save(path, probabilities)
        files.write_manifest(path.parent)
    same = document_of(project.compare()).candidates["mixed_float16"].quality_same_weights
    assert same is not None
    assert (same.baseline, same.candidate) == pytest.approx((0.98, 1 - 26 / IMAGES))


def test_account_has_the_keys_of_its_contract(comparison: Judging) -> None:
    account = document_of(comparison).as_json()["candidates"]["mixed_bfloat16"]["account"]["train"]
    assert {"unit", "measured", "kinds", "disturbance", "unexplained"} <= set(account)
    assert account["unit"] == "ms a step"
    for change in (account["measured"], account["disturbance"], account["unexplained"], *account["kinds"]):
        assert {"delta", "low", "high"} <= set(change)
    parts = (*account["kinds"], account["disturbance"], account["unexplained"])
    assert sum(part["delta"] for part in parts) == pytest.approx(account["measured"]["delta"])
    assert {kind["kind"] for kind in account["kinds"]} == {"convolution", "matrix_product", "memory", "cast", "host"}


def test_failed_candidate_has_only_verdicts_and_reasons(comparison: Judging) -> None:
    failed = document_of(comparison).as_json()["candidates"]["float16"]
    verdicts = {"verdict", "verdict_inference_b1", "verdict_inference_b32"}
    assert set(failed) == verdicts | {"sentence", "next_steps", "reasons"}
    assert failed["next_steps"] == [failed["reasons"][0]["advice"]]
    assert failed["verdict"] == failed["verdict_inference_b1"] == "inconclusive"
    assert [reason["code"] for reason in failed["reasons"]] == ["arm_failed"]


def test_failed_baseline_decides_nothing(project: SmallStudy) -> None:
    project.edit_training("float32", 2, status="failed", reason="the loss is inf")
    document = document_of(project.compare())
    assert (document.control, document.noise_floor) == ({}, {})
    for candidate in document.candidates.values():
        assert set(candidate.verdicts.values()) == {"inconclusive"}
        assert candidate.speedup is None
        assert candidate.reasons[-1].evidence["variant"] == "float32"


def test_baseline_alone_has_no_candidates(project: SmallStudy) -> None:
    document = document_of(judged(project.load(variants=("float32",)), CompareParams()))
    assert document.candidates == {}


def test_dvc_metrics_are_grouped_by_variant(comparison: Judging) -> None:
    metrics = dvc_metrics(comparison.study, document_of(comparison))
    baseline = comparison.study.baseline.profile
    assert baseline is not None
    assert metrics["float32"] == {
        "test_accuracy": pytest.approx(0.98),
        "step_time_ms_p50": baseline.metrics["step_time_ms/p50"],
    }
    speedups = ("speedup_train", "speedup_inference_b1", "speedup_inference_b32")
    for name in ("mixed_float16", "mixed_bfloat16"):
        assert set(metrics[name]) == {*speedups, "accuracy_delta", "verdict"}
    assert metrics["mixed_bfloat16"]["speedup_train"] == pytest.approx(1.6)
    assert metrics["mixed_bfloat16"]["verdict"] == "adopt"
    assert metrics["float16"] == {"verdict": "inconclusive"}  # its training failed


def test_tracking_names_are_those_of_the_contract(comparison: Judging) -> None:
    result = document_of(comparison)
    metrics, tags = tracking_metrics(result), tracking_tags(result)
    speedups = ("speedup_train", "speedup_inference_b1", "speedup_inference_b32")
    for end in ("", "_low", "_high"):
        for measure in (*speedups, "accuracy_delta", "accuracy_same_weights_delta"):
            assert f"mixed_bfloat16/{measure}{end}" in metrics
        for factor in (f"{measure}_{kind}{end}" for measure in speedups for kind in ("precision", "settings")):
            assert f"mixed_float16/{factor}" in metrics
            assert f"mixed_bfloat16/{factor}" not in metrics
    assert metrics["mixed_float16/speedup_train_precision"] == pytest.approx(0.3125)
    assert metrics["mixed_bfloat16/accuracy_same_weights_delta"] == pytest.approx(-1 / IMAGES)
    assert {"noise_floor/train", "noise_floor/inference_b1", "noise_floor/inference_b32"} <= set(metrics)
    assert metrics["float32/time_to_accuracy_s"] == 10.0
    assert not any(name.startswith("float16/") for name in metrics)
    assert tags["verdict.mixed_bfloat16"] == "adopt"
    assert tags["verdict_inference_b1.mixed_float16"] == "reject"
    assert tags["verdict.float16"] == "inconclusive"
