"""Reasons about what there is to gain: memory-bound work, and the limit of the baseline's trace."""

from __future__ import annotations

from halfstep.compare.explain.evidence import STEP, Evidence, interval_evidence, part_of_compute_ms
from halfstep.compare.explain.hardware import MEMORY_TRAFFIC_RATIO
from halfstep.compare.text import ratio_text
from halfstep.results.comparison import Reason

MEMORY_BOUND_PERCENT = 50.0
NEAR_LIMIT = 0.90
_ASSUMED = f" (assuming that memory-bound work becomes at most {MEMORY_TRAFFIC_RATIO:g} times as fast)"


def memory_bound(data: Evidence) -> Reason | None:
    """Most of the baseline's compute time reads and writes memory: half the bytes take half the time."""
    percent = data.before.metrics.get("profiler/memory_bound_percent")
    if percent is None or percent < MEMORY_BOUND_PERCENT or not data.is_about_16bit or data.is_account_void:
        return None
    change = data.kind("memory")
    return Reason(
        code="memory_bound",
        text=f"{percent:.0f} % of the compute time{' of the baseline' if data.baseline else ''} reads and writes "
        "memory (activations, normalization, updates). 16 bit halves the bytes, which is assumed to make that "
        f"{MEMORY_TRAFFIC_RATIO:g} times faster at most.",
        evidence={"profiler/memory_bound_percent": percent, "threshold_percent": MEMORY_BOUND_PERCENT}
        | {"assumed_memory_ratio": MEMORY_TRAFFIC_RATIO}
        | ({"kind_memory": interval_evidence(change)} if change else {}),
        advice="Fewer or smaller such layers. XLA already fuses these operations."
        if data.before.summary.in_force.xla
        else "XLA (xla: true in both entries of variants) fuses such operations, so that memory is read less often.",
        time_ms=part_of_compute_ms(data.before, "profiler/memory_bound_percent"),
        change=None if data.candidate.summary.in_force.xla else data.changed("xla", True),
    )


def at_limit(data: Evidence) -> Reason | None:
    """The lower end of the speed-up has reached the limit, or the limit is below what is required."""
    limit, speedup = data.limit, data.speedup
    if limit is None or speedup is None or (speedup.low < NEAR_LIMIT * limit and limit >= data.min_speedup):
        return None
    if limit < data.min_speedup:
        text = f"At best, 16 bit makes this step {limit:.2f}× as fast{_ASSUMED}, and you asked for "
        text += f"{data.min_speedup:g}×."
        advice = "Lower compare.min_speedup if this is worth having; otherwise make the rest of the step faster first."
    else:
        reached = ratio_text(speedup)
        text = f"The speed-up of {reached} is near the limit of this step, {limit:.2f}×{_ASSUMED}."
        advice = "A lower precision cannot bring much more here: no precision makes the rest of the step faster."
    step_ms = data.before.metrics.get(STEP)
    return Reason(
        code="at_limit",
        text=text,
        evidence={
            "limit": limit,
            "speedup": speedup.ratio,
            "low": speedup.low,
            "high": speedup.high,
            "min_speedup": data.min_speedup,
            "assumed_memory_ratio": MEMORY_TRAFFIC_RATIO,
        },
        advice=advice,
        time_ms=None if step_ms is None else step_ms / limit,
    )
