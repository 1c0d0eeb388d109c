"""Reads a `Trace`: steps and their parts, and what is claimed of 16 bit, from xprof's tables."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from halfstep.operations.graph_names import node_name
from halfstep.profile.trace.diagnostics import notes
from halfstep.profile.trace.kernels import canonical_dtype, is_compute, uses_tensor_cores
from halfstep.profile.trace.locate import find_trace_files
from halfstep.profile.trace.model import Operation, StepBreakdown, Trace
from halfstep.profile.trace.xprof import UNKNOWN_STEPS, Conversion, Overview, convert

_PART_COLUMNS = {
    "device_compute_ms": "deviceComputeTimeMs",
    "host_compute_ms": "hostComputeTimeMs",
    "kernel_launch_ms": "kernelLaunchTimeMs",
    "input_ms": "infeedTimeMs",
    "output_ms": "outfeedTimeMs",
    "device_to_device_ms": "deviceToDeviceTimeMs",
    "device_collectives_ms": "deviceCollectivesTimeMs",
    "compilation_ms": "compileTimeMs",
    "other_ms": "otherTimeMs",
}
_DEVICE_PARTS = frozenset({"device_compute_ms", "kernel_launch_ms", "device_to_device_ms", "device_collectives_ms"})
# What xprof takes from events of the host. Where there is a GPU it looks at the GPU's events alone, and gives 0
# (`xplane_to_op_stats.cc`).
_HOST_PARTS = frozenset({"host_compute_ms", "kernel_launch_ms", "input_ms", "output_ms"})
_COMPLETE_STEPS = 5  # of more, xprof drops the first and the last
_GPU_TRACES = re.compile(r"^gpu_|^GPU_\d+|tf_gpu_|GPU_Event_Manager", re.IGNORECASE)


def read_trace(path: Path, graph_dtypes: Mapping[str, str] | None = None, timeout_s: float = 120) -> Trace:
    """Reads a profiler trace of this project or of any other program.

    Args:
        path: an `.xplane.pb` file, or a log directory, of which the newest run is read with all its hosts.
        graph_dtypes: data type that each node of the traced graph computes in, by the node's name. Without it the
            types are unknown for operations of a CPU, and for GPU kernels whose name and shapes do not show them.
        timeout_s: time limit of the conversion, in seconds.

    Raises:
        TraceError: the trace is missing or cannot be read.
    """
    paths, warnings = find_trace_files(path)
    conversion = convert(paths, timeout_s)
    device_type = _device_type(conversion)
    ran = [_typed(operation, graph_dtypes or {}) for operation in conversion.operations]
    on_host = [operation for operation in ran if not operation.kernel]
    kernels = _longest_first(operation for operation in ran if operation.kernel and is_compute(operation.kernel))
    claimed = _claimed_percents(conversion) if kernels else {}
    steps = _steps(conversion, has_device=device_type != "CPU" and bool(kernels or device_type != "GPU"))
    if device_type == "CPU" and not steps:
        steps = _marked(conversion.scan.markers_ms)
    trace = Trace(
        device_type=device_type,
        steps=steps,
        operations=_longest_first([*on_host, *_of_kernels(kernels)]),
        kernels=kernels,
        peak_memory_bytes=_peak_memory_bytes(conversion.peak_bytes, device_type),
        xprof_16bit_percent=claimed.get(16),
        xprof_32bit_percent=claimed.get(32),
        device_count=_device_count(conversion),
        marked_steps=max(conversion.scan.marked_steps, len(steps)),
        idle=conversion.idle,
    )
    return notes(trace, conversion, warnings, has_graph=bool(graph_dtypes))


def _device_type(conversion: Conversion) -> str:
    claimed = conversion.overview.properties.get("device_type", "").upper()
    if claimed not in {"", "CPU", "CPU_ONLY"}:
        return "GPU" if "GPU" in claimed else claimed
    # Without permission to read the GPU's counters its plane is missing, and xprof reports a CPU.
    gpu_seen = any(map(_GPU_TRACES.search, (*conversion.peak_bytes, *conversion.scan.host_lines)))
    return "GPU" if gpu_seen else "CPU"


def _steps(conversion: Conversion, has_device: bool) -> tuple[StepBreakdown, ...]:
    """The steps of the slowest host: the others wait for it."""
    by_host = [_steps_of_host(overview, has_device) for overview in conversion.host_overviews]
    return max(by_host, key=lambda steps: fmean([step.step_time_ms for step in steps] or [0.0]), default=())


def _steps_of_host(overview: Overview, has_device: bool) -> tuple[StepBreakdown, ...]:
    if any(message.startswith(UNKNOWN_STEPS) for message in overview.messages):
        return ()
    return tuple(_step(row, has_device) for row in overview.steps if row.get("stepTimeMs"))


def _step(row: Mapping[str, Any], has_device: bool) -> StepBreakdown:
    parts = {name: float(row[column]) for name, column in _PART_COLUMNS.items() if row.get(column) is not None}
    unseen = _HOST_PARTS if has_device else _DEVICE_PARTS
    parts = {name: value for name, value in parts.items() if value or name not in unseen}
    return StepBreakdown(step_time_ms=float(row["stepTimeMs"]), **parts)


def _marked(markers_ms: Sequence[float]) -> tuple[StepBreakdown, ...]:
    """Steps without a breakdown, by their markers. Not for a GPU: the host is in a later step than the device."""
    complete = markers_ms[1:-1] if len(markers_ms) > _COMPLETE_STEPS else markers_ms
    return tuple(StepBreakdown(step_time_ms=duration_ms) for duration_ms in complete)


def _typed(operation: Operation, graph_dtypes: Mapping[str, str]) -> Operation:
    """With the data type of its node in the graph, where the trace does not show one.

    A kernel for a product in float32 may compute in TF32.
    """
    graph_dtype = graph_dtypes.get(node_name(operation.name))
    if operation.dtype is not None or graph_dtype is None:
        return operation
    dtype = canonical_dtype(graph_dtype)
    if operation.kernel and operation.category == "matrix" and dtype == "float32":
        return operation
    used = uses_tensor_cores(operation.kernel, dtype) if operation.kernel else None
    return operation._replace(dtype=dtype, tensor_core=used)


def _of_kernels(kernels: Iterable[Operation]) -> list[Operation]:
    """The operations of a GPU, each with all of its kernels."""
    by_name: dict[str, list[Operation]] = defaultdict(list)
    for kernel in kernels:
        if kernel.name:
            by_name[kernel.name].append(kernel)
    return [_of_one(own) for own in by_name.values()]


def _of_one(kernels: Sequence[Operation]) -> Operation:
    # Of the matrix kernels, where there are some: the others only prepare their tensors, even if they take longer.
    longest = max(kernels, key=lambda kernel: (kernel.category == "matrix", kernel.self_time_us))
    return longest._replace(
        occurrences=sum(kernel.occurrences for kernel in kernels),
        self_time_us=math.fsum(kernel.self_time_us for kernel in kernels),
        kernel="",
    )


def _longest_first(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    return tuple(sorted(operations, key=lambda operation: -operation.self_time_us))


def _peak_memory_bytes(peaks: Mapping[str, int], device_type: str) -> int | None:
    """The highest peak of the device's allocators; a GPU's `gpu_host_bfc` is pinned memory of the host."""
    if device_type == "CPU":
        chosen = [peak for name, peak in peaks.items() if "cpu" in name.lower()] or peaks.values()
    else:
        chosen = [peak for name, peak in peaks.items() if not re.search("host|cpu", name, re.IGNORECASE)]
    return max(chosen, default=None)


def _claimed_percents(conversion: Conversion) -> dict[int, float]:
    """xprof's shares by bits; none without step markers, where xprof reports 0 of each."""
    shares = {bits: share for bits in (16, 32) if (share := _xprof_percent(conversion, bits)) is not None}
    return shares if any(shares.values()) else {}


def _xprof_percent(conversion: Conversion, bits: int) -> float | None:
    """Share of device compute time that xprof reports for types of `bits` bits; it writes `30.5%` or `-nan%`."""
    text = conversion.overview.properties.get(f"device_compute_{bits}bit_percent", "").rstrip("%")
    try:
        share = float(text)
    except ValueError:
        return None
    return share if math.isfinite(share) else None


def _device_count(conversion: Conversion) -> int | None:
    """The GPUs that compute; xprof counts the idle ones of a host, too."""
    if conversion.computing_gpus:
        return conversion.computing_gpus
    text = conversion.overview.properties.get("device_core_count", "")
    return int(text) if text.isdigit() and int(text) else None
