"""The comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from stages.compare.comparison import Candidate, Comparison
from stages.compare.report.next_steps import too_few_of
from stages.compare.report.scale import scale_of
from stages.compare.report.tables import QUALITY, MetricRow, metric_rows
from stages.compare.report.text import SPEED_ONLY_NOTE, SYNTHETIC_NOTE, notes, ratio_text
from stages.compare.report.verdicts import verdict_sentence

CAPTION = "Ratios: time of the baseline / time of the variant, with a 95 % interval."
PARTS = {"settings": "= settings", "precision": "× precision", "typical": "typical steps"}  # rows below a speed-up
METRIC_WIDTH = 12  # characters; a narrower column breaks words
UNLIMITED = 10_000  # characters: more than any table needs


def render(comparison: Comparison) -> RenderableType:
    """Headline metrics by variant with ratios over the baseline, then one sentence a candidate."""
    lines: list[RenderableType] = [_MetricsTables(comparison)]
    lines += [Text(verdict_sentence(candidate, comparison)) for candidate in comparison.candidates]
    lines += [Text(f"Note: {text}") for text in notes(comparison)]
    changes = [item.quality for item in comparison.candidates if item.quality is not None]
    if comparison.speed_only:
        lines.append(Text(SPEED_ONLY_NOTE))
    elif comparison.study.is_synthetic:
        lines.append(Text(SYNTHETIC_NOTE))
    elif changes and (too_few := too_few_of(changes[0], comparison)) is not None:
        lines.append(Text(f"Note: {too_few}."))
    return Group(*lines)


class _MetricsTables:
    """The metrics by variant: one table, or several with some of the candidates each where one is too wide."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        left = self._comparison.candidates
        while True:
            sizes = range(len(left), 0, -1)
            number = next((size for size in sizes if self._fits(left[:size], console, options)), 0)
            shown, left = left[: number or 1], left[number or 1 :]
            yield _metrics_table(self._comparison, shown, is_narrow=not number, is_last=not left)
            if not left:
                return

    def _fits(self, candidates: Sequence[Candidate], console: Console, options: ConsoleOptions) -> bool:
        table = _metrics_table(self._comparison, candidates)
        table.columns[0].width = METRIC_WIDTH
        return Measurement.get(console, options.update(width=UNLIMITED), table).maximum <= options.max_width


def _metrics_table(
    comparison: Comparison, candidates: Sequence[Candidate], *, is_narrow: bool = False, is_last: bool = True
) -> Table:
    table = Table(caption=CAPTION if is_last else None, caption_justify="left")
    table.add_column("metric", min_width=None if is_narrow else METRIC_WIDTH, overflow="fold")
    baseline = comparison.study.baseline.variant
    for variant in (baseline, *(candidate.variant for candidate in candidates)):
        table.add_column(Text(variant), justify="right", no_wrap=not is_narrow, overflow="fold")
    for row in metric_rows(comparison):
        if row.headline:
            cells = [_cell(row, candidate, comparison) for candidate in candidates]
            table.add_row(Text(f"{row.label}, {row.unit}" if row.unit else row.label), Text(row.text(baseline)), *cells)
            _add_parts(table, row.measure, candidates)
    table.add_section()
    label = "verdict, training, speed only" if comparison.speed_only else "verdict, training"
    table.add_row(label, "", *(Text(item.verdict) for item in candidates))
    return table


def _add_parts(table: Table, measure: str | None, candidates: Sequence[Candidate]) -> None:
    """Rows for what a speed-up consists of, and for typical steps, where a candidate has them."""
    for part, label in PARTS.items():
        cells = [_part_text(candidate, measure, part) for candidate in candidates]
        if any(cells):
            table.add_row(Text(f"  {label}"), "", *map(Text, cells))


def _part_text(candidate: Candidate, measure: str | None, part: str) -> str:
    factors = candidate.factors.get(measure or "")
    if part == "typical":
        is_shown = any(reason.code == "stalls" and reason.measure == measure for reason in candidate.reasons)
        return f"{candidate.speedups[measure].typical_ratio:.2f}×" if measure and is_shown else ""
    return "" if factors is None else ratio_text(getattr(factors, part))


def _cell(row: MetricRow, candidate: Candidate, comparison: Comparison) -> Text:
    """The value, and below it the comparison with the baseline if there is one."""
    lines = [row.text(candidate.variant)]
    if row.measure == QUALITY and candidate.quality is not None:
        lines.append(scale_of(comparison).change(candidate.quality))
    elif row.measure in candidate.speedups:
        lines.append(ratio_text(candidate.speedups[row.measure]))
    return Text("\n".join(lines))
