"""Reasons about the timing of a measure: throttling, a control that differs, stalls, fixed overhead."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from halfstep.compare.explain.evidence import Evidence
from halfstep.compare.verdict import CONTROL_ERROR
from halfstep.results.comparison import Reason
from halfstep.results.profile import GpuConditions, Profile
from halfstep.stats.speedup import t_interval
from halfstep.text import MEASURE_AGAIN, measure_text, ms_text, number_text, percent_text, signed_text

STALLS = 0.02  # disagreement of the ratio and the typical ratio
FIXED_SHARE = 0.5  # of a call
MIN_PROCESSES = 3


def stalls(data: Evidence, measure: str) -> Reason | None:
    """Some rounds of one arm take much longer than its typical ones, so that the speed-ups of both differ."""
    speedup = data.timed(measure)
    if speedup is None or abs(speedup.run_ratio / speedup.typical_ratio - 1) < STALLS:
        return None
    low, high = speedup.stall_interval
    if low <= 1 <= high:
        return None
    arm, shorter = ("variant", "lower") if high < 1 else ("baseline", "higher")
    return Reason(
        code="stalls",
        measure=measure,
        text=f"In {measure_text(measure)}, some rounds of the {arm} take much longer than its others: the speed-up is "
        f"{speedup.run_ratio:.2f}×, {shorter} than that of typical rounds, {speedup.typical_ratio:.2f}×.",
        evidence={"arm": arm, "ratio": speedup.run_ratio, "typical_ratio": speedup.typical_ratio}
        | {"ratio_over_typical": speedup.run_ratio / speedup.typical_ratio, "low": low, "high": high},
        advice="Look for what stops it at times: other programs, memory that is swapped out, compilation for new "
        "shapes, a processor that becomes too hot.",
        time_ms=speedup.candidate_time_ms * abs(1 - speedup.run_ratio / speedup.typical_ratio),
    )


def control_differs(data: Evidence, measure: str) -> Reason | None:
    """The A/A control differs from 1, so the timing of this measure shows something else than the variants."""
    control = data.control.get(measure)
    if measure not in data.void or control is None:
        return None
    confidence = 1 - CONTROL_ERROR / len(data.control)
    low, high = control.interval(confidence)
    if measure in data.throttled and low <= 1 <= high:
        return None
    return Reason(
        code="control_differs",
        measure=measure,
        text=f"In {measure_text(measure)}, the two copies of the baseline, which are equal, differ by "
        f"{_change(control.ratio)} ({_change(low)} to {_change(high)}, at {percent_text(confidence, 1)}). So this "
        "timing decides nothing.",
        evidence={"ratio": control.ratio, "low": low, "high": high, "confidence": confidence},
        advice=f"Stop other programs and measure again: `{MEASURE_AGAIN}`.",
        time_ms=abs(control.baseline_time_ms - control.candidate_time_ms),
    )


def _change(ratio: float) -> str:
    """How far a ratio is from 1, such as `+0.4 %`."""
    return f"{signed_text(100 * (ratio - 1))} %"


def throttled(data: Evidence, measure: str) -> Reason | None:
    """The GPU was slowed down by heat or its power supply in so many rounds that the measure decides nothing."""
    share = data.throttled.get(measure)
    if share is None:
        return None
    gpus = [gpu for gpu in data.candidate.summary.protocol.gpus if gpu.throttled]
    seen = [f"{gpu.name}: {gpu.throttling_text}{_ranges_text(gpu)}" for gpu in gpus]
    return Reason(
        code="throttled",
        measure=measure,
        text=f"In {measure_text(measure)}, the GPU was throttled in {percent_text(share)} of the rounds "
        f"({'; '.join(seen)}). So this timing decides nothing.",
        evidence={"share": share, "gpus": [gpu.model_dump(mode="json", exclude_none=True) for gpu in gpus]},
        advice="Look at the cooling and the power supply of the GPU; nvidia-smi -q -d PERFORMANCE shows the cause. "
        f"Then measure again: `{MEASURE_AGAIN}`.",
    )


def _ranges_text(gpu: GpuConditions) -> str:
    """The range of its clock and its temperature, as far as they are known."""
    text = ""
    if gpu.sm_clock_mhz is not None:
        limit = f" of {gpu.max_sm_clock_mhz}" if gpu.max_sm_clock_mhz is not None else ""
        text += f", SM clock {gpu.sm_clock_mhz[0]} to {gpu.sm_clock_mhz[1]}{limit} MHz"
    if gpu.temperature_c is not None:
        text += f", {gpu.temperature_c[0]} to {gpu.temperature_c[1]} °C"
    return text


def fixed_overhead(data: Evidence, measure: str) -> Reason | None:
    """Most of a call takes the same time at every batch size, and the precision neither gains nor loses notably.

    The time of a call is taken as fixed + batch size × time of an image, through the mean calls at this and at the
    largest batch size of each process.
    """
    factors, size = data.factored(measure), _batch_size(measure)
    speedup = factors.precision if factors else data.timed(measure)
    if speedup is None or not 1 <= speedup.high < data.min_speedup or size is None:
        return None
    largest = max(filter(None, map(_batch_size, data.speedups)))
    if size == largest:
        return None
    estimate = _fixed_ms(data.candidate, size, largest)
    if estimate is None:
        return None
    fixed_ms, call_ms, low, high = estimate
    if low < FIXED_SHARE:
        return None
    return Reason(
        code="fixed_overhead",
        measure=measure,
        text=f"In {measure_text(measure)}, {percent_text(fixed_ms / call_ms)} of a call ({100 * low:.0f} to "
        f"{percent_text(high)}), {number_text(fixed_ms)} of {ms_text(call_ms)}, is fixed overhead: it "
        "does not grow with the batch size, and no precision shortens it.",
        evidence={"fixed_ms": fixed_ms, "call_ms": call_ms, "share": fixed_ms / call_ms, "low": low, "high": high}
        | {"batch_sizes": [size, largest]},
        advice="Predict several images at a time, or keep the baseline for single images.",
        time_ms=fixed_ms,
    )


def _batch_size(measure: str) -> int | None:
    match = re.fullmatch(r"inference_b(\d+)", measure)
    return int(match[1]) if match else None


def _fixed_ms(profile: Profile, size: int, largest: int) -> tuple[float, float, float, float] | None:
    """Fixed and whole time of a call in milliseconds, and the interval of the fixed share over the processes."""
    calls = profile.calls
    if calls.empty:
        return None
    by_process: pd.DataFrame = calls[calls["counted"].astype(bool)].pivot_table("latency_ms", "process", "batch_size")
    by_process = by_process[[size, largest]].dropna()
    if len(by_process) < MIN_PROCESSES:
        return None
    small_ms, large_ms = by_process[size].to_numpy(), by_process[largest].to_numpy()
    fixed_ms = np.minimum(small_ms, (largest * small_ms - size * large_ms) / (largest - size))
    call_ms = float(small_ms.mean())
    low, high = t_interval(fixed_ms / call_ms)
    return float(fixed_ms.mean()), call_ms, low, min(1.0, high)
