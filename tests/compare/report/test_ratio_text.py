"""Large ratios have one digit, which is in their interval."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from halfstep.compare.ratio_text import large_ratio_text


class Interval(NamedTuple):
    ratio: float
    low: float
    high: float


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(2.614, 2.44, 2.794), "2.61× (2.44 to 2.79)"),
        (Interval(59.4, 56.1, 63.2), "60× (56 to 63)"),
        (Interval(17.1, 14.6, 19.2), "17× (15 to 19)"),
        (Interval(7.69, 7.31, 8.08), "8× (7.3 to 8.1)"),
        (Interval(126.0, 97.0, 161.0), "100× (97 to 160)"),
    ],
)
def test_large_ratio(interval: Interval, text: str) -> None:
    assert large_ratio_text(interval) == text
