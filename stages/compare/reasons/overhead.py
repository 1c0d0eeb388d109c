"""Reasons beside the arithmetic: waiting, launching, converting."""

from __future__ import annotations

from stages.compare.arms import Profile
from stages.compare.evidence import STEP, Measurements, Reason, time_by_type

INPUT_SHARE = 0.20
LAUNCH_MODERATE_SHARE = 0.03  # the profiler's own thresholds for kernel launch
LAUNCH_HIGH_SHARE = 0.15
OVERHEAD_SHARE = 0.50
CAST_SHARE = 0.05
PIPELINE_STEP, DEVICE_STEP = "step_time_ms/mean_beside_it", "step_time_ms/batch_on_device"


def input_bound(seen: Measurements) -> Reason | None:
    """The step waits for images, which precision does not change.

    A step on one batch that lies on the device shows it best: how much longer is one with the pipeline, in turns with
    it. A trace shows what the step waits for alone, and not what the pipeline takes from a CPU that computes beside it.
    """
    beside_ms, on_device_ms = (seen.candidate.metrics.get(name) for name in (PIPELINE_STEP, DEVICE_STEP))
    if beside_ms and on_device_ms is not None:
        input_ms, step_ms = beside_ms - on_device_ms, beside_ms
        evidence = {PIPELINE_STEP: beside_ms, DEVICE_STEP: on_device_ms}
    elif seen.share_of_step("profiler/input_ms") is not None:
        evidence = seen.part_of_step("profiler/input_ms")
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


def kernel_launch(seen: Measurements) -> Reason | None:
    """Launching kernels takes its time whatever they compute."""
    share = seen.share_of_step("profiler/kernel_launch_ms")
    if share is None or share < LAUNCH_MODERATE_SHARE:
        return None
    launch_ms = seen.candidate.metrics["profiler/kernel_launch_ms"]
    return Reason(
        code="kernel_launch_high" if share >= LAUNCH_HIGH_SHARE else "kernel_launch_moderate",
        text=f"Launching kernels takes {share:.1%} of the step ({launch_ms:.3g} ms), which 16 bit does not shorten.",
        evidence=seen.part_of_step("profiler/kernel_launch_ms"),
        advice=f"Give each kernel more to do: a larger train.batch_size, or xla: true in both entries of variants."
        f"{_thread_mode_advice(seen)}",
        time_ms=launch_ms,
    )


def _thread_mode_advice(seen: Measurements) -> str:
    private = seen.environment.get("settings", {}).get("TF_GPU_THREAD_MODE") == "gpu_private"
    if private or not seen.on_gpu:
        return ""
    return (
        " Set TF_GPU_THREAD_MODE=gpu_private in the environment: kernels are then launched from threads of their own."
    )


def model_too_small(seen: Measurements) -> Reason | None:
    """More than half of the step is neither compute nor input: the network is too small to fill it."""
    step_ms, other_ms = (seen.candidate.metrics.get(name) for name in (STEP, "profiler/other_ms"))
    if not step_ms or other_ms is None:
        return None
    overhead_ms = other_ms + seen.candidate.metrics.get("profiler/kernel_launch_ms", 0.0)
    if overhead_ms <= OVERHEAD_SHARE * step_ms:
        return None
    return Reason(
        code="model_too_small",
        text=f"{overhead_ms / step_ms:.0%} of the step ({overhead_ms:.3g} of {step_ms:.3g} ms) is overhead around the "
        "computation, so a faster computation hardly shows.",
        evidence={"overhead_ms": overhead_ms, STEP: step_ms, "threshold_share": OVERHEAD_SHARE},
        advice="Use a larger train.batch_size, or a larger model (model.name).",
        time_ms=overhead_ms,
    )


def cast_overhead(seen: Measurements) -> Reason | None:
    """Converting between data types takes a share of the time that the baseline does not spend."""
    cast_ms, share = _cast(seen.candidate)
    before_ms = _cast(seen.baseline)[0] if seen.baseline else 0.0
    if share is None or share < CAST_SHARE or cast_ms <= before_ms:
        return None
    return Reason(
        code="cast_overhead",
        text=f"Conversions between data types (Cast) take {cast_ms:.3g} ms a step, {share:.0%} of it"
        f"{f'; in the baseline {before_ms:.3g} ms' if seen.baseline else ''}.",
        evidence={"cast_ms": cast_ms, "share": share} | ({"baseline_cast_ms": before_ms} if seen.baseline else {}),
        advice="Keep neighbouring layers in one dtype: a layer with a dtype of its own costs two conversions.",
        time_ms=cast_ms - before_ms,
    )


def _cast(profile: Profile) -> tuple[float, float | None]:
    """Milliseconds a step in conversions, and their share: of compute where that is measured, else of the step."""
    step_ms, percent = profile.metrics.get(STEP), profile.metrics.get("profiler/cast_percent")
    by_type_ms = time_by_type(profile.operations).get("Cast", 0.0)
    cast_ms = profile.metrics.get("profiler/cast_ms", by_type_ms)
    if percent is not None:
        return cast_ms, percent / 100
    return cast_ms, cast_ms / step_ms if step_ms else None
