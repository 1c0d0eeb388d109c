"""Reasons other than the arithmetic: input, kernel launches, conversions."""

from __future__ import annotations

import math
from typing import Any

from halfstep.compare.explain.evidence import (
    STEP,
    Evidence,
    change_text,
    changes_of,
    interval_evidence,
)
from halfstep.compare.explain.layer_sets import casting_sets
from halfstep.compare.explain.limit import compute_operations
from halfstep.compare.explain.waiting import waiting
from halfstep.results.comparison import Reason, Remedy, Waiting
from halfstep.results.profile import Profile
from halfstep.text import joined, ms_text, number_text, percent_text

INPUT_SHARE = 0.20
LAUNCH_MODERATE_SHARE = 0.03  # the profiler's own thresholds for kernel launch
LAUNCH_HIGH_SHARE = 0.15
OVERHEAD_SHARE = 0.50
MORE_EXAMPLES = 4  # times the batch, where steps are too small
CAST_SHARE = 0.05
_CAST_ADVICE = "Keep neighbouring layers in one dtype: a layer with another dtype costs two conversions."


def input_bound(data: Evidence) -> Reason | None:
    """The step waits for input, which precision does not change.

    A trace only shows the waiting, not what the pipeline takes from a CPU that also computes; it counts for a trace by
    itself, which has no timing.
    """
    if not data.candidate.input_rounds.empty:
        return _input_bound_by_rounds(data, waiting(data.candidate.input_rounds))
    share = data.share_of_step("profiler/input_ms")
    if share is None or share < INPUT_SHARE or data.baseline is not None or not data.candidate.rounds.empty:
        return None
    input_ms, step_ms = (data.candidate.metrics[name] for name in ("profiler/input_ms", STEP))
    text = f"{number_text(input_ms)} of {ms_text(step_ms)} of the traced step wait for input"
    return _input_bound(data, text, input_ms, data.part_of_step("profiler/input_ms"))


def _input_bound_by_rounds(data: Evidence, wait: Waiting | None) -> Reason | None:
    if wait is None or wait.share < INPUT_SHARE or wait.bound is None:
        return None
    return _input_bound(
        data,
        f"{wait.text} ({percent_text(wait.share)}, {100 * wait.low:.0f} to {percent_text(wait.high)})",
        wait.wait_ms,
        {"step_with_input_ms": wait.step_ms, "step_on_cached_batch_ms": wait.cached_ms}
        | {"share": wait.share, "low": wait.low, "high": wait.high, "rounds": wait.rounds},
    )


def _input_bound(data: Evidence, text: str, input_ms: float, evidence: dict[str, Any]) -> Reason:
    changes = _faster_input(data, evidence.get("step_with_input_ms"), evidence.get("step_on_cached_batch_ms"))
    return Reason(
        code="input_bound",
        text=f"{text}, which no precision makes shorter.",
        evidence=evidence,
        advice="Make the input faster first: more train.input_threads, smaller images (data.image_size), or no "
        "train.augment.",
        time_ms=input_ms,
        **changes_of(changes),
    )


def _faster_input(data: Evidence, step_ms: float | None, cached_ms: float | None) -> list[Remedy]:
    """More threads where they are the project's, the batches kept in memory, and copies to a GPU in advance."""
    at_most, in_force = step_ms / cached_ms if step_ms and cached_ms else None, data.candidate.summary.in_force
    changes = []
    if data.sets_input_threads and in_force.input_threads is not None:
        changes.append(data.changed("input_threads", 2 * in_force.input_threads, at_most))
    if not in_force.cache_input:
        changes.append(data.changed("cache_input", True, at_most))
    if data.on_gpu and not in_force.prefetch_to_device:
        changes.append(data.changed("prefetch_to_device", True, at_most))
    return changes


def larger_steps(data: Evidence, overhead_share: float) -> list[Remedy]:
    """Fewer and larger steps or kernels, where a share of the step is overhead.

    A larger batch and XLA change what the operations cost, too, so that the share does not bound them.
    """
    at_most, in_force = 1 / (1 - overhead_share), data.candidate.summary.in_force
    changes = [data.changed("batch_size", MORE_EXAMPLES * in_force.batch_size)]
    if not in_force.xla:
        changes.append(data.changed("xla", True))
    if data.on_gpu and in_force.gpu_thread_mode != "gpu_private":
        changes.append(data.changed("gpu_thread_mode", "gpu_private", at_most))
    return changes


