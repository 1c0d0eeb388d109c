"""The rows of plots."""

from __future__ import annotations

import pandas as pd
import pytest

from halfstep.compare.case import Judging
from halfstep.compare.report import tables
from halfstep.profile.trace.model import PART_NAMES
from halfstep.system import files


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


def test_step_parts_are_those_of_a_trace() -> None:
    assert [f"{part}_ms" for part in tables.STEP_PARTS] == list(PART_NAMES)
