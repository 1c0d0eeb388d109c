"""The comparison as numbers, computed from a small study with known numbers."""

from __future__ import annotations

import numpy as np
import pytest

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of, judged
from halfstep.compare.metrics import tracking_metrics, tracking_tags
from halfstep.params.schema import CompareParams
from halfstep.results.profile import same_weights_file
from halfstep.system import files
from tests.small_study import IMAGES, SEEDS, SmallStudy


def test_noise_floor_is_the_distance_of_the_control_from_1(comparison: Judging) -> None:
    document = document_of(comparison)
    assert set(document.control) == set(document.noise_floor) == {"train", "inference_b1", "inference_b32"}
    control = document.control["train"]
    assert control.ratio == pytest.approx(1.0)
    assert control.low < 1 < control.high
    assert 0.005 < document.noise_floor["train"] < 0.05
    assert document.noise_floor["train"] == max(1 - control.low, control.high - 1)


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


def test_tracking_names_are_those_of_the_contract(comparison: Judging) -> None:
    result = document_of(comparison)
    metrics, tags = tracking_metrics(result), tracking_tags(result)
    speedups = ("speedup_train", "speedup_inference_b1", "speedup_inference_b32")
    ends = ("speedup_train_low", "speedup_train_high")
    for measure in (*speedups, *ends, "accuracy_delta", "accuracy_same_weights_delta"):
        assert f"mixed_bfloat16/{measure}" in metrics
    assert list(metrics)[:2] == ["at_a_glance/mixed_float16_speedup", "at_a_glance/mixed_bfloat16_speedup"]
    assert metrics["at_a_glance/mixed_bfloat16_speedup"] == metrics["mixed_bfloat16/speedup_train"]
    assert len(metrics) < 30
    assert metrics["mixed_bfloat16/accuracy_same_weights_delta"] == pytest.approx(-1 / IMAGES)
    assert {"noise_floor/train", "noise_floor/inference_b1", "noise_floor/inference_b32"} <= set(metrics)
    assert metrics["float32/time_to_accuracy_s"] == 10.0
    assert not any(name.startswith("float16/") for name in metrics)
    assert tags["verdict.mixed_bfloat16"] == "adopt"
    assert tags["verdict_inference_b1.mixed_float16"] == "reject"
    assert tags["verdict.float16"] == "inconclusive"
