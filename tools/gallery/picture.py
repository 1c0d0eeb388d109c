"""One picture of all results: a forest plot, with a panel for each machine."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from halfstep.results.comparison import Ratio
from halfstep.words.text import TRAIN
from tools.gallery.merging import CandidateRow, mean_of, rows_of
from tools.gallery.results import Result
from tools.gallery.studies import Study

Lines = Sequence[tuple[float, str, CandidateRow]]  # of a panel: its place from the top, its title if new, a candidate
# Told apart by people who are colour-blind, and in grey by their shape.
COLOURS = {"adopt": "#1b7837", "faster": "#1b7837", "reject": "#b2182b", "slower": "#b2182b", "inconclusive": "#666666"}
SHAPES = {"adopt": "o", "faster": "o", "reject": "s", "slower": "s", "inconclusive": "D"}
LEGEND = {"adopt": "adopt, or faster", "reject": "reject, or slower", "inconclusive": "inconclusive"}
# The background is solid: the picture is the same on a dark page and on paper.
_STYLE: Any = {"svg.hashsalt": "halfstep", "font.size": 9, "font.family": "DejaVu Sans", "axes.edgecolor": "#888888"}
_AXIS = "speed-up of a training step, 95 % interval; solid line: the same time; dashed: worth having"
_ROW_INCHES, _GAP_ROWS, _WIDTH_INCHES = 0.21, 0.5, 9


def svg(machines: Mapping[str, Mapping[str, Sequence[Result]]], studies: Mapping[str, Study]) -> str:
    """The picture as SVG.

    Args:
        machines: results by machine and study, the oldest occasion first.
        studies: all of them, by name.
    """
    drawn = [(list(_lines(each, studies)), next(iter(each.values()))[-1]) for each in machines.values()]
    panels = [(lines, newest) for lines, newest in drawn if lines]
    rows = sum(lines[-1][0] + 1 for lines, _ in panels)
    with rc_context(_STYLE):
        size = (_WIDTH_INCHES, rows * _ROW_INCHES + 1.1 * len(panels) + 0.4)
        figure = Figure(figsize=size, facecolor="white", layout="constrained")
        if panels:
            _draw_panels(figure, panels)
        marks = [
            Line2D([], [], color=COLOURS[verdict], marker=SHAPES[verdict], linestyle="", label=label)
            for verdict, label in LEGEND.items()
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, title=_AXIS)
        output = io.StringIO()
        figure.savefig(output, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def _draw_panels(figure: Figure, panels: Sequence[tuple[Lines, Result]]) -> None:
    heights = [lines[-1][0] + 1 for lines, _ in panels]
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for one, (lines, newest) in zip(axes, panels, strict=True):
        _panel(one, lines, newest)
    axes[-1].set_xlim(*_limits([ratio for lines, _ in panels for _, _, row in lines for ratio in row.ratios(TRAIN)]))


def _lines(
    each: Mapping[str, Sequence[Result]], studies: Mapping[str, Study]
) -> Iterator[tuple[float, str, CandidateRow]]:
    """The candidates in lower precision that were compared."""
    place = 0.0
    for name, occasions in each.items():
        title = studies[name].title
        for row in (
            row for row in rows_of(occasions) if row.ratios(TRAIN) and studies[name].lowers_precision(row.name)
        ):
            yield place, title, row
            place, title = place + 1, ""
        place += _GAP_ROWS


def _panel(axes: Axes, lines: Lines, newest: Result) -> None:
    for place, title, row in lines:
        _draw(axes, place, row)
        axes.annotate(
            title, (0, place), (-270, 0), ("axes fraction", "data"), "offset points", va="center", weight="bold"
        )
    axes.set_yticks([place for place, _, _ in lines], [row.name for _, _, row in lines])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(lines[-1][0] + 0.8, -0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.axvline(1, color="#222222", linewidth=1, zorder=0)
    axes.axvline(newest.comparison.min_speedup, color="#222222", linewidth=1, linestyle=(0, (3, 3)), zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(newest.device, loc="left", weight="bold")


def _draw(axes: Axes, place: float, row: CandidateRow) -> None:
    """The interval of each occasion, one above the other, and in grey that of their mean."""
    ratios = row.ratios(TRAIN)
    for number, ratio in enumerate(ratios):
        at = place + (number - (len(ratios) - 1) / 2) * min(0.3, 0.7 / len(ratios))
        colour = COLOURS[row.verdict]
        axes.plot([ratio.low, ratio.high], [at, at], color=colour, linewidth=1.6)
        axes.plot(ratio.ratio, at, SHAPES[row.verdict], color=colour, markersize=5 if len(ratios) == 1 else 3.5)
    if len(ratios) > 1:
        mean = mean_of(ratios)
        axes.plot([mean.low, mean.high], [place, place], color="#dddddd", linewidth=8, solid_capstyle="butt", zorder=0)


def _limits(ratios: Sequence[Ratio]) -> tuple[float, float]:
    """Ends of the axis, which hold every interval of an occasion, and 1."""
    return min(0.95, *(ratio.low for ratio in ratios)) * 0.97, max(1.1, *(ratio.high for ratio in ratios)) * 1.03
