"""The comparison for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from halfstep.compare.report import serving
from halfstep.compare.report.answer import answers, next_step
from halfstep.compare.report.html import headline_note
from halfstep.compare.report.rows import heads, rows
from halfstep.compare.report.tables import batch_table
from halfstep.errors import printable
from halfstep.files import REPORT
from halfstep.results.comparison import Comparison

BATCH_CAPTION = "Ratios: examples per second of the variant / those of the baseline, with a 95 % interval."


def render(comparison: Comparison) -> RenderableType:
    """The answer, a table of each candidate beside the baseline, why, and where to go on."""
    lines: list[RenderableType] = [Text(printable(answer.line), style="bold") for answer in answers(comparison)]
    for name, of_one in rows(comparison).items():
        lines += [Text(), _table(heads(comparison, name), [row.cells for row in of_one])]
    batch_heads, batches = batch_table(comparison)
    if batches:
        lines.append(_table(batch_heads, batches, title="At other batches", caption=BATCH_CAPTION))
    if comparison.serving is not None:
        served, caption = serving.cells(comparison, best_only=True), serving.caption(comparison.serving)
        lines += [Text(), _table(serving.heads(comparison), served, title="Served in float32", caption=caption)]
    lines.append(Text())
    for candidate in comparison.candidates.values():
        lines += [Text(printable(text)) for text in candidate.sentences]
    if comparison.serving is not None:
        lines.append(Text(printable(comparison.serving.sentence)))
    lines += [Text(f"Note: {printable(text)}") for text in _notes(comparison)]
    return Group(*lines, *(Text(printable(line)) for line in _where_to_go_on(comparison)))


def _table(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str = "", caption: str = "") -> Table:
    table = Table(title=title or None, caption=caption or None, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.title_justify = table.caption_justify = "left"
    for number, head in enumerate(columns):
        table.add_column(Text(printable(head)), justify="right" if number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(printable(text)) for text in row))
    return table


def _notes(comparison: Comparison) -> Iterator[str]:
    yield from comparison.notes or ()
    changes = [item.quality for item in comparison.candidates.values() if item.quality is not None]
    if (note := headline_note(comparison)) is not None:
        yield note
    elif changes and changes[0].too_few is not None:
        yield f"{changes[0].too_few}."


def _where_to_go_on(comparison: Comparison) -> Iterator[str]:
    yield f"Report: {REPORT}"
    yield "Runs in MLflow: python -m halfstep ui"
    yield f"Next: {next_step(comparison)}"
