"""Latency of inference, and memory."""

from __future__ import annotations

from typing import Any

from stages.compare.comparison import Candidate, Comparison
from stages.compare.contents import LARGEST_BATCH, PEAK_MEMORY, both
from stages.compare.plots import latencies


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


def memory(comparison: Comparison) -> dict[str, Any] | None:
    """Bars of peak memory of the arms that measured it, what is saved, and the largest batch that fits."""
    peaks = {arm.variant: arm.profile.metrics.get(PEAK_MEMORY) for arm in comparison.study.arms if arm.profile}
    known = {variant: mib for variant, mib in peaks.items() if mib}
    lines = [line for candidate in comparison.candidates for line in _memory_lines(candidate, comparison)]
    if not known and not lines:
        return None
    widest = max(known.values(), default=1.0)
    bars = [{"variant": name, "mib": mib, "width": round(100 * mib / widest, 2)} for name, mib in known.items()]
    baseline = comparison.study.baseline.profile
    if known and baseline is not None and baseline.device_type == "CPU":
        lines.append("On a CPU only what oneDNN hands out is counted: no more than a hint.")
    return {"bars": bars, "lines": lines}


def _memory_lines(candidate: Candidate, comparison: Comparison) -> list[str]:
    lines, name = [], candidate.variant
    if (peak := both(PEAK_MEMORY, candidate.arm, comparison)) is not None:
        saved = peak["baseline"] - peak["candidate"]
        share = f", {saved / peak['baseline']:.0%} of it" if saved > 0 else ""
        lines.append(f"{name} {'saves' if saved >= 0 else 'takes another'} {abs(saved):,.1f} MiB{share}.")
    if (largest := both(LARGEST_BATCH, candidate.arm, comparison)) is not None:
        lines.append(
            f"The largest batch that fits is {largest['candidate']:,.0f} images with {name}, "
            f"{largest['baseline']:,.0f} with {comparison.study.baseline.variant}."
        )
    return lines
