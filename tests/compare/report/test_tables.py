"""The rows of plots."""

from __future__ import annotations

import pytest

from halfstep.compare.case import Judging
from halfstep.compare.report import tables


def test_score_by_epoch(comparison: Judging) -> None:
    epochs = tables.score_by_epoch(comparison.study)
    assert len(epochs) == 3 * 3 * 5  # variants that finished, seeds, epochs
    assert list(epochs) == ["variant", "seed", "epoch", "score", "val_score"]
    assert epochs["val_score"].between(0, 1).all()


def test_step_breakdown_adds_up_to_the_step(comparison: Judging) -> None:
    rows = tables.step_breakdown(comparison.study)
    assert rows["variant"].unique().tolist() == ["float32", "mixed_float16", "mixed_bfloat16"]
    assert rows.groupby("variant")["time_ms"].sum()["mixed_float16"] == pytest.approx(40.0)
