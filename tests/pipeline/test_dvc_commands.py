"""DVC commands that show results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout


def test_metrics_show_has_the_speed_up_the_score_and_the_verdict(finished: Checkout) -> None:
    output = finished.check_output("dvc", "metrics", "show")
    for name in ("mixed_bfloat16.speedup_train", "float32.test_accuracy", "mixed_bfloat16.verdict"):
        assert name in output


def test_plots_show_draws_all_plots(finished: Checkout, tmp_path: Path) -> None:
    finished.check_output("dvc", "plots", "show", "--out", str(tmp_path / "plots"))
    page = (tmp_path / "plots/index.html").read_text(encoding="utf-8")
    titles = (
        "Validation score by epoch",
        "Breakdown of a training step",
        "Latency of inference",
        "Speed-up over the baseline",
    )
    assert [title for title in titles if title not in page] == []
    assert "<DVC_METRIC_" not in page
