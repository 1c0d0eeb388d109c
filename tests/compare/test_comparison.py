"""The whole comparison on a tree with known numbers."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from stages import files
from stages.compare.comparison import Comparison
from stages.compare.contents import as_dvc_metrics, as_json, as_tracking_metrics, as_tracking_tags
from stages.compare.plots import plot_tables
from stages.compare.results import write_results


def test_comparison_json_holds_the_known_numbers(comparison: Comparison) -> None:
    found = as_json(comparison)
    expected = {"baseline", "environment", "noise_floor", "min_speedup", "time_to_accuracy", "candidates"}
    assert set(found) - {"baseline_reasons"} == expected
    assert found["baseline"] == "float32"
    assert set(found["noise_floor"]) == {"train", "inference_b1", "inference_b32"}
    assert 0.005 < found["noise_floor"]["train"] < 0.03
    slow, fast = found["candidates"]["mixed_float16"], found["candidates"]["mixed_bfloat16"]
    assert slow["speedup"]["train"]["ratio"] == pytest.approx(0.25)
    assert fast["speedup"]["train"]["ratio"] == pytest.approx(1.6)
    assert fast["speedup"]["inference_b32"]["ratio"] == pytest.approx(1.6)
    assert fast["speedup"]["train"]["low"] < 1.6 < fast["speedup"]["train"]["high"]
    assert fast["speedup"]["train"]["rounds"] == 20
    assert (slow["verdict"], fast["verdict"]) == ("reject", "adopt")
    assert fast["verdict_inference_b1"] == fast["verdict_inference_b32"] == "adopt"
    assert fast["accuracy"]["delta"] == pytest.approx(-1 / 400)
    promised = {"baseline", "candidate", "delta", "low", "high", "margin", "seeds"}
    assert promised | {"test_images", "outcome"} == set(fast["accuracy"])
    assert (fast["accuracy"]["outcome"], fast["accuracy"]["test_images"]) == ("shown", 400)
    assert fast["peak_memory_mib"] == {"baseline": 210.0, "candidate": 180.0}
    assert "Use mixed_bfloat16" in fast["sentence"]
    assert "settle" not in fast
    assert [reason["code"] for reason in slow["reasons"]] == ["emulated_float16", "cast_overhead"]
    assert {"code", "text", "evidence"} <= set(slow["reasons"][0])
    assert fast["limit"] == {"train": pytest.approx(10 / (1.5 + 8.5 / 2))}  # all of the computation twice as fast
    assert "limit" not in slow  # float16 without hardware for it
    json.dumps(found, allow_nan=False)


def test_a_failed_arm_is_inconclusive_with_its_reason_and_nothing_else(comparison: Comparison) -> None:
    failed = as_json(comparison)["candidates"]["float16"]
    verdicts = {"verdict", "verdict_inference_b1", "verdict_inference_b32"}
    assert set(failed) == verdicts | {"sentence", "settle", "reasons"}
    assert failed["settle"] == [failed["reasons"][0]["advice"]]
    assert failed["verdict"] == failed["verdict_inference_b1"] == "inconclusive"
    assert [reason["code"] for reason in failed["reasons"]] == ["arm_failed"]


def test_a_failed_baseline_decides_nothing(project: Any) -> None:
    project.edit(files.train_dir("float32", 2) / "metrics.json", status="failed", reason="the loss is inf")
    found = as_json(project.compare())
    assert found["noise_floor"] == {}
    for candidate in found["candidates"].values():
        assert candidate["verdict"] == "inconclusive"
        assert "speedup" not in candidate
        assert candidate["reasons"][-1]["evidence"]["variant"] == "float32"
    write_results(project.compare())
    assert "the loss is inf" in (files.COMPARE / "report.html").read_text()


def test_a_baseline_alone_has_no_candidates(project: Any) -> None:
    found = as_json(Comparison(project.load(variants=("float32",)), project.compare().params, {}, ()))
    assert found["candidates"] == {}


def test_dvc_metrics_are_nested_by_arm_and_omit_what_is_absent(comparison: Comparison) -> None:
    metrics = as_dvc_metrics(comparison)
    assert list(metrics) == ["float32", "mixed_float16", "mixed_bfloat16", "_control"]
    assert metrics["float32"] == {
        "test_accuracy": pytest.approx(0.98),
        "step_time_ms_p50": pytest.approx(
            files.read_json(files.profile_dir("float32") / "summary.json")["metrics"]["step_time_ms/p50"]
        ),
        "time_to_accuracy_s": 10.0,
    }
    assert metrics["mixed_bfloat16"]["memory_saved_mib"] == pytest.approx(30.0)
    assert metrics["mixed_bfloat16"]["speedup_train"] == pytest.approx(1.6)
    assert set(metrics["_control"]) == {"noise_floor_train", "noise_floor_inference_b1", "noise_floor_inference_b32"}


def test_tracking_names_are_those_of_the_contract(comparison: Comparison) -> None:
    metrics, tags = as_tracking_metrics(comparison), as_tracking_tags(comparison)
    for name in (
        "speedup_train",
        "speedup_train_low",
        "speedup_inference_b1_high",
        "accuracy_delta",
        "accuracy_delta_low",
    ):
        assert f"mixed_bfloat16/{name}" in metrics
    assert {"noise_floor/train", "noise_floor/inference_b32"} <= set(metrics)
    assert metrics["float32/time_to_accuracy_s"] == 10.0
    assert not any(name.startswith("float16/") for name in metrics)
    assert tags["verdict.mixed_bfloat16"] == "adopt"
    assert tags["verdict_inference_b1.mixed_float16"] == "reject"
    assert tags["verdict.float16"] == "inconclusive"


def test_results_are_written_where_the_contract_says(comparison: Comparison) -> None:
    write_results(comparison)
    found = sorted(path.relative_to(files.COMPARE).as_posix() for path in files.COMPARE.rglob("*") if path.is_file())
    assert found == [
        "comparison.json",
        "metrics.json",
        "plots/accuracy_by_epoch.csv",
        "plots/confusion.csv",
        "plots/latency.csv",
        "plots/speedups.csv",
        "plots/step_breakdown.csv",
        "report.html",
    ]
    assert files.read_json(files.COMPARE / "comparison.json") == as_json(comparison)


def test_plot_tables(comparison: Comparison) -> None:
    tables = plot_tables(comparison)
    epochs = tables["accuracy_by_epoch"]
    assert len(epochs) == 3 * 3 * 5
    assert list(epochs)[:3] == ["variant", "seed", "epoch"]
    confusion = tables["confusion"]
    assert len(confusion) == 3 * 3 * 400
    wrong = confusion[confusion["actual"] != confusion["predicted"]].groupby("variant").size()
    assert wrong.to_dict() == {"float32": 24, "mixed_float16": 24, "mixed_bfloat16": 27}
    parts = tables["step_breakdown"].groupby("variant")["time_ms"].sum()
    assert parts["mixed_float16"] == pytest.approx(40.0)
    latency = tables["latency"].set_index(["variant", "batch_size"])
    calls = pd.read_csv(files.profile_dir("float32") / "inference.csv").query("batch_size == 1")["latency_ms"]
    assert latency.loc[("float32", 1), "p95_ms"] == pytest.approx(calls.quantile(0.95))
