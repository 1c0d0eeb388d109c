"""The comparison as a table for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stages.compare.comparison import Candidate, Comparison
from stages.compare.report.tables import MetricRow, metric_rows
from stages.compare.report.text import SYNTHETIC_NOTE, points_text, ratio_text, verdict_sentence
from stages.stats.sample_size import too_few_images


def render(comparison: Comparison) -> RenderableType:
    """Headline metrics by variant with ratios over the baseline, then one sentence a candidate."""
    study = comparison.study
    lines: list[RenderableType] = [_metrics_table(comparison)]
    lines += [Text(verdict_sentence(candidate, comparison)) for candidate in comparison.candidates]
    too_few = too_few_images(len(study.labels), comparison.params.quality_margin, len(study.baseline.trainings))
    if study.data.synthetic:
        lines.append(Text(SYNTHETIC_NOTE))
    elif too_few is not None:
        lines.append(Text(f"Note: {too_few}."))
    return Group(*lines)


def _metrics_table(comparison: Comparison) -> Table:
    table = Table(
        caption="Ratios: time of the baseline / time of the variant, with a 95 % interval.", caption_justify="left"
    )
    table.add_column("metric")
    for result in comparison.study.variants:
        table.add_column(result.variant, justify="right", no_wrap=True)
    for row in metric_rows(comparison.study):
        if row.headline:
            baseline = row.text(comparison.study.baseline.variant)
            cells = [_cell(row, candidate) for candidate in comparison.candidates]
            table.add_row(Text(f"{row.label}, {row.unit}"), baseline, *cells)
    table.add_section()
    table.add_row("verdict, training", "", *(item.verdict for item in comparison.candidates))
    return table


def _cell(row: MetricRow, candidate: Candidate) -> str:
    """The value, and below it the comparison with the baseline if there is one."""
    lines = [row.text(candidate.variant)]
    if row.measure == "accuracy" and candidate.quality is not None:
        lines.append(points_text(candidate.quality))
    elif row.measure in candidate.speedups:
        lines.append(ratio_text(candidate.speedups[row.measure]))
    return "\n".join(lines)
