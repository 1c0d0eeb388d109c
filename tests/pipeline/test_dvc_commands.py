"""DVC commands that show results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

SHOWN = {
    "metrics show": ("mixed_bfloat16.speedup_train", "float32.test_accuracy", "mixed_bfloat16.verdict"),
    "exp show --csv": ("mixed_bfloat16.speedup_train", "train.learning_rate"),
}


@pytest.mark.parametrize("command", SHOWN)
def test_command_shows_the_results(finished: Checkout, command: str) -> None:
    output = finished.check_output("dvc", *command.split())
    for text in SHOWN[command]:
        assert text in output


def test_params_diff_shows_a_changed_parameter(finished: Checkout) -> None:
    with finished.restored("params.yaml"):
        finished.configure({"train.learning_rate": 0.25})
        output = finished.check_output("dvc", "params", "diff")
    assert "train.learning_rate" in output
    assert "0.25" in output


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
