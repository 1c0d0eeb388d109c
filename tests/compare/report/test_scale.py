"""Scores as text, in percent or as plain numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from halfstep.compare.scale import Scale

CHANGE = SimpleNamespace(delta=-0.0025, low=-0.012, high=0.007)


@pytest.mark.parametrize(("fraction", "text"), [(-0.0025, "−0.25"), (0.01, "+1.00"), (0.0, "0.00"), (-0.00001, "0.00")])
def test_changes_of_a_share_are_percentage_points(fraction: float, text: str) -> None:
    assert Scale("accuracy", True, 0.01).signed(fraction) == text


def test_share() -> None:
    scale = Scale("accuracy", True, 0.01)
    assert scale.change(CHANGE) == "−0.25 (−1.20 to +0.70)"
    assert (scale.value(0.9825), scale.unit) == ("98.25", "%")
    assert scale.size(-0.08) == "8.00 percentage points of accuracy"
    assert (scale.margin_text, scale.margin_number) == ("1 percentage point", "1")
    assert Scale("accuracy", True, 0.005).margin_text == "0.5 percentage points"


@pytest.mark.parametrize(
    ("margin", "shown", "size"),
    [
        (0.01, "−0.0025 (−0.0120 to +0.0070)", "0.0025 of iou"),
        (0.0005, "−0.002500 (−0.012000 to +0.007000)", "0.002500 of iou"),
        (3.0, "0.00 (−0.01 to +0.01)", "0.00 of iou"),
        (250.0, "0 (0 to 0)", "0 of iou"),
    ],
)
def test_digits_of_other_scores_follow_the_margin(margin: float, shown: str, size: str) -> None:
    scale = Scale("iou", False, margin)
    assert scale.change(CHANGE) == shown
    assert scale.size(CHANGE.delta) == size
    assert (scale.unit, scale.points, scale.margin_text) == ("", "", f"{margin:g}")
