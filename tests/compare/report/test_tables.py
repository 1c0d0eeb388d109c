"""The rows of metrics and plots."""

from __future__ import annotations

import pandas as pd
import pytest

from halfstep import files
from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.report import tables
from halfstep.profile.trace.model import PART_NAMES
from tests.small_study import SmallStudy


def _rows(judging: Judging) -> list[tables.MetricRow]:
    return tables.metric_rows(judging.study, document_of(judging).score)


def test_score_by_epoch(comparison: Judging) -> None:
    epochs = tables.score_by_epoch(comparison.study)
    assert len(epochs) == 3 * 3 * 5  # variants that finished, seeds, epochs
    assert list(epochs) == ["variant", "seed", "epoch", "score", "val_score"]
    assert epochs["val_score"].between(0, 1).all()


def test_step_breakdown_adds_up_to_the_step(comparison: Judging) -> None:
    rows = tables.step_breakdown(comparison.study)
    assert rows["variant"].unique().tolist() == ["float32", "mixed_float16", "mixed_bfloat16"]
    assert rows.groupby("variant")["time_ms"].sum()["mixed_float16"] == pytest.approx(40.0)


def test_latency_has_the_percentiles_of_the_calls_that_count(comparison: Judging) -> None:
    latency = tables.latency(comparison.study).set_index(["variant", "batch_size"])
    calls = pd.read_csv(files.profile_dir("float32") / "inference.csv").query("batch_size == 1 and counted")[
        "latency_ms"
    ]
    assert latency.loc[("float32", 1), "p95_ms"] == pytest.approx(calls.quantile(0.95), rel=1e-6)
    assert latency.loc[("float32", 1), "mean_ms"] == pytest.approx(calls.mean(), rel=1e-6)


def test_speedups_have_the_noise_floor_of_their_measure(comparison: Judging) -> None:
    rows = tables.speedups(document_of(comparison))
    assert rows["measure"].tolist() == ["train", "inference_b1", "inference_b32"] * 2
    assert rows["noise_floor"].tolist() == [ratio.noise_floor for ratio in comparison.control.values()] * 2


def test_speedups_are_the_quotient_of_their_times_and_the_product_of_their_factors(comparison: Judging) -> None:
    rows = tables.speedups(document_of(comparison))
    assert (rows["baseline_time_ms"] / rows["candidate_time_ms"]).tolist() == pytest.approx(rows["ratio"].tolist())
    factored = rows[rows["variant"] == "mixed_float16"]
    assert (factored["settings"] * factored["precision"]).tolist() == pytest.approx(
        factored["ratio"].tolist(), rel=0.01
    )
    assert rows[rows["variant"] == "mixed_bfloat16"][["settings", "precision"]].isna().all(axis=None)


def test_control_is_not_in_the_times_of_the_baseline(project: SmallStudy) -> None:
    labels = ("training step, mean", "latency, batch 1, mean")
    before = {row.label: row.values["float32"] for row in _rows(project.compare()) if row.label in labels}
    for name in ("rounds.csv", "inference.csv"):
        project.scale_times("_control", name, 1.01)
    after = {row.label: row.values["float32"] for row in _rows(project.compare()) if row.label in labels}
    assert set(before) == set(labels)
    assert after == before
    assert before["training step, mean"] == pytest.approx(13.0)


def test_throughput_is_that_of_the_mean_step(comparison: Judging) -> None:
    rows = {row.label: row.values for row in _rows(comparison)}
    assert rows["throughput of training steps"]["mixed_bfloat16"] == pytest.approx(32e3 / 8.125)
    mean_ms = rows["latency, batch 32, mean"]["float32"]
    assert rows["inference throughput, batch 32"]["float32"] == pytest.approx(32e3 / mean_ms)


def test_metric_that_no_variant_has_is_left_out(comparison: Judging) -> None:
    labels = [row.label for row in _rows(comparison)]
    assert "peak memory of training steps" in labels
    assert "compute time on tensor cores" not in labels


def test_step_parts_are_those_of_a_trace() -> None:
    assert [f"{part}_ms" for part in tables.STEP_PARTS] == list(PART_NAMES)
