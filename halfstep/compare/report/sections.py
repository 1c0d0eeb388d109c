"""The sections of the HTML report: the rows of `tables` with their positions in percent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from halfstep.compare.metrics import PEAK_MEMORY, metric_values
from halfstep.compare.report import tables
from halfstep.compare.report.charts import Axis, Interval, interval, loss_scale_chart
from halfstep.compare.scale import Scale
from halfstep.compare.study import Study
from halfstep.compare.training_curves import loss_scaling, time_to_score
from halfstep.results.comparison import BeforeAfter, Candidate, Comparison, OpChange, Quality
from halfstep.text import decimals, inference_measure, ms_text, number_text, percent_text, signed

NOTABLE_MEMORY = 0.05  # of the baseline's peak; less is not listed as a difference
SMALLEST_PART = 0.005  # of the longest step; smaller parts are not drawn


def to_score(study: Study, *, is_fraction: bool) -> dict[str, Any] | None:
    """Seconds until the best validation score that all variants reach."""
    found = time_to_score(study.variants, study.score_name)
    if found is None:
        return None
    longest_s = max(chain.from_iterable(found.seconds.values()))
    return {
        "target": f"{100 * found.target:.2f} %" if is_fraction else number_text(found.target),
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


def quality(comparison: Comparison, examples: str) -> dict[str, Any] | None:
    """Changes of the score on one axis, with the declared margin; `examples` is the word for them."""
    items = comparison.candidates.items()
    changes = {name: item.quality for name, item in items if item.quality is not None}
    same = {name: item.quality_same_weights for name, item in items if item.quality_same_weights is not None}
    if not changes:
        return None
    change = next(iter(changes.values()))
    scale = Scale.of(change)
    ends = chain.from_iterable((found.low, found.high) for found in (*changes.values(), *same.values()))
    axis = Axis.around([-scale.margin, 0.0, scale.margin / 2, *ends])
    return {
        "intervals": _change_intervals(changes, axis),
        "ticks": [(axis.at(tick), scale.signed(tick)) for tick in axis.ticks(4)],
        "zero": axis.at(0.0),
        "margin": axis.at(-scale.margin),
        "margin_text": f"−{scale.margin_text}",
        "seeds": change.seeds,
        "examples": f"{change.n:,} test {examples}",
        "unit": "in percentage points, " if scale.is_fraction else "",
        "method": _method(change, examples),
        "sentences": [found.sentence for found in changes.values()],
        "notes": [_seeds_note(change.seeds, examples), change.too_few],
        "same_weights": {
            "intervals": _change_intervals(same, axis),
            "sentences": [found.sentence for found in same.values()],
        }
        if same
        else None,
    }


def _change_intervals(changes: dict[str, Quality], axis: Axis) -> list[Interval]:
    return [
        interval(axis, name, Scale.of(found).change(found), found, found.outcome == "shown")
        for name, found in changes.items()
    ]


def _method(change: Quality, examples: str) -> str:
    """How the interval of a change is computed, for any number of seeds."""
    if change.kind == "metric":
        how = f"by the paired bootstrap over the test {examples} (BCa)"
    elif change.kind == "score":
        how = f"over the test {examples}, of the means over seeds, by Johnson's modified t"
    else:
        one = examples.removesuffix("s")
        return (
            f"is paired by test {one}: with one seed by Tango's score interval for paired proportions, with more seeds "
            f"over the means of the {examples}, and from three seeds on with the variance between seeds added."
        )
    return f"is paired: {how}, and from three seeds on with the variance between seeds added."


def _seeds_note(seeds: int, examples: str) -> str:
    """What an answer on quality applies to."""
    if seeds == 1:
        return "One seed: the answer applies to these two trainings. Other seeds may give another."
    if seeds == 2:
        return f"Two seeds: the answer applies to these trainings on other test {examples}, not to other seeds."
    return f"{seeds} seeds: the answer applies to other test {examples} and to other seeds; their variances add up."


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


def operations(variant: str, candidate: Candidate) -> dict[str, Any] | None:
    """The operations that gained and lost most time a step; None without any."""
    found = candidate.operations or {}
    rows = [{"title": title, "rows": list(map(_op_row, changes))} for title, changes in found.items()]
    return {"variant": variant, "tables": rows} if rows else None


def _op_row(change: OpChange) -> dict[str, Any]:
    """A row, all of whose times have the decimal places of the longest."""
    before, after = change.baseline_ms, change.candidate_ms
    digits = decimals(*(time_ms for time_ms in (before, after) if time_ms is not None))
    return {
        "layer": change.layer,
        "operation": change.operation,
        "before": "" if before is None else f"{before:,.{digits}f}",
        "after": "" if after is None else f"{after:,.{digits}f}",
        "delta": signed(change.delta_ms, digits),
        "interval": f"{signed(change.low_ms, digits)} to {signed(change.high_ms, digits)}",
        "dtypes": _dtypes(change),
    }


def _dtypes(change: OpChange) -> str:
    before, after = change.baseline_dtype or "?", change.candidate_dtype or "?"
    if change.baseline_ms is None:
        return f"new, {after}"
    if change.candidate_ms is None:
        return f"{before}, removed"
    return after if before == after else f"{before} → {after}"


def latency(study: Study) -> list[dict[str, Any]]:
    """Bars of inference latency, a group a batch size, each group on its own scale."""
    unsteady = study.baseline.profile.summary.protocol.unsteady if study.baseline.profile else ()
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
        for size, rows in tables.latency(study).groupby("batch_size", sort=False)
    ]


def memory(comparison: Comparison, study: Study | None) -> dict[str, Any] | None:
    """Bars of peak memory, the difference to the baseline, and the largest batch that fits."""
    peaks = metric_values(study.variants, PEAK_MEMORY) if study else {}
    lines = [line for name, item in comparison.candidates.items() for line in _memory_lines(name, item, comparison)]
    if not peaks and not lines:
        return None
    widest = max(peaks.values(), default=1.0) or 1.0
    bars = [
        {"variant": name, "text": f"{number_text(mib)} MiB", "width": round(100 * mib / widest, 2)}
        for name, mib in peaks.items()
    ]
    on_gpu = study is not None and study.baseline.profile is not None and study.baseline.profile.on_gpu
    what = "Peak of the GPU's allocator" if on_gpu else "Peak of the process's resident memory"
    return {"bars": bars, "lines": lines, "note": f"{what} during training steps."}


def _memory_lines(name: str, candidate: Candidate, comparison: Comparison) -> Iterator[str]:
    if candidate.peak_memory_mib is not None:
        yield from _saved(name, candidate.peak_memory_mib, comparison.baseline)
    if (largest := candidate.max_batch_size) is not None:
        examples = comparison.setup.task.examples_word if comparison.setup else "examples"
        per_s = candidate.max_batch_examples_per_s
        ends = (per_s.candidate, per_s.baseline) if per_s else ()
        speeds = [f" ({number_text(speed)} a second)" for speed in ends] or ["", ""]
        yield (
            f"The largest batch that fits, by doubling, is {largest.candidate:,.0f} {examples} with {name}{speeds[0]}, "
            f"{largest.baseline:,.0f} with {comparison.baseline}{speeds[1]}."
        )


def _saved(name: str, peak: BeforeAfter, baseline: str) -> Iterator[str]:
    saved = peak.baseline - peak.candidate
    if abs(saved) >= NOTABLE_MEMORY * peak.baseline:
        share = f"{percent_text(abs(saved) / peak.baseline)} of that of {baseline}"
        yield f"{name} needs {number_text(abs(saved))} MiB {'less' if saved > 0 else 'more'}, {share}."
