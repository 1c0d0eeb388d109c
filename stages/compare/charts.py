"""Numbers → positions for the report's charts, in percent of a track's width, so that CSS can draw them at any size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

WIDTH, HEIGHT = 400, 220  # units of the line chart's SVG: one CSS pixel each on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 8, 8, 28


@dataclass(frozen=True)
class Axis:
    """A scale from values to percent of its length, linear or logarithmic."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def around(cls, values: Iterable[float], logarithmic: bool = False, padding: float = 0.06) -> Axis:
        """The axis that holds all values, with some air at both ends."""
        scaled = [math.log(value) if logarithmic else value for value in values]
        air = (max(scaled) - min(scaled)) * padding or 0.1
        ends = (min(scaled) - air, max(scaled) + air)
        low, high = map(math.exp, ends) if logarithmic else ends
        return cls(low, high, logarithmic)

    def at(self, value: float) -> float:
        """Position of a value in percent, clipped to the axis."""
        low, high, here = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return round(min(100.0, max(0.0, 100 * (here - low) / (high - low))), 2)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values inside the axis: at equal steps, or at round ratios on a logarithmic one."""
        if self.logarithmic and self.high / self.low > 2:
            leading = (1, 1.5, 2, 3, 5, 7) if self.high / self.low < 20 else (1, 2, 5)
            base = [round(m * 10.0**e, 10) for e in range(-4, 5) for m in leading]
            return [tick for tick in base if self.low <= tick <= self.high]
        step = _round_step((self.high - self.low) / wanted)
        first = math.ceil(self.low / step)
        return [round(n * step, 10) for n in range(first, math.floor(self.high / step) + 1)]


def _round_step(rough: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough)


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval, placed on an axis; positions in percent."""

    label: str
    text: str
    at: float
    start: float
    width: float
    good: bool


def interval(axis: Axis, label: str, text: str, estimate: Sequence[float], good: bool = True) -> Interval:
    """Places (estimate, low, high) on an axis."""
    here, low, high = estimate
    start = axis.at(low)
    return Interval(label, text, axis.at(here), start, round(axis.at(high) - start, 2), good)


@dataclass(frozen=True)
class Line:
    """One line of the line chart: SVG points, and where its name goes."""

    label: str
    points: str
    end_x: float
    end_y: float


@dataclass(frozen=True)
class LineChart:
    """A line chart in SVG units of `WIDTH` × `HEIGHT`."""

    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def accuracy_chart(epochs: pd.DataFrame) -> LineChart | None:
    """Validation accuracy by epoch, the mean over seeds, one line a variant; None where nothing was validated.

    Args:
        epochs: columns variant, epoch, val_accuracy (a fraction).
    """
    known = epochs.dropna(subset=["val_accuracy"])
    if known.empty:
        return None
    means = 100 * known.groupby(["variant", "epoch"], sort=False)["val_accuracy"].mean()
    x_axis = Axis(float(known["epoch"].min()), float(max(known["epoch"].max(), known["epoch"].min() + 1)))
    y_axis = Axis.around(means)
    lines = tuple(_line(str(variant), means.loc[variant], x_axis, y_axis) for variant in known["variant"].unique())
    whole_epochs = [tick for tick in x_axis.ticks() if tick == int(tick)]
    return LineChart(
        lines,
        tuple((_x(x_axis, tick), f"{tick:g}") for tick in whole_epochs),
        tuple((_y(y_axis, tick), f"{tick:g} %") for tick in y_axis.ticks(4)),
    )


def _line(variant: str, values: pd.Series[float], x_axis: Axis, y_axis: Axis) -> Line:
    places = [(_x(x_axis, float(epoch)), _y(y_axis, value)) for epoch, value in values.items()]
    return Line(variant, " ".join(f"{x},{y}" for x, y in places), *places[-1])


def _x(axis: Axis, value: float) -> float:
    return round(_LEFT + axis.at(value) / 100 * (WIDTH - _LEFT - _RIGHT), 1)


def _y(axis: Axis, value: float) -> float:
    return round(HEIGHT - _BOTTOM - axis.at(value) / 100 * (HEIGHT - _TOP - _BOTTOM), 1)
