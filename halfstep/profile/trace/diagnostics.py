"""Warnings about the numbers of a trace: what is missing, and what is unreliable."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from halfstep.profile.trace.model import StepBreakdown, Trace
from halfstep.profile.trace.xprof import UNKNOWN_STEPS, Conversion

_SUM_TOLERANCE = 0.001  # share of a step; xprof rounds milliseconds to microseconds
_MIN_MATCHED_PERCENT = 90
_MAX_DIFFERENCE_POINTS = 5
_MIN_REPORTED_PERCENT = 0.1
_MARK = 'put tf.profiler.experimental.Trace("train", step_num=n, _r=1) around each step'
_DROPPED = re.compile(r"events? dropped", re.IGNORECASE)


def notes(trace: Trace, conversion: Conversion, file_warnings: tuple[str, ...], has_graph: bool) -> Trace:
    """The trace with its warnings: `file_warnings`, those of the profiler, and those from the numbers themselves."""
    warnings = (
        *file_warnings,
        *_missing(conversion),
        *_steps(trace, hosts=len(conversion.host_overviews)),
        *_device(trace, conversion),
        *(_kernel_types(trace) if trace.kernels else ()),
        *(_operation_types(trace, has_graph) if trace.device_type == "CPU" and not trace.kernels else ()),
        *(f"profiler: {message}" for message in _messages(conversion) if not _DROPPED.search(message)),
    )
    return replace(trace, warnings=tuple(dict.fromkeys(warnings)))


def _missing(conversion: Conversion) -> Iterator[str]:
    for message in _messages(conversion):
        if _DROPPED.search(message):
            yield (
                "the profiler keeps about two million events and dropped some, which count as 0: "
                f"trace fewer steps, 10 are enough ({message})"
            )
    dropped = conversion.scan.dropped_traces
    if dropped:
        yield f"the device dropped {dropped} traces, which count as 0: trace fewer steps, 10 are enough"
    for name in conversion.scan.nameless:
        yield (
            f"{name} does not end in the name of a host, which TensorFlow writes last: "
            "if the file is truncated, devices may be missing"
        )


def _steps(trace: Trace, hosts: int) -> Iterator[str]:
    if hosts > 1 and trace.steps:
        yield f"step time and breakdown are those of the slowest of {hosts} hosts; shares are of all hosts"
    if not trace.marked_steps:
        yield f"the trace has no step markers, so step time and breakdown are absent: {_MARK}"
    elif not trace.steps:
        yield f"the profiler did not find the marked steps, so step time and breakdown are absent: {_MARK}"
    elif not any(step.parts() for step in trace.steps):
        yield (
            "the profiler did not find the marked steps, so the breakdown is absent, and step times are those of the "
            f"markers: {_MARK}"
        )
    wrong = [number for number, step in enumerate(trace.steps) if not _adds_up(step)]
    if wrong:
        yield f"in {len(wrong)} of {len(trace.steps)} steps the parts do not add up to the step (first: {wrong[0]})"


def _adds_up(step: StepBreakdown) -> bool:
    parts = step.parts().values()
    return not parts or math.isclose(math.fsum(parts), step.step_time_ms, rel_tol=_SUM_TOLERANCE)


def _device(trace: Trace, conversion: Conversion) -> Iterator[str]:
    if trace.device_type == "GPU" and not trace.kernels:
        planes = ", ".join(conversion.scan.devices) or "none"
        yield (
            f"a GPU was used but the trace has no kernels (device planes: {planes}), so device times are absent: "
            "profiling may need the capability CAP_SYS_ADMIN or NVreg_RestrictProfilingToAdminUsers=0"
        )


def _kernel_types(trace: Trace) -> Iterator[str]:
    metrics = trace.metrics()
    unknown = 100 - (trace.matched_percent or 0.0)
    if unknown >= _MIN_REPORTED_PERCENT:
        yield f"the data type of {unknown:.1f} % of the kernels' time is unknown: it counts as neither 16 nor 32 bit"
    total_us = math.fsum(kernel.self_time_us for kernel in trace.kernels)
    unknown_us = math.fsum(kernel.self_time_us for kernel in trace.kernels if kernel.tensor_core is None)
    unknown_cores = 100 * unknown_us / total_us
    if unknown_cores >= _MIN_REPORTED_PERCENT:
        yield f"tensor core use is unknown for {unknown_cores:.1f} % of the kernels' time: it counts as unknown"
    ours, claimed = metrics["profiler/compute_16bit_percent"], trace.xprof_16bit_percent
    if claimed is not None and abs(ours - claimed) > _MAX_DIFFERENCE_POINTS:
        yield (
            f"xprof claims {claimed:.1f} % of compute in 16 bit, the kernels' names give {ours:.1f} %: "
            "xprof searches shapes and names for half and fp16 and does not recognise bfloat16"
        )


def _operation_types(trace: Trace, has_graph: bool) -> Iterator[str]:
    matched = trace.matched_percent
    if matched is None:
        yield (
            "the trace has no operations except those of the input pipeline (compiled by XLA, or none ran), "
            "so the share of 16-bit compute is absent"
        )
    elif not has_graph and not matched:
        yield "without the traced graph a CPU's operations have no data types, so the share of 16-bit compute is absent"
    elif not has_graph and matched < _MIN_MATCHED_PERCENT:
        yield (
            f"without the traced graph only what XLA compiled has data types, {matched:.1f} % of the operations' time: "
            "the share of 16-bit compute is of that"
        )
    elif matched < _MIN_MATCHED_PERCENT:
        yield f"only {matched:.1f} % of the operations' time is in nodes of the graph: is it the graph of this trace?"


def _messages(conversion: Conversion) -> tuple[str, ...]:
    """Messages of the profiler; xprof repeats some of those in the trace. For those about steps `_steps` has others."""
    messages = (*conversion.overview.messages, *conversion.scan.errors, *conversion.scan.warnings)
    return tuple(message for message in messages if not message.startswith(UNKNOWN_STEPS))
