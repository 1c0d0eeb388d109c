"""The comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from stages.compare.report.answer import answers, next_step
from stages.compare.report.html import compared, headline_note
from stages.compare.report.tables import MetricRow, at_equal_batch, batch_table, metric_rows
from stages.compare.study import Study
from stages.compare.text import ratio_text
from stages.errors import printable
from stages.files import REPORT
from stages.results.comparison import Candidate, Comparison
from stages.text import measure_label

CAPTION = "Ratios: time of the baseline / time of the variant, with a 95 % interval."
BATCH_CAPTION = "Ratios: examples per second of the variant / those of the baseline, with a 95 % interval."
PARTS = {"settings": "= settings", "precision": "× precision", "typical": "typical steps"}  # rows below a speed-up
METRIC_WIDTH = 12  # characters; a narrower column breaks words
UNLIMITED = 10_000  # characters: more than any table needs


def render(comparison: Comparison, study: Study | None) -> RenderableType:
    """The answer, the headline metrics by variant with ratios over the baseline, why, and where to go on.

    Without the study, whose metrics they are, the metrics are left out.
    """
    lines: list[RenderableType] = [Text(printable(answer.line), style="bold") for answer in answers(comparison)]
    lines += [_MetricsTables(comparison, study)] if study else []
    heads, rows = batch_table(comparison)
    lines += [_batch_table(heads, rows)] if rows else []
    for candidate in comparison.candidates.values():
        lines += [Text(printable(text)) for text in candidate.sentences]
    lines += [Text(f"Note: {printable(text)}") for text in _notes(comparison)]
    return Group(*lines, *(Text(printable(line)) for line in _where_to_go_on(comparison)))


def _notes(comparison: Comparison) -> Iterator[str]:
    yield from comparison.notes or ()
    changes = [item.quality for item in comparison.candidates.values() if item.quality is not None]
    if (note := headline_note(comparison)) is not None:
        yield note
    elif changes and changes[0].too_few is not None:
        yield f"{changes[0].too_few}."


def _where_to_go_on(comparison: Comparison) -> Iterator[str]:
    yield f"Report: {REPORT}"
    yield "Runs in MLflow: python -m stages.tracking"
    yield f"Next: {next_step(comparison)}"


class _MetricsTables:
    """The metrics by variant: one table, or several with some of the candidates each where one is too wide."""

    def __init__(self, comparison: Comparison, study: Study) -> None:
        self._comparison, self._rows = comparison, metric_rows(study, comparison.score)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        left = list(at_equal_batch(self._comparison))
        while True:
            sizes = range(len(left), 0, -1)
            number = next((size for size in sizes if self._fits(left[:size], console, options)), 0)
            shown, left = left[: number or 1], left[number or 1 :]
            yield _metrics_table(self._comparison, self._rows, shown, is_narrow=not number, is_last=not left)
            if not left:
                return

    def _fits(self, names: Sequence[str], console: Console, options: ConsoleOptions) -> bool:
        table = _metrics_table(self._comparison, self._rows, names)
        table.columns[0].width = METRIC_WIDTH
        return Measurement.get(console, options.update(width=UNLIMITED), table).maximum <= options.max_width


def _metrics_table(
    comparison: Comparison,
    rows: Sequence[MetricRow],
    names: Sequence[str],
    *,
    is_narrow: bool = False,
    is_last: bool = True,
) -> Table:
    candidates = {name: comparison.candidates[name] for name in names}
    table = Table(caption=CAPTION if is_last else None, caption_justify="left")
    table.add_column("metric", min_width=None if is_narrow else METRIC_WIDTH, overflow="fold")
    for variant in (comparison.baseline, *names):
        table.add_column(Text(variant), justify="right", no_wrap=not is_narrow, overflow="fold")
    for row in rows:
        if row.headline:
            cells = [Text("\n".join(_cell(row, name, item))) for name, item in candidates.items()]
            label = f"{row.label}, {row.unit}" if row.unit else row.label
            table.add_row(Text(label), Text(row.text(comparison.baseline)), *cells)
            _add_parts(table, row.measure, candidates.values())
    table.add_section()
    only = ", speed only" if comparison.speed_only else ""
    for measure in dict.fromkeys(measure for item in candidates.values() for measure in item.verdicts):
        cells = [Text(item.verdicts.get(measure, "")) for item in candidates.values()]
        table.add_row(f"verdict, {measure_label(measure)}{only}", "", *cells)
    return table


def _batch_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Variants whose batch is not the baseline's: ratios of examples per second."""
    table = Table(title="At other batches", caption=BATCH_CAPTION, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _add_parts(table: Table, measure: str | None, candidates: Iterable[Candidate]) -> None:
    """Rows for what a speed-up consists of, and for typical steps, where a candidate has them."""
    for part, label in PARTS.items():
        cells = [_part_text(candidate, measure, part) for candidate in candidates]
        if any(cells):
            table.add_row(Text(f"  {label}"), "", *map(Text, cells))


def _part_text(candidate: Candidate, measure: str | None, part: str) -> str:
    if measure not in candidate.speedups:
        return ""
    if part == "typical":
        is_shown = candidate.has_reason("stalls", measure)
        return f"{candidate.speedups[measure].typical_ratio:.2f}×" if is_shown else ""
    factors = (candidate.factors or {}).get(measure)
    return "" if factors is None else ratio_text(getattr(factors, part))


def _cell(row: MetricRow, name: str, candidate: Candidate) -> list[str]:
    """The value, and below it the comparison with the baseline if there is one."""
    below = compared(row.measure, candidate)
    return [row.text(name), *([below] if below else [])]
