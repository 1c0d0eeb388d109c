"""Positions on the axes of charts, and the lines of line charts."""

from __future__ import annotations

import pytest

from halfstep.compare.case import Judging
from halfstep.compare.report.charts import Axis, loss_scale_chart, score_chart
from halfstep.compare.report.tables import score_by_epoch


def test_axis_places_values_and_ticks_inside() -> None:
    axis = Axis.around([0.25, 4.0], logarithmic=True)
    assert axis.at(1.0) == pytest.approx(50.0)
    assert axis.at(0.0001) == 0.0
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks())
    assert 1 in axis.ticks()
    assert Axis(-0.011, 0.006).ticks(4) == [-0.01, -0.005, 0.0, 0.005]


def test_score_chart_has_a_line_for_each_seed_and_their_mean(comparison: Judging) -> None:
    chart = score_chart(score_by_epoch(comparison.study))
    assert chart is not None
    assert len(chart.labelled) == 3
    assert len(chart.lines) == 3 * (1 + 3)


def test_loss_scale_chart_is_logarithmic() -> None:
    chart = loss_scale_chart({"half, seed 0": [2.0**15, 2.0**16, 2.0**14]})
    assert chart is not None
    (line,) = chart.lines
    heights = [float(point.partition(",")[2]) for point in line.points.split()]
    assert heights[0] - heights[1] == pytest.approx((heights[2] - heights[0]), abs=0.2)  # one power of two each
    assert "32,768" in [text for _, text in chart.y_ticks]
    assert loss_scale_chart({"half, seed 0": []}) is None


def test_infinite_loss_scale_is_not_drawn() -> None:
    chart = loss_scale_chart({"a": [1024.0, float("inf"), 2048.0], "b": [float("inf")]})
    assert chart is not None
    assert [(line.label, line.points.count(",")) for line in chart.lines] == [("a", 2)]
    assert loss_scale_chart({"a": [float("inf")]}) is None
