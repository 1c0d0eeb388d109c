"""Reasons in what there was to gain: memory, and the limit of the baseline's own trace."""

from __future__ import annotations

from stages.compare.evidence import Measurements, Reason, part_of_compute_ms

MEMORY_BOUND_PERCENT = 50.0
NEAR_LIMIT = 0.90


def memory_bound(seen: Measurements) -> Reason | None:
    """Most of the compute time before any change is reading and writing memory: half the bytes take half the time."""
    percent = seen.before.metrics.get("profiler/memory_bound_percent")
    if percent is None or percent < MEMORY_BOUND_PERCENT or not seen.is_about_16bit:
        return None
    return Reason(
        code="memory_bound",
        text=f"{percent:.0f} % of the compute time{' of the baseline' if seen.baseline else ''} is reading and writing "
        "memory (activations, normalization, updates), which 16 bit makes 2 times faster at best.",
        evidence={"profiler/memory_bound_percent": percent, "threshold_percent": MEMORY_BOUND_PERCENT},
        advice="XLA (xla: true in both entries of variants) joins such operations, so that memory is read less often.",
        time_ms=part_of_compute_ms(seen.before, "profiler/memory_bound_percent"),
    )


def at_limit(seen: Measurements) -> Reason | None:
    """No more can be had: the limit is reached, or it lies below what was asked for."""
    limit, speedup = seen.limit, seen.speedup
    if limit is None or speedup is None or (speedup.high < NEAR_LIMIT * limit and limit >= seen.min_speedup):
        return None
    reached = f"{speedup.ratio:.2f}× ({speedup.low:.2f} to {speedup.high:.2f})"
    if limit < seen.min_speedup:
        text = f"16 bit can make this step {limit:.2f}× as fast at most, and {seen.min_speedup:g}× was asked for."
        advice = "Lower compare.min_speedup if this is worth having; otherwise make the rest of the step faster first."
    else:
        text = f"The speed-up of {reached} comes up to the most that the baseline's trace allows, {limit:.2f}×."
        advice = "Precision has no more to give here: what is left is the rest of the step."
    return Reason(
        code="at_limit",
        text=text,
        evidence={
            "limit": limit,
            "speedup": speedup.ratio,
            "low": speedup.low,
            "high": speedup.high,
            "min_speedup": seen.min_speedup,
        },
        advice=advice,
        time_ms=_left_ms(seen, limit),
    )


def _left_ms(seen: Measurements, limit: float) -> float | None:
    """What is left of the baseline's step at the limit."""
    step_ms = seen.before.metrics.get("profiler/step_time_ms")
    return None if step_ms is None else step_ms / limit
