"""What is told of a training that scales its loss."""

from __future__ import annotations

import pandas as pd
import pytest

from stages.compare.arms import Arm, Training
from stages.compare.charts import loss_scale_chart
from stages.compare.loss_scaling import loss_scaling

HISTORY = pd.DataFrame({"epoch": [0, 1, 2], "loss_scale": [32768.0, 65536.0, 16384.0], "skipped_steps": [0, 1, 2]})


def _courses(*trainings: Training) -> list[str]:
    return [course.text for course in loss_scaling((Arm("half", trainings, None),))]


def test_the_course_and_the_skipped_steps() -> None:
    assert _courses(Training(3, {"status": "finished"}, HISTORY)) == [
        "half, seed 3: the loss scale went from 32,768 to 16,384; 3 steps skipped for overflow."
    ]


def test_where_the_loss_ceased_to_be_finite() -> None:
    failed = {"status": "failed", "epoch": 2, "step": 17, "loss_scale": 1.0}
    (said,) = _courses(Training(0, failed))
    assert said.endswith("the first loss that is not finite came at epoch 2, step 17, loss scale 1.")


def test_a_training_without_loss_scaling_is_not_mentioned() -> None:
    assert _courses(Training(0, {"status": "finished"}, HISTORY[["epoch"]]), Training(1, {"status": "failed"})) == []


def test_the_chart_goes_by_powers_of_two() -> None:
    chart = loss_scale_chart({"half, seed 0": [2.0**15, 2.0**16, 2.0**14]})
    assert chart is not None
    (line,) = chart.lines
    heights = [float(point.partition(",")[2]) for point in line.points.split()]
    assert heights[0] - heights[1] == pytest.approx((heights[2] - heights[0]), abs=0.2)  # one power each
    assert "32,768" in [text for _, text in chart.y_ticks]
    assert loss_scale_chart({"half, seed 0": []}) is None
