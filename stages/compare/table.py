"""The comparison as a table for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stages.compare.comparison import Candidate, Comparison
from stages.compare.metric_rows import MetricRow, metric_rows
from stages.compare.wording import SYNTHETIC_NOTE, points_text, ratio_text, verdict_sentence
from stages.margins import too_few_images


def render(comparison: Comparison) -> RenderableType:
    """Headline metrics by variant with ratios against the baseline, then one sentence a candidate."""
    lines: list[RenderableType] = [_metrics_table(comparison)]
    lines += [Text(verdict_sentence(candidate, comparison)) for candidate in comparison.candidates]
    if comparison.study.synthetic:
        lines.append(Text(SYNTHETIC_NOTE))
    elif (too_few := _too_few(comparison)) is not None:
        lines.append(Text(f"Note: {too_few}."))
    return Group(*lines)


def _too_few(comparison: Comparison) -> str | None:
    study = comparison.study
    return too_few_images(len(study.labels), comparison.params.accuracy_margin, len(study.baseline.trainings))


def _metrics_table(comparison: Comparison) -> Table:
    table = Table(
        caption="Ratios: time of the baseline / time of the variant, with a 95 % interval.", caption_justify="left"
    )
    table.add_column("metric")
    for arm in comparison.study.arms:
        table.add_column(arm.variant, justify="right", no_wrap=True)
    for row in metric_rows(comparison.study):
        if row.headline:
            baseline = row.text(comparison.study.baseline.variant)
            cells = [_cell(row, candidate) for candidate in comparison.candidates]
            table.add_row(Text(f"{row.label}, {row.unit}"), baseline, *cells)
    table.add_section()
    table.add_row("verdict, training", "", *(item.verdict for item in comparison.candidates))
    return table


def _cell(row: MetricRow, candidate: Candidate) -> str:
    """The value, and below it how it compares where that was measured in pairs."""
    lines = [row.text(candidate.variant)]
    if row.measure == "accuracy" and candidate.accuracy is not None:
        lines.append(points_text(candidate.accuracy))
    elif row.measure in candidate.speedups:
        lines.append(ratio_text(candidate.speedups[row.measure]))
    return "\n".join(lines)
