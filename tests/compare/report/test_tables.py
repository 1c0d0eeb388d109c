"""The rows of metrics and plots."""

from __future__ import annotations

import pandas as pd
import pytest

from stages import files
from stages.compare.comparison import Comparison
from stages.compare.report import tables
from stages.profile.trace.model import PART_NAMES


def test_accuracy_by_epoch(comparison: Comparison) -> None:
    epochs = tables.accuracy_by_epoch(comparison.study)
    assert len(epochs) == 3 * 3 * 5  # variants that finished, seeds, epochs
    assert list(epochs) == ["variant", "seed", "epoch", "accuracy", "val_accuracy"]


def test_confusion_has_a_row_for_each_image(comparison: Comparison) -> None:
    confusion = tables.confusion(comparison.study)
    assert len(confusion) == 3 * 3 * 400
    wrong = confusion[confusion["actual"] != confusion["predicted"]].groupby("variant").size()
    assert wrong.to_dict() == {"float32": 24, "mixed_float16": 24, "mixed_bfloat16": 27}


def test_step_breakdown_adds_up_to_the_step(comparison: Comparison) -> None:
    rows = tables.step_breakdown(comparison.study)
    assert rows["variant"].unique().tolist() == ["float32", "mixed_float16", "mixed_bfloat16"]
    assert rows.groupby("variant")["time_ms"].sum()["mixed_float16"] == pytest.approx(40.0)


def test_latency_has_the_percentiles_of_all_calls(comparison: Comparison) -> None:
    latency = tables.latency(comparison.study).set_index(["variant", "batch_size"])
    calls = pd.read_csv(files.profile_dir("float32") / "inference.csv").query("batch_size == 1")["latency_ms"]
    assert latency.loc[("float32", 1), "p95_ms"] == pytest.approx(calls.quantile(0.95), rel=1e-6)


def test_speedups_have_the_noise_floor_of_their_measure(comparison: Comparison) -> None:
    rows = tables.speedups(comparison)
    assert rows["measure"].tolist() == ["train", "inference_b1", "inference_b32"] * 2
    assert rows["noise_floor"].tolist() == [ratio.noise_floor for ratio in comparison.control.values()] * 2


def test_metric_that_no_variant_has_is_left_out(comparison: Comparison) -> None:
    labels = [row.label for row in tables.metric_rows(comparison.study)]
    assert "peak memory of training steps" in labels
    assert "compute time on tensor cores" not in labels


def test_step_parts_are_those_of_a_trace() -> None:
    assert [f"{part}_ms" for part in tables.STEP_PARTS] == list(PART_NAMES)
