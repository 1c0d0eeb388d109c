"""Positions on the axes of charts."""

from __future__ import annotations

import pytest

from halfstep.compare.report.charts import Axis


def test_axis_places_values_and_ticks_inside() -> None:
    axis = Axis.around([0.25, 4.0], logarithmic=True)
    assert axis.at(1.0) == pytest.approx(50.0)
    assert axis.at(0.0001) == 0.0
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks())
    assert 1 in axis.ticks()
    assert Axis(-0.011, 0.006).ticks(4) == [-0.01, -0.005, 0.0, 0.005]
