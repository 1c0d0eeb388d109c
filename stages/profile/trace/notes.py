"""What a reader of a trace's numbers should know: what is missing, and what not to believe."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from stages.profile.trace.convert import Conversion
from stages.profile.trace.results import Trace
from stages.profile.trace.tables import first_with

_ADDS_UP_WITHIN = 0.001  # share of a step; xprof gives microseconds in milliseconds
_MATCHED_ENOUGH_PERCENT = 90
_AGREES_WITHIN_POINTS = 5
_WORTH_SAYING_PERCENT = 0.1
_DROPPED = re.compile(r"events? dropped", re.IGNORECASE)


def notes(trace: Trace, conversion: Conversion, found: tuple[str, ...], has_graph: bool) -> Trace:
    """The trace with its warnings: those in `found`, the profiler's own, and what the numbers themselves show."""
    warnings = (
        *found,
        *_missing(conversion),
        *_steps(trace, hosts=len(conversion.host_overviews)),
        *_device(trace, conversion),
        *_types(trace, has_graph),
        *_profiler(conversion),
    )
    return replace(trace, warnings=tuple(dict.fromkeys(warnings)))


def _missing(conversion: Conversion) -> Iterator[str]:
    for message in _messages(conversion):
        if _DROPPED.search(message):
            yield (
                "the profiler, which keeps about two million events, dropped some, and what it dropped counts as 0: "
                f"trace fewer steps, 10 are plenty ({message})"
            )
    if conversion.scan.dropped_traces:
        yield (
            f"the device dropped {conversion.scan.dropped_traces} traces, and what it dropped counts as 0: "
            "trace fewer steps, 10 are plenty"
        )
    for name in conversion.scan.nameless:
        yield (
            f"{name} does not end in the name of a host, which TensorFlow writes last: "
            "if it was cut short, devices may be missing"
        )


def _steps(trace: Trace, hosts: int) -> Iterator[str]:
    if hosts > 1 and trace.steps:
        yield f"step time and its breakdown are those of the slowest of {hosts} hosts; shares are of all"
    if not trace.steps:
        yield (
            "steps cannot be told apart, so step time and its breakdown are absent: "
            'put tf.profiler.experimental.Trace("train", step_num=n, _r=1) around each step'
        )
    wrong = [
        number
        for number, step in enumerate(trace.steps)
        if not math.isclose(math.fsum(step.parts().values()), step.step_time_ms, rel_tol=_ADDS_UP_WITHIN)
    ]
    if wrong:
        yield f"the parts of {len(wrong)} of {len(trace.steps)} steps do not add up to it: the first is {wrong[0]}"


def _device(trace: Trace, conversion: Conversion) -> Iterator[str]:
    if trace.device_type == "GPU" and not trace.kernels:
        planes = ", ".join(conversion.scan.devices) or "none"
        yield (
            f"a GPU was used but the trace holds no kernels (device planes: {planes}): device times are absent; "
            "profiling may need the privilege CAP_SYS_ADMIN or NVreg_RestrictProfilingToAdminUsers=0"
        )


def _types(trace: Trace, has_graph: bool) -> Iterator[str]:
    if trace.kernels:
        yield from _kernel_types(trace)
    elif trace.device_type == "CPU":
        yield from _operation_types(trace, has_graph)


def _kernel_types(trace: Trace) -> Iterator[str]:
    metrics = trace.metrics()
    unknown = 100 - (trace.matched_percent or 0.0)
    if unknown >= _WORTH_SAYING_PERCENT:
        yield f"the data type of {unknown:.1f} % of the kernels' time cannot be told: it counts as none of 16 or 32 bit"
    total = math.fsum(kernel.duration_us for kernel in trace.kernels)
    untold = 100 * math.fsum(kernel.duration_us for kernel in trace.kernels if kernel.tensor_core is None) / total
    if untold >= _WORTH_SAYING_PERCENT:
        yield f"whether {untold:.1f} % of the kernels' time is on tensor cores cannot be told: it counts as not"
    ours, claimed = metrics["profiler/compute_16bit_percent"], trace.xprof_16bit_percent
    if claimed is not None and abs(ours - claimed) > _AGREES_WITHIN_POINTS:
        yield (
            f"xprof claims {claimed:.1f} % of compute in 16 bit, the kernels say {ours:.1f} %: "
            "xprof goes by the words half and fp16, in shapes and names, and knows no bfloat16"
        )


def _operation_types(trace: Trace, has_graph: bool) -> Iterator[str]:
    matched = trace.matched_percent
    if matched is None:
        yield (
            "the trace holds no operations but those of the data set (compiled by XLA, or none ran): "
            "the share of 16-bit compute is absent"
        )
    elif not has_graph:
        yield "the data types of a CPU's operations need the traced graph: the share of 16-bit compute is absent"
    elif matched < _MATCHED_ENOUGH_PERCENT:
        yield f"only {matched:.1f} % of the operations' time is of nodes in the graph: is it the graph of this trace?"


def _profiler(conversion: Conversion) -> Iterator[str]:
    for message in _messages(conversion):
        if not _DROPPED.search(message):
            yield f"profiler: {message}"


def _messages(conversion: Conversion) -> tuple[str, ...]:
    """What the profiler itself says; xprof repeats some of what stands in the trace."""
    rows = first_with(conversion.tables["overview_page"], "message").rows
    return (*(str(row.get("message")) for row in rows), *conversion.scan.errors, *conversion.scan.warnings)
