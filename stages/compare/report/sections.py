"""The sections of the HTML report: the rows of `tables` with their positions in percent."""

from __future__ import annotations

from itertools import chain
from typing import Any

from stages.compare.comparison import LARGEST_BATCH, PEAK_MEMORY, TRAIN, Candidate, Comparison
from stages.compare.explain.layer_diff import OpChange, gained, lost
from stages.compare.report import tables
from stages.compare.report.charts import Axis, interval, loss_scale_chart
from stages.compare.report.text import (
    margin_text,
    measure_label,
    points_text,
    quality_sentence,
    ratio_text,
    same_weights_sentence,
    seeds_note,
    signed_points,
)
from stages.compare.training_curves import loss_scaling, time_to_accuracy
from stages.results.study import Study
from stages.stats.sample_size import too_few_images

SMALLEST_PART = 0.005  # of the longest step; smaller parts are not drawn


def speed(comparison: Comparison) -> dict[str, Any] | None:
    """Speed-ups by measure on one logarithmic axis, with the noise floor of each measure."""
    rows = tables.speedups(comparison)
    if rows.empty:
        return None
    required = comparison.params.min_speedup
    axis = Axis.around([1.0, required, *(1 + rows["noise_floor"]), *rows["low"], *rows["high"]], logarithmic=True)
    return {
        "groups": [_speed_group(measure, comparison, axis) for measure in comparison.control],
        "ticks": [(axis.at(tick), f"{tick:g}×") for tick in axis.ticks()],
        "one": axis.at(1.0),
        "required": axis.at(required),
        "required_text": f"{required:g}×",
    }


def _speed_group(measure: str, comparison: Comparison, axis: Axis) -> dict[str, Any]:
    floor = comparison.control[measure].noise_floor
    start = axis.at(max(1 - floor, axis.low))
    compared = [(item, item.speedups[measure]) for item in comparison.candidates if measure in item.speedups]
    return {
        "label": measure_label(measure),
        "floor_text": f"{100 * floor:.1f} %",
        "floor_start": start,
        "floor_width": round(axis.at(1 + floor) - start, 2),
        "intervals": [
            interval(
                axis,
                item.variant,
                ratio_text(ratio),
                (ratio.ratio, ratio.low, ratio.high),
                item.verdicts[measure] == "adopt",
            )
            for item, ratio in compared
        ],
    }


def limits(comparison: Comparison) -> list[dict[str, str]]:
    """The speed-up of training and the limit of the baseline's trace."""
    return [
        {"variant": item.variant, "reached": ratio_text(item.speedups[TRAIN]), "limit": f"{item.limit:.2f}×"}
        for item in comparison.candidates
        if item.limit is not None
    ]


def to_accuracy(study: Study) -> dict[str, Any] | None:
    """Seconds until the best validation accuracy that all variants reach."""
    found = time_to_accuracy(study.variants)
    if found is None:
        return None
    longest_s = max(chain.from_iterable(found.seconds.values()))
    return {
        "target": f"{100 * found.target:.2f} %",
        "bars": [
            {
                "variant": variant,
                "width": round(100 * mean_s / longest_s, 2),
                "text": f"{mean_s:,.1f} s" + _range_text(found.seconds[variant]),
            }
            for variant, mean_s in found.means_s.items()
        ],
    }


def _range_text(seconds: tuple[float, ...]) -> str:
    return f" ({min(seconds):,.1f} to {max(seconds):,.1f})" if len(seconds) > 1 else ""


def quality(comparison: Comparison) -> dict[str, Any] | None:
    """Changes of accuracy in percentage points on one axis, with the declared margin."""
    changes = [(item, item.quality) for item in comparison.candidates if item.quality is not None]
    if not changes:
        return None
    margin = comparison.params.quality_margin
    axis = Axis.around([-margin, 0.0, margin / 2, *chain.from_iterable((c.low, c.high) for _, c in changes)])
    change = changes[0][1]
    return {
        "intervals": [
            interval(axis, item.variant, points_text(found), (found.delta, found.low, found.high), found.low >= -margin)
            for item, found in changes
        ],
        "ticks": [(axis.at(tick), signed_points(tick)) for tick in axis.ticks(4)],
        "zero": axis.at(0.0),
        "margin": axis.at(-margin),
        "margin_text": f"−{margin_text(comparison.params)}",
        "seeds": change.seeds,
        "images": change.examples,
        "sentences": [quality_sentence(item.variant, found, comparison.params) for item, found in changes],
        "notes": [seeds_note(change), too_few_images(change.examples, margin, change.seeds)],
        "same_weights": [text for item, _ in changes if (text := same_weights_sentence(item, comparison))],
    }


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
                "total_ms": total_ms,
                "segments": [
                    {"part": row.part, "width": round(100 * row.time_ms / longest_ms, 2), "time_ms": row.time_ms}
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
    return {"variant": candidate.variant, "tables": rows} if rows else None


def _op_row(change: OpChange) -> dict[str, Any]:
    return {
        "layer": change.layer,
        "operation": change.operation,
        "before_ms": change.baseline_ms,
        "after_ms": change.candidate_ms,
        "delta": f"{'+' if change.delta_ms > 0 else '−'}{abs(change.delta_ms):.3f}",
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
    return [
        {
            "batch_size": size,
            "bars": [
                {
                    "variant": row.variant,
                    "p50_ms": row.p50_ms,
                    "p95_ms": row.p95_ms,
                    "width": round(100 * row.p50_ms / rows["p95_ms"].max(), 2),
                    "tail": round(100 * (row.p95_ms - row.p50_ms) / rows["p95_ms"].max(), 2),
                }
                for row in rows.itertuples()
            ],
        }
        for size, rows in tables.latency(study).groupby("batch_size", sort=False)
    ]


def memory(comparison: Comparison) -> dict[str, Any] | None:
    """Bars of peak memory, the difference to the baseline, and the largest batch that fits."""
    study = comparison.study
    peaks = tables.metric_values(study.variants, PEAK_MEMORY)
    lines = [line for candidate in comparison.candidates for line in _memory_lines(candidate, comparison)]
    if not peaks and not lines:
        return None
    widest = max(peaks.values(), default=1.0) or 1.0
    if peaks and study.baseline.profile is not None and not study.baseline.profile.on_gpu:
        lines.append("On a CPU this counts only what oneDNN allocates: an indication, not the whole memory.")
    bars = [{"variant": name, "mib": mib, "width": round(100 * mib / widest, 2)} for name, mib in peaks.items()]
    return {"bars": bars, "lines": lines}


def _memory_lines(candidate: Candidate, comparison: Comparison) -> list[str]:
    lines, name = [], candidate.variant
    if (peak := comparison.before_after(PEAK_MEMORY, candidate)) is not None:
        saved = peak.baseline - peak.candidate
        share = f", {saved / peak.baseline:.0%} of it" if saved > 0 else ""
        lines.append(f"{name} needs {abs(saved):,.1f} MiB {'less' if saved >= 0 else 'more'}{share}.")
    if (largest := comparison.before_after(LARGEST_BATCH, candidate)) is not None:
        lines.append(
            f"The largest batch that fits is {largest.candidate:,.0f} images with {name}, "
            f"{largest.baseline:,.0f} with {comparison.study.baseline.variant}."
        )
    return lines