def kernel_launch(data: Evidence) -> Reason | None:
    """Launching kernels takes the same time in every precision."""
    share = data.share_of_step("profiler/kernel_launch_ms")
    if share is None or share < LAUNCH_MODERATE_SHARE:
        return None
    launch_ms = data.candidate.metrics["profiler/kernel_launch_ms"]
    xla = "" if data.candidate.summary.in_force.xla else ", or xla: true in both entries of variants"
    return Reason(
        code="kernel_launch_high" if share >= LAUNCH_HIGH_SHARE else "kernel_launch_moderate",
        text=f"Launching kernels takes {percent_text(share, 1)} of the step ({ms_text(launch_ms)}), which 16 bit does "
        "not shorten.",
        evidence=data.part_of_step("profiler/kernel_launch_ms"),
        advice=f"Give each kernel more work: a larger train.batch_size{xla}.{_thread_mode_advice(data)}",
        time_ms=launch_ms,
        **changes_of(larger_steps(data, share)),
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
        text=f"{percent_text(overhead_ms / step_ms)} of the step ({number_text(overhead_ms)} of {ms_text(step_ms)}) is "
        "overhead around the computation, so a faster computation has little effect.",
        evidence={"overhead_ms": overhead_ms, STEP: step_ms, "threshold_share": OVERHEAD_SHARE},
        advice="Use a larger train.batch_size, or a larger model (model.name).",
        time_ms=overhead_ms,
        **changes_of(larger_steps(data, overhead_ms / step_ms)),
    )


def cast_overhead(data: Evidence) -> Reason | None:
    """Conversions between data types take a share of the time, and more than in the baseline."""
    if data.baseline is None:
        return _casts_of_trace(data.candidate)
    change = data.kind("cast")
    if change is None or data.account is None or data.speedup is None or change.low <= 0:
        return None
    share = change.candidate_ms / data.account.sum.candidate_ms
    if share < CAST_SHARE:
        return None
    classes = [class_change for class_change in data.account.classes or () if class_change.kind == "cast"]
    where = [
        f"{class_change.layer_class} {ms_text(class_change.delta)} in {class_change.layers}"
        for class_change in classes
        if class_change.delta > 0
    ]
    return Reason(
        code="cast_overhead",
        text=f"Conversions between data types (Cast) take {ms_text(change.candidate_ms)} a step, {percent_text(share)} "
        f"of it, {change_text(change)}{f'. By class of layers: {joined(where)}' if where else ''}.",
        evidence={"share": share} | interval_evidence(change),
        advice=_CAST_ADVICE,
        time_ms=change.delta,
        **changes_of(casting_sets(data, classes)),
    )


def _casts_of_trace(profile: Profile) -> Reason | None:
    """By a trace alone, which has nothing to compare with."""
    cast_ms, share = _cast(profile)
    if share is None or share < CAST_SHARE:
        return None
    return Reason(
        code="cast_overhead",
        text=f"In the trace, conversions between data types (Cast) take {ms_text(cast_ms)} a step, "
        f"{percent_text(share)} of it.",
        evidence={"cast_ms": cast_ms, "share": share},
        advice=_CAST_ADVICE,
        time_ms=cast_ms,
    )


def _cast(profile: Profile) -> tuple[float, float | None]:
    """Milliseconds a step in conversions, and their share: of compute if that is known, else of the step."""
    step_ms, percent = profile.metrics.get(STEP), profile.metrics.get("profiler/cast_percent")
    cast_ms = profile.metrics.get("profiler/cast_ms")
    if cast_ms is None:
        cast_ms = math.fsum(row.time_ms for row in compute_operations(profile) if row.kind == "cast")
    if percent is not None:
        return cast_ms, percent / 100
    return cast_ms, cast_ms / step_ms if step_ms else None
