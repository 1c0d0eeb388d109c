"""Every chart of the report as a figure."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from stages import files
from stages.compare.comparison import Comparison
from stages.compare.figures import figures
from stages.compare.operations import OperationChange


def test_every_chart_that_has_something_to_show_is_drawn(comparison: Comparison) -> None:
    drawn = figures(comparison)
    charts = {"speedups", "accuracy", "accuracy_by_epoch", "step_breakdown", "latency", "memory"}
    assert charts <= set(drawn)
    assert "loss_scale" not in drawn  # no history has one
    ticks = [label.get_text() for label in drawn["accuracy"].axes[0].get_yticklabels()]
    assert ticks == ["mixed_float16", "mixed_bfloat16"]
    for figure in drawn.values():
        figure.savefig(io.BytesIO(), format="png", dpi=20)


def test_a_layer_may_be_called_anything(comparison: Comparison) -> None:
    change = OperationChange("a$^{b$", "Conv2D", 2.0, 1.0, "float32", "bfloat16")
    candidate = replace(comparison.candidates[1], operation_changes=(change,))
    drawn = figures(replace(comparison, candidates=(candidate,)))
    drawn["operations_mixed_bfloat16"].savefig(io.BytesIO(), format="png", dpi=20)


def test_arms_that_failed_have_no_figures_of_their_own(project: Any) -> None:
    project.edit(files.train_dir("float32", 2) / "metrics.json", status="failed", reason="the loss is inf")
    assert not {"speedups", "accuracy"} & set(figures(project.compare()))
