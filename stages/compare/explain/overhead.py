"""Reasons other than the arithmetic: input, kernel launches, conversions."""

from __future__ import annotations

from stages.compare.explain.evidence import STEP, Evidence, time_by_type
from stages.results.comparison import Reason
from stages.results.profile import Profile

INPUT_SHARE = 0.20
LAUNCH_MODERATE_SHARE = 0.03  # the profiler's own thresholds for kernel launch
LAUNCH_HIGH_SHARE = 0.15
OVERHEAD_SHARE = 0.50
CAST_SHARE = 0.05
WITH_INPUT, CACHED_BATCH = "step_time_ms/with_input", "step_time_ms/cached_batch"


def input_bound(data: Evidence) -> Reason | None:
    """The step waits for images, which precision does not change.

    The best evidence is how much longer a step with the input pipeline takes than one on a cached batch, in interleaved
    rounds. A trace only shows the waiting, not what the pipeline takes from a CPU that also computes.
    """
    with_input_ms, cached_ms = (data.candidate.metrics.get(name) for name in (WITH_INPUT, CACHED_BATCH))
    if with_input_ms and cached_ms is not None:
        input_ms, step_ms = with_input_ms - cached_ms, with_input_ms
        evidence = {WITH_INPUT: with_input_ms, CACHED_BATCH: cached_ms}
    elif data.share_of_step("profiler/input_ms") is not None:
        evidence = data.part_of_step("profiler/input_ms")
        input_ms, step_ms = evidence["profiler/input_ms"], evidence[STEP]
    else:
        return None
    if input_ms < INPUT_SHARE * step_ms:
        return None
    return Reason(
        code="input_bound",
        text=f"{input_ms / step_ms:.0%} of the step ({input_ms:.3g} ms) is spent on the input, which no precision "
        "makes faster.",
        evidence=evidence,
        advice="Make the input faster first: more train.input_threads, smaller images (data.image_size), or no "
        "train.augment.",
        time_ms=input_ms,
    )


def kernel_launch(data: Evidence) -> Reason | None:
    """Launching kernels takes the same time in every precision."""
    share = data.share_of_step("profiler/kernel_launch_ms")
    if share is None or share < LAUNCH_MODERATE_SHARE:
        return None
    launch_ms = data.candidate.metrics["profiler/kernel_launch_ms"]
    return Reason(
        code="kernel_launch_high" if share >= LAUNCH_HIGH_SHARE else "kernel_launch_moderate",
        text=f"Launching kernels takes {share:.1%} of the step ({launch_ms:.3g} ms), which 16 bit does not shorten.",
        evidence=data.part_of_step("profiler/kernel_launch_ms"),
        advice="Give each kernel more work: a larger train.batch_size, or xla: true in both entries of variants."
        f"{_thread_mode_advice(data)}",
        time_ms=launch_ms,
    )


def _thread_mode_advice(data: Evidence) -> str:
    if not data.on_gpu or data.environment["settings"].get("TF_GPU_THREAD_MODE") == "gpu_private":
        return ""
    return " Set TF_GPU_THREAD_MODE=gpu_private in the environment: kernels are then launched from dedicated threads."


def model_too_small(data: Evidence) -> Reason | None:
    """More than half of the step is neither compute nor input: the network is too small for the device."""
    step_ms, other_ms = (data.candidate.metrics.get(name) for name in (STEP, "profiler/other_ms"))
    if not step_ms or other_ms is None:
        return None
    overhead_ms = other_ms + data.candidate.metrics.get("profiler/kernel_launch_ms", 0.0)
    if overhead_ms <= OVERHEAD_SHARE * step_ms:
        return None
    return Reason(
        code="model_too_small",
        text=f"{overhead_ms / step_ms:.0%} of the step ({overhead_ms:.3g} of {step_ms:.3g} ms) is overhead around the "
        "computation, so a faster computation has little effect.",
        evidence={"overhead_ms": overhead_ms, STEP: step_ms, "threshold_share": OVERHEAD_SHARE},
        advice="Use a larger train.batch_size, or a larger model (model.name).",
        time_ms=overhead_ms,
    )


def cast_overhead(data: Evidence) -> Reason | None:
    """Conversions between data types take a share of the time, and more than in the baseline."""
    cast_ms, share = _cast(data.candidate)
    before_ms = _cast(data.baseline)[0] if data.baseline else 0.0
    if share is None or share < CAST_SHARE or cast_ms <= before_ms:
        return None
    return Reason(
        code="cast_overhead",
        text=f"Conversions between data types (Cast) take {cast_ms:.3g} ms a step, {share:.0%} of it"
        f"{f'; in the baseline {before_ms:.3g} ms' if data.baseline else ''}.",
        evidence={"cast_ms": cast_ms, "share": share} | ({"baseline_cast_ms": before_ms} if data.baseline else {}),
        advice="Keep neighbouring layers in one dtype: a layer with another dtype costs two conversions.",
        time_ms=cast_ms - before_ms,
    )


def _cast(profile: Profile) -> tuple[float, float | None]:
    """Milliseconds a step in conversions, and their share: of compute if that is known, else of the step."""
    step_ms, percent = profile.metrics.get(STEP), profile.metrics.get("profiler/cast_percent")
    by_type_ms = time_by_type(profile.operations).get("Cast", 0.0)
    cast_ms = profile.metrics.get("profiler/cast_ms", by_type_ms)
    if percent is not None:
        return cast_ms, percent / 100
    return cast_ms, cast_ms / step_ms if step_ms else None
