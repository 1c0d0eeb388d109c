"""Positions of the report's charts in percent of a track's width, so that CSS draws them at any size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from halfstep.results.comparison import Estimate

WIDTH, HEIGHT = 400, 220  # units of the line chart's SVG: one CSS pixel each on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 8, 8, 28


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale from values to percent of its length."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def around(cls, values: Iterable[float], logarithmic: bool = False, padding: float = 0.06) -> Axis:
        """An axis that contains all values, with padding at both ends."""
        scaled = [math.log(value) if logarithmic else value for value in values]
        margin = (max(scaled) - min(scaled)) * padding or 0.1
        ends = (min(scaled) - margin, max(scaled) + margin)
        low, high = map(math.exp, ends) if logarithmic else ends
        return cls(low, high, logarithmic)

    def at(self, value: float) -> float:
        """Position of a value in percent, clipped to the axis."""
        low, high, here = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return round(min(100.0, max(0.0, 100 * (here - low) / (high - low))), 2)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values on the axis: equally spaced, or round ratios on a logarithmic one."""
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
    """An estimate with its interval on an axis; positions in percent. A factor is a part of the estimate above it."""

    label: str
    text: str
    at: float
    start: float
    width: float
    good: bool
    is_factor: bool = False


def interval(axis: Axis, label: str, text: str, found: Estimate, good: bool, *, is_factor: bool = False) -> Interval:
    """Places an estimate on an axis."""
    start = axis.at(found.low)
    return Interval(label, text, axis.at(found.value), start, round(axis.at(found.high) - start, 2), good, is_factor)


@dataclass(frozen=True)
class Line:
    """One line of a line chart as SVG points. Lines of one label share their `style`; faint ones are single seeds."""

    label: str
    points: str
    style: int
    faint: bool = False


@dataclass(frozen=True)
class LineChart:
    """A line chart in SVG units of `WIDTH` × `HEIGHT`."""

    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]

    @property
    def labelled(self) -> tuple[Line, ...]:
        """The lines of the legend."""
        return tuple(line for line in self.lines if not line.faint)


def score_chart(epochs: pd.DataFrame, *, is_fraction: bool = True) -> LineChart | None:
    """Validation score by epoch: for each variant a line for the mean over its seeds, and a faint one a seed.

    Args:
        epochs: columns variant, seed, epoch and val_score. Without any score, None is returned.
        is_fraction: whether the score is shown in percent.
    """
    factor, unit = (100, " %") if is_fraction else (1, "")
    known = epochs.dropna(subset=["val_score"]).assign(shown=lambda rows: factor * rows["val_score"])
    if known.empty:
        return None
    x_axis, y_axis = _epochs_axis(known["epoch"]), Axis.around(known["shown"])
    lines: list[Line] = []
    for style, (variant, rows) in enumerate(known.groupby("variant", sort=False)):
        by_seed = [of_seed.set_index("epoch")["shown"] for _, of_seed in rows.groupby("seed")]
        if len(by_seed) > 1:
            lines += [_line(str(variant), of_seed, x_axis, y_axis, style, faint=True) for of_seed in by_seed]
        mean = rows.groupby("epoch")["shown"].mean()
        lines.append(_line(str(variant), mean, x_axis, y_axis, style))
    y_ticks = tuple((_y(y_axis, tick), f"{tick:g}{unit}") for tick in y_axis.ticks(4))
    return LineChart(tuple(lines), _epoch_ticks(x_axis), y_ticks)


def loss_scale_chart(scales_by_label: Mapping[str, Sequence[float]]) -> LineChart | None:
    """Loss scale at the end of each epoch in powers of two, one line a training; None without any, or if none changes.

    Infinite scales are left out.
    """
    powers = {
        label: pd.Series(
            {epoch: math.log2(max(scale, 2.0**-149)) for epoch, scale in enumerate(scales) if scale < math.inf}
        )
        for label, scales in scales_by_label.items()
        if any(scale < math.inf for scale in scales)
    }
    if not powers or len(set(pd.concat(list(powers.values())))) == 1:
        return None
    everything = pd.concat(list(powers.values()))
    x_axis, y_axis = _epochs_axis(everything.index.to_series()), Axis.around([*everything, everything.max() + 1])
    lines = tuple(_line(label, series, x_axis, y_axis, style) for style, (label, series) in enumerate(powers.items()))
    whole = [tick for tick in y_axis.ticks(4) if tick == int(tick)]
    return LineChart(lines, _epoch_ticks(x_axis), tuple((_y(y_axis, tick), _power_text(tick)) for tick in whole))


def _power_text(exponent: float) -> str:
    return f"{2**exponent:,.0f}" if 0 <= exponent < 20 else f"2^{exponent:g}"


def _epochs_axis(epochs: pd.Series[int]) -> Axis:
    return Axis(float(epochs.min()), float(max(epochs.max(), epochs.min() + 1)))


def _epoch_ticks(axis: Axis) -> tuple[tuple[float, str], ...]:
    """Epochs are counted from 1, as `fit` prints them."""
    return tuple((_x(axis, tick), f"{tick + 1:g}") for tick in axis.ticks() if tick == int(tick))


def _line(label: str, values: pd.Series[float], x_axis: Axis, y_axis: Axis, style: int, *, faint: bool = False) -> Line:
    places = [(_x(x_axis, float(epoch)), _y(y_axis, value)) for epoch, value in values.items()]
    return Line(label, " ".join(f"{x},{y}" for x, y in places), style, faint)


def _x(axis: Axis, value: float) -> float:
    return round(_LEFT + axis.at(value) / 100 * (WIDTH - _LEFT - _RIGHT), 1)


def _y(axis: Axis, value: float) -> float:
    return round(HEIGHT - _BOTTOM - axis.at(value) / 100 * (HEIGHT - _TOP - _BOTTOM), 1)
