"""The charts and tables of the report as plain values: words, numbers, and positions in percent."""

from __future__ import annotations

from itertools import chain
from typing import Any

from stages.compare.arms import Arm
from stages.compare.charts import Axis, Interval, interval
from stages.compare.comparison import Candidate, Comparison
from stages.compare.evidence import time_by_type
from stages.compare.plots import STEP_PARTS, latencies, step_parts
from stages.compare.wording import measure_label, points_text, ratio_text, signed_points

TOP_OPERATIONS = 10


def speed(comparison: Comparison) -> dict[str, Any] | None:
    """Speed-ups by measure on one logarithmic axis, each group with the noise floor behind it."""
    ratios = [ratio for item in comparison.candidates for ratio in item.speedups.values()]
    if not ratios:
        return None
    floors = [1 + noise.noise_floor for noise in comparison.noise.values()]
    asked = comparison.params.min_speedup
    axis = Axis.around([1.0, asked, *floors, *chain.from_iterable((r.low, r.high) for r in ratios)], logarithmic=True)
    return {
        "groups": [_speed_group(measure, comparison, axis) for measure in comparison.noise],
        "ticks": [(axis.at(tick), f"{tick:g}×") for tick in axis.ticks()],
        "one": axis.at(1.0),
        "asked": axis.at(asked),
        "asked_text": f"{asked:g}×",
    }


def _speed_group(measure: str, comparison: Comparison, axis: Axis) -> dict[str, Any]:
    floor = comparison.noise[measure].noise_floor
    start = axis.at(max(1 - floor, axis.low))
    compared = [item for item in comparison.candidates if measure in item.speedups]
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
            for item in compared
            for ratio in [item.speedups[measure]]
        ],
    }


def accuracy(comparison: Comparison) -> dict[str, Any] | None:
    """Changes of accuracy in percentage points on one axis, with the margin that was declared."""
    changes = [(item, item.accuracy) for item in comparison.candidates if item.accuracy is not None]
    if not changes:
        return None
    margin = comparison.params.accuracy_margin
    axis = Axis.around([-margin, 0.0, margin / 2, *chain.from_iterable((c.low, c.high) for _, c in changes)])
    intervals: list[Interval] = [
        interval(
            axis, item.variant, points_text(change), (change.delta, change.low, change.high), change.low >= -margin
        )
        for item, change in changes
    ]
    change = changes[0][1]
    return {
        "intervals": intervals,
        "ticks": [(axis.at(tick), signed_points(tick)) for tick in axis.ticks(4)],
        "zero": axis.at(0.0),
        "margin": axis.at(-margin),
        "margin_text": f"−{100 * margin:g} points",
        "seeds": change.seeds,
        "images": change.images,
    }


def breakdown(arms: tuple[Arm, ...]) -> dict[str, Any] | None:
    """Stacked bars of the traced step, all on the scale of the longest."""
    parts = {arm.variant: shares for arm in arms if (shares := step_parts(arm.profile))}
    if not parts:
        return None
    longest_ms = max(sum(shares.values()) for shares in parts.values())
    shown = [
        part for part in STEP_PARTS if any(shares.get(part, 0.0) >= 0.005 * longest_ms for shares in parts.values())
    ]
    return {
        "parts": [{"name": part, "label": part.replace("_", " ")} for part in shown],
        "bars": [
            {
                "variant": variant,
                "total_ms": sum(shares.values()),
                "segments": [
                    {"part": part, "width": round(100 * shares[part] / longest_ms, 2), "time_ms": shares[part]}
                    for part in shown
                    if shares.get(part)
                ],
            }
            for variant, shares in parts.items()
        ],
    }


def latency(comparison: Comparison) -> list[dict[str, Any]]:
    """Bars of inference latency, a group a batch size, each on a scale of its own."""
    sizes = comparison.study.inference_batch_sizes
    rows = [row for arm in comparison.study.arms for row in latencies(arm, sizes)]
    return [_latency_group(size, [row for row in rows if row["batch_size"] == size]) for size in sizes if rows]


def _latency_group(size: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    longest_ms = max(row["p95_ms"] for row in rows)
    return {
        "batch_size": size,
        "bars": [
            {
                "variant": row["variant"],
                "p50_ms": row["p50_ms"],
                "p95_ms": row["p95_ms"],
                "width": round(100 * row["p50_ms"] / longest_ms, 2),
                "tail": round(100 * (row["p95_ms"] - row["p50_ms"]) / longest_ms, 2),
            }
            for row in rows
        ],
    }


def memory(arms: tuple[Arm, ...]) -> list[dict[str, Any]]:
    """Bars of peak memory, of the arms that measured it."""
    peaks = {arm.variant: arm.profile.metrics.get("memory/peak_mib") for arm in arms if arm.profile}
    known = {variant: mib for variant, mib in peaks.items() if mib}
    return [
        {"variant": name, "mib": mib, "width": round(100 * mib / max(known.values()), 2)} for name, mib in known.items()
    ]


def operations(candidate: Candidate, comparison: Comparison) -> dict[str, Any] | None:
    """The types of operation that take the most time before or after."""
    before_profile, after_profile = comparison.study.baseline.profile, candidate.arm.profile
    if before_profile is None or after_profile is None or not (before_profile.operations or after_profile.operations):
        return None
    before, after = time_by_type(before_profile.operations), time_by_type(after_profile.operations)
    dtypes = {kind: {op.dtype for op in after_profile.operations if op.kind == kind and op.dtype} for kind in after}
    longest = sorted(before.keys() | after.keys(), key=lambda kind: -max(before.get(kind, 0.0), after.get(kind, 0.0)))
    return {
        "variant": candidate.variant,
        "rows": [
            {
                "type": kind,
                "before_ms": before.get(kind),
                "after_ms": after.get(kind),
                "dtype": ", ".join(sorted(dtypes.get(kind, set()))),
            }
            for kind in longest[:TOP_OPERATIONS]
        ],
    }
