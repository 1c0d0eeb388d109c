"""Reads a `Trace` from xprof's tables."""

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
from halfstep.profile.trace.kernels import canonical_dtype, is_compute, kernel_dtype, uses_tensor_cores
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
_XPROF_ROWS = 1000
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
    kernels = _kernels(conversion, graph_dtypes or {})
    claimed = _claimed_percents(conversion) if kernels else {}
    steps = _steps(conversion, has_device=device_type != "CPU" and bool(kernels or device_type != "GPU"))
    if device_type == "CPU" and not steps:
        steps = _marked(conversion.scan.markers_ms)
    trace = Trace(
        device_type=device_type,
        steps=steps,
        operations=_operations(conversion, graph_dtypes or {}, kernels),
        kernels=kernels,
        peak_memory_bytes=_peak_memory_bytes(conversion.peak_bytes, device_type),
        xprof_16bit_percent=claimed.get(16),
        xprof_32bit_percent=claimed.get(32),
        device_count=_device_count(conversion),
        marked_steps=max(conversion.scan.marked_steps, len(steps)),
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


def _kernels(conversion: Conversion, graph_dtypes: Mapping[str, str]) -> tuple[Operation, ...]:
    by_shapes = _dtypes_by_shapes(conversion.scan.kernels, graph_dtypes)
    types = {row["operation"]: row["type"] for row in conversion.operations if row["host_or_device"] == "Device"}
    compute = [row for row in _kernel_rows(conversion) if is_compute(row["kernel_name"])]
    kernels = [_kernel(row, conversion.scan.fusion_dtypes, by_shapes, types) for row in compute]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.self_time_us))


def _kernel_rows(conversion: Conversion) -> list[Mapping[str, Any]]:
    """xprof's table of kernels, with those that it leaves out: it keeps the longest `_XPROF_ROWS`."""
    rows: list[Mapping[str, Any]] = list(conversion.kernels)
    if len(rows) < _XPROF_ROWS:
        return rows
    known = {(row["kernel_name"], node_name(row["op_name"] or "")) for row in rows}
    left_out: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for kernel in conversion.scan.kernels:
        if (kernel.kernel, node_name(kernel.name)) not in known:
            left_out[kernel.kernel, kernel.name].append(kernel)
    for (name, operation), kernels in left_out.items():
        rows.append(
            {
                "kernel_name": name,
                "op_name": operation,
                "occurrences": sum(kernel.occurrences for kernel in kernels),
                "total_duration_us": math.fsum(kernel.self_time_us for kernel in kernels),
                "is_kernel_using_tensor_core": False,
            }
        )
    return rows


def _kernel(
    row: Mapping[str, Any],
    fusion_dtypes: Mapping[str, str],
    by_shapes: Mapping[tuple[str, str], str],
    operation_types: Mapping[str, str],
) -> Operation:
    name, operation = row["kernel_name"], row["op_name"] or ""
    dtype = kernel_dtype(name) or fusion_dtypes.get(name)
    dtype = dtype or by_shapes.get((name, operation)) or by_shapes.get((name, ""))
    return Operation(
        type=operation_types.get(operation, ""),
        name=operation,
        host_or_device="Device",
        occurrences=int(row["occurrences"]),
        self_time_us=float(row["total_duration_us"]),
        dtype=dtype,
        tensor_core=uses_tensor_cores(name, dtype, bool(row["is_kernel_using_tensor_core"])),
        kernel=name,
    )


def _dtypes_by_shapes(kernels: Iterable[Operation], graph_dtypes: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The type in which a kernel spends most of its time, by kernel and operation; for all operations under ""."""
    times: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel in kernels:
        dtype = kernel.dtype or _graph_dtype(kernel.name, graph_dtypes)
        if dtype:
            times[kernel.kernel, kernel.name][dtype] += kernel.self_time_us
            if kernel.name:
                times[kernel.kernel, ""][dtype] += kernel.self_time_us
    return {key: max(by_dtype, key=by_dtype.__getitem__) for key, by_dtype in times.items()}


def _graph_dtype(operation: str, graph_dtypes: Mapping[str, str]) -> str | None:
    dtype = graph_dtypes.get(node_name(operation))
    return canonical_dtype(dtype) if dtype else None


def _operations(
    conversion: Conversion, graph_dtypes: Mapping[str, str], kernels: Iterable[Operation]
) -> tuple[Operation, ...]:
    # Of the matrix kernels, where there are some: the others only prepare their tensors, even if they take longer.
    ordered = sorted(kernels, key=lambda kernel: (kernel.category == "matrix", kernel.self_time_us))
    longest = {kernel.name: kernel for kernel in ordered}
    operations = [_operation(row, graph_dtypes, longest) for row in conversion.operations if row["type"] != "IDLE"]
    return tuple(sorted(operations, key=lambda operation: -operation.self_time_us))


def _operation(row: Mapping[str, Any], graph_dtypes: Mapping[str, str], longest: Mapping[str, Operation]) -> Operation:
    kernel = longest.get(row["operation"]) if row["host_or_device"] == "Device" else None
    dtype = kernel.dtype if kernel else None
    return Operation(
        type=row["type"],
        name=row["operation"],
        host_or_device=row["host_or_device"],
        occurrences=int(row["occurrences"]),
        self_time_us=float(row["total_self_time"]),
        dtype=dtype or _graph_dtype(row["operation"], graph_dtypes),
        tensor_core=kernel.tensor_core if kernel else None,
    )


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
    if conversion.scan.computing_devices:
        return conversion.scan.computing_devices
    text = conversion.overview.properties.get("device_core_count", "")
    return int(text) if text.isdigit() and int(text) else None
