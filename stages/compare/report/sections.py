"""The sections of the HTML report: the rows of `tables` with their positions in percent."""

from __future__ import annotations

from itertools import chain
from typing import Any

from stages.compare.comparison import LARGEST_BATCH, PEAK_MEMORY, Candidate, Comparison, inference_measure
from stages.compare.explain.layer_diff import OpChange, gained, lost
from stages.compare.report import tables
from stages.compare.report.charts import Axis, Interval, interval, loss_scale_chart
from stages.compare.report.next_steps import too_few_of
from stages.compare.report.quality_text import quality_sentence, same_weights_sentence, seeds_note
from stages.compare.report.scale import Scale, scale_of
from stages.compare.report.text import signed, unsteady_measures
from stages.compare.training_curves import loss_scaling, time_to_score
from stages.results.study import Study
from stages.stats.bootstrap import MetricChange
from stages.stats.quality import QualityChange
from stages.stats.scores import ScoreChange
from stages.text import decimals, ms_text, number_text, percent_text

NOTABLE_MEMORY = 0.05  # of the baseline's peak; less is not listed as a difference
SMALLEST_PART = 0.005  # of the longest step; smaller parts are not drawn


def to_score(comparison: Comparison) -> dict[str, Any] | None:
    """Seconds until the best validation score that all variants reach."""
    found = time_to_score(comparison.study.variants, comparison.study.score_name)
    if found is None:
        return None
    longest_s = max(chain.from_iterable(found.seconds.values()))
    return {
        "target": f"{100 * found.target:.2f} %" if comparison.is_fraction else number_text(found.target),
        "bars": [
            {
                "variant": variant,
                "width": round(100 * mean_s / longest_s, 2),
                "text": f"{number_text(mean_s)} s" + _range_text(found.seconds[variant]),
            }
            for variant, mean_s in found.means_s.items()
        ],
    }


def _range_text(seconds: tuple[float, ...]) -> str:
    return f" ({number_text(min(seconds))} to {number_text(max(seconds))})" if len(seconds) > 1 else ""


def quality(comparison: Comparison) -> dict[str, Any] | None:
    """Changes of the score on one axis, with the declared margin."""
    changes = _changes(comparison, "quality")
    if not changes:
        return None
    same, scale = _changes(comparison, "quality_same_weights"), scale_of(comparison)
    margin, examples = scale.margin, comparison.study.task.examples_word
    ends = chain.from_iterable((change.low, change.high) for change in (*changes.values(), *same.values()))
    axis = Axis.around([-margin, 0.0, margin / 2, *ends])
    change = next(iter(changes.values()))
    sentences = [text for item in comparison.candidates if (text := same_weights_sentence(item, comparison))]
    return {
        "intervals": _change_intervals(changes, axis, scale),
        "ticks": [(axis.at(tick), scale.signed(tick)) for tick in axis.ticks(4)],
        "zero": axis.at(0.0),
        "margin": axis.at(-margin),
        "margin_text": f"−{scale.margin_text}",
        "seeds": change.seeds,
        "examples": f"{change.examples:,} test {examples}",
        "unit": "in percentage points, " if scale.is_fraction else "",
        "method": _method(change, examples),
        "sentences": [quality_sentence(name, found, comparison) for name, found in changes.items()],
        "notes": [
            seeds_note(change, examples),
            too_few_of(change, comparison),
        ],
        "same_weights": {"intervals": _change_intervals(same, axis, scale), "sentences": sentences} if same else None,
    }


def _changes(comparison: Comparison, name: str) -> dict[str, QualityChange]:
    found = {candidate.variant: getattr(candidate, name) for candidate in comparison.candidates}
    return {variant: change for variant, change in found.items() if change is not None}


def _change_intervals(changes: dict[str, QualityChange], axis: Axis, scale: Scale) -> list[Interval]:
    return [
        interval(axis, name, scale.change(found), (found.delta, found.low, found.high), _is_shown(found, scale))
        for name, found in changes.items()
    ]


def _is_shown(change: QualityChange, scale: Scale) -> bool:
    return change.outcome(scale.margin) == "shown"


def _method(change: QualityChange, examples: str) -> str:
    """How the interval of a change is computed, for any number of seeds."""
    if isinstance(change, MetricChange):
        how = f"by the paired bootstrap over the test {examples} (BCa)"
    elif isinstance(change, ScoreChange):
        how = f"over the test {examples}, of the means over seeds, by Johnson's modified t"
    else:
        one = examples.removesuffix("s")
        return (
            f"is paired by test {one}: with one seed by Tango's score interval for paired proportions, with more seeds "
            f"over the means of the {examples}, and from three seeds on by the wider of that and the interval over "
            "seeds."
        )
    return f"is paired: {how}, and from three seeds on by the wider of that and the interval over seeds."


def loss_scales(study: Study) -> dict[str, Any] | None:
    """The loss scale by epoch and the skipped steps; None if no training scaled its loss or failed."""
    found = loss_scaling(study.variants)
    if not found:
        return None
    chart = loss_scale_chart({item.label: item.scales for item in found})
    return {"chart": chart, "lines": [item.text for item in found]}


