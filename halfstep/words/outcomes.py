"""What an interval says of a number that is asked for."""

from __future__ import annotations

from typing import Literal

Outcome = Literal["shown", "refuted", "not established"]  # that a loss of more than a margin is excluded
Side = Literal["above", "below", "open"]  # of a required ratio


def side_of(low: float, high: float, required: float) -> Side:
    """On which side of a required ratio an interval lies; `open` where it holds the ratio."""
    if low >= required:
        return "above"
    return "below" if high < required else "open"
