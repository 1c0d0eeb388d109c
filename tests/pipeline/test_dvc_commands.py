"""What a user asks DVC, and what it answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

ASKED = {
    "metrics show": ("mixed_bfloat16.speedup_train", "float32.test_accuracy", "_control.noise_floor_train"),
    "metrics diff HEAD~1": ("mixed_bfloat16.accuracy_delta_low",),
    "params diff HEAD~1 --all": ("variants.mixed_bfloat16",),
    "exp show --csv": ("mixed_bfloat16.speedup_train", "train.learning_rate"),
    "stage list": ("train@mixed_bfloat16-0",),
    "dag": ("environment", "compare"),
}


@pytest.mark.parametrize("command", ASKED)
def test_dvc_answers(finished: Checkout, command: str) -> None:
    answer = finished.succeed("dvc", *command.split())
    for words in ASKED[command]:
        assert words in answer


def test_a_changed_parameter_is_shown(finished: Checkout) -> None:
    with finished.restored("params.yaml"):
        finished.configure({"train.learning_rate": 0.25})
        answer = finished.succeed("dvc", "params", "diff")
    assert "train.learning_rate" in answer
    assert "0.25" in answer


def test_plots_are_drawn(finished: Checkout, tmp_path: Path) -> None:
    finished.succeed("dvc", "plots", "show", "--out", str(tmp_path / "plots"))
    page = (tmp_path / "plots/index.html").read_text(encoding="utf-8")
    titles = (
        "Validation accuracy by epoch",
        "What a training step is made of",
        "Latency of inference",
        "Speed-up over the baseline",
        "Confusion matrix",
    )
    assert [title for title in titles if title not in page] == []
    assert "<DVC_METRIC_" not in page


def test_plots_of_two_revisions_are_drawn(finished: Checkout, tmp_path: Path) -> None:
    finished.succeed("dvc", "plots", "diff", "HEAD", "workspace", "--out", str(tmp_path / "plots"))
    assert "Latency of inference" in (tmp_path / "plots/index.html").read_text(encoding="utf-8")