def breakdown(study: Study) -> dict[str, Any] | None:
    """Stacked bars of the traced step, all on the scale of the longest."""
    rows = tables.step_breakdown(study)
    if rows.empty:
        return None
    totals_ms = rows.groupby("variant", sort=False)["time_ms"].sum()
    longest_ms = totals_ms.max()
    drawn = rows[rows["time_ms"] >= SMALLEST_PART * longest_ms]["part"].unique()
    return {
        "parts": [{"name": part, "label": part.replace("_", " ")} for part in drawn],
        "bars": [
            {
                "variant": variant,
                "total": ms_text(total_ms),
                "segments": [
                    {"part": row.part, "width": round(100 * row.time_ms / longest_ms, 2), "time": ms_text(row.time_ms)}
                    for row in rows[rows["variant"] == variant].itertuples()
                    if row.part in drawn and row.time_ms
                ],
            }
            for variant, total_ms in totals_ms.items()
        ],
    }


def operations(candidate: Candidate) -> dict[str, Any] | None:
    """The operations that gained and lost most time a step; None without a trace."""
    found = {"gained": gained(candidate.op_changes), "lost": lost(candidate.op_changes)}
    rows = [{"title": title, "rows": list(map(_op_row, changes))} for title, changes in found.items() if changes]
    if not rows and candidate.reconciliation is None:
        return None
    return {"variant": candidate.variant, "tables": rows, "reconciliation": reconciliation_text(candidate)}


def reconciliation_text(candidate: Candidate) -> str | None:
    """The timed change of a training step against the sum over the operations of the traces; None without traces."""
    found = candidate.reconciliation
    if found is None:
        return None
    times_ms = (found.measured_ms, found.low_ms, found.high_ms, found.operations_ms, found.unexplained_ms)
    digits = decimals(*times_ms)
    measured, low, high, operations_ms, unexplained = (signed(value_ms, digits) for value_ms in times_ms)
    text = (
        f"Measured {measured} ms a step ({low} to {high}) = operations {operations_ms} ms + unexplained "
        f"{unexplained} ms. By noise alone the operations may add up to {found.floor_ms:,.{digits}f} ms."
    )
    if found.scale < 1:
        text += f" The profiler makes steps longer, so times of the traces count {found.scale:.2f} times here."
    if found.contradicts:
        text += " Operations and timing contradict each other, so no reason rests on the operations."
    return text


def _op_row(change: OpChange) -> dict[str, Any]:
    """A row, all of whose times have the decimal places of the longest."""
    before, after, floor = change.baseline_ms, change.candidate_ms, change.floor_ms
    digits = decimals(*(time_ms for time_ms in (before, after) if time_ms is not None))
    return {
        "layer": change.layer,
        "operation": change.operation,
        "before": "" if before is None else f"{before:,.{digits}f}",
        "after": "" if after is None else f"{after:,.{digits}f}",
        "delta": signed(change.delta_ms, digits),
        "floor": "" if floor is None else f"{floor:,.{digits}f}",
        "dtypes": _dtypes(change),
    }


def _dtypes(change: OpChange) -> str:
    before, after = change.baseline_dtype or "?", change.candidate_dtype or "?"
    if change.baseline_ms is None:
        return f"new, {after}"
    if change.candidate_ms is None:
        return f"{before}, removed"
    return after if before == after else f"{before} → {after}"


def latency(comparison: Comparison) -> list[dict[str, Any]]:
    """Bars of inference latency, a group a batch size, each group on its own scale."""
    unsteady = unsteady_measures(comparison)
    return [
        {
            "batch_size": size,
            "steady": inference_measure(size) not in unsteady,
            "bars": [
                {
                    "variant": row.variant,
                    "text": f"{ms_text(row.p50_ms)}, p95 {number_text(row.p95_ms)}",
                    "width": round(100 * row.p50_ms / rows["p95_ms"].max(), 2),
                    "tail": round(100 * (row.p95_ms - row.p50_ms) / rows["p95_ms"].max(), 2),
                }
                for row in rows.itertuples()
            ],
        }
        for size, rows in tables.latency(comparison).groupby("batch_size", sort=False)
    ]


def memory(comparison: Comparison) -> dict[str, Any] | None:
    """Bars of peak memory, the difference to the baseline, and the largest batch that fits."""
    study = comparison.study
    peaks = tables.metric_values(study.variants, PEAK_MEMORY)
    lines = [line for candidate in comparison.candidates for line in _memory_lines(candidate, comparison)]
    if not peaks and not lines:
        return None
    widest = max(peaks.values(), default=1.0) or 1.0
    bars = [
        {"variant": name, "text": f"{number_text(mib)} MiB", "width": round(100 * mib / widest, 2)}
        for name, mib in peaks.items()
    ]
    on_gpu = study.baseline.profile is not None and study.baseline.profile.on_gpu
    what = "Peak of the GPU's allocator" if on_gpu else "Peak of the process's resident memory"
    return {"bars": bars, "lines": lines, "note": f"{what} during training steps."}


def _memory_lines(candidate: Candidate, comparison: Comparison) -> list[str]:
    lines, name, examples = [], candidate.variant, comparison.study.task.examples_word
    if (peak := comparison.before_after(PEAK_MEMORY, candidate)) is not None:
        saved = peak.baseline - peak.candidate
        if abs(saved) >= NOTABLE_MEMORY * peak.baseline:
            share = f"{percent_text(abs(saved) / peak.baseline)} of that of {comparison.study.baseline.variant}"
            lines.append(f"{name} needs {number_text(abs(saved))} MiB {'less' if saved > 0 else 'more'}, {share}.")
    if (largest := comparison.before_after(LARGEST_BATCH, candidate)) is not None:
        lines.append(
            f"The largest batch that fits is {largest.candidate:,.0f} {examples} with {name}, "
            f"{largest.baseline:,.0f} with {comparison.study.baseline.variant}."
        )
    return lines
