"""Scores as text: shares of the examples in percent, other scores as plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from halfstep.results.comparison import Quality
from halfstep.text import signed


class _Estimate(Protocol):
    @property
    def delta(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


@dataclass(frozen=True)
class Scale:
    """How a score and its changes are written.

    Attributes:
        name: of the score.
        is_fraction: whether it is a share of the examples, in percent, with changes in percentage points.
        margin: largest loss that counts as the same, in units of the score.
    """

    name: str
    is_fraction: bool
    margin: float

    @classmethod
    def of(cls, quality: Quality) -> Scale:
        """How a change of quality is written."""
        return cls(quality.name, quality.unit == "fraction", quality.margin)

    @property
    def digits(self) -> int:
        """Decimal places: two for percent; for other scores so many that the margin has three digits."""
        return 2 if self.is_fraction else min(12, max(0, 2 - math.floor(math.log10(self.margin))))

    @property
    def unit(self) -> str:
        """Unit of a value in a table."""
        return "%" if self.is_fraction else ""

    @property
    def points(self) -> str:
        """What follows a change in a sentence."""
        return " percentage points" if self.is_fraction else ""

    @property
    def short_points(self) -> str:
        """The same, where the unit is known."""
        return " points" if self.is_fraction else ""

    @property
    def margin_text(self) -> str:
        """The declared margin, such as `1 percentage point`."""
        if not self.is_fraction:
            return f"{self.margin:g}"
        points = 100 * self.margin
        return f"{points:g} percentage point{'' if points == 1 else 's'}"

    @property
    def margin_number(self) -> str:
        """The declared margin where the unit is known, such as `1`."""
        return f"{self._scaled(self.margin):g}"

    def value(self, score: float) -> str:
        """A score, such as `98.25`."""
        return f"{self._scaled(score):,.{self.digits}f}"

    def signed(self, change: float) -> str:
        """A change with its sign, such as `−0.25`."""
        return signed(self._scaled(change), self.digits)

    def size(self, change: float) -> str:
        """The size of a change in a sentence, such as `0.25 percentage points of accuracy`."""
        return f"{self.value(abs(change))}{self.points} of {self.name}"

    def interval(self, change: _Estimate) -> str:
        """The interval of a change, such as `−1.20 to +0.70`."""
        return f"{self.signed(change.low)} to {self.signed(change.high)}"

    def change(self, change: _Estimate) -> str:
        """A change with its interval, such as `−0.25 (−1.20 to +0.70)`."""
        return f"{self.signed(change.delta)} ({self.interval(change)})"

    def _scaled(self, value: float) -> float:
        return 100 * value if self.is_fraction else value
