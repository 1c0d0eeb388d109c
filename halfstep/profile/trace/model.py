"""A profiler trace as numbers with units."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from halfstep.operations.op_types import OpCategory, is_cast, op_category
from halfstep.profile.trace.kernels import is_cast_kernel, is_layout_kernel, kernel_category
from halfstep.words.policies import SIXTEEN_BIT
from halfstep.words.text import MIB


@dataclass(frozen=True)
class StepBreakdown:
    """One training step and its parts, in milliseconds; a part that the device cannot have is None."""

    step_time_ms: float
    device_compute_ms: float | None = None
    host_compute_ms: float | None = None
    kernel_launch_ms: float | None = None
    input_ms: float | None = None
    output_ms: float | None = None
    device_to_device_ms: float | None = None
    device_collectives_ms: float | None = None
    compilation_ms: float | None = None
    other_ms: float | None = None

    def parts(self) -> dict[str, float]:
        """The parts that apply, in milliseconds, by name."""
        named = {name: getattr(self, name) for name in PART_NAMES}
        return {name: value for name, value in named.items() if value is not None}


PART_NAMES = tuple(item.name for item in fields(StepBreakdown) if item.name != "step_time_ms")


class Operation(NamedTuple):
    """An operation of the framework, or one kernel of it on a GPU.

    Attributes:
        type: op type, such as `Conv2D`; empty if it is unknown.
        name: in the graph; empty for a kernel that the trace assigns to no operation.
        host_or_device: where it ran.
        occurrences: in the whole trace and on all devices; of an operation on a GPU, of all its kernels. 0 where an
            operation stands for itself, without its times.
        self_time_us: in the whole trace and on all devices, without the operations inside of it, in microseconds.
        dtype: data type that it computes in; None if it is unknown.
        tensor_core: whether it uses tensor cores; None if it is unknown.
        kernel: name of the kernel, or of a copy; empty for an operation with all of its kernels.
        is_input: whether a thread of the input pipeline ran it.
    """

    type: str
    name: str
    host_or_device: Literal["Host", "Device"] = "Host"
    occurrences: int = 0
    self_time_us: float = 0.0
    dtype: str | None = None
    tensor_core: bool | None = None
    kernel: str = ""
    is_input: bool = False

    @property
    def category(self) -> OpCategory:
        """What bounds it, from the name of the kernel or the op type; what the input pipeline runs is `input`."""
        by_name = kernel_category(self.kernel) if self.kernel else "other"
        if by_name != "other":
            return by_name
        return "input" if self.is_input else op_category(self.type)

    @property
    def is_cast(self) -> bool:
        """True if it only changes a data type."""
        return is_cast(self.type) or (bool(self.kernel) and is_cast_kernel(self.kernel))

    @property
    def is_collective(self) -> bool:
        """True if it exchanges values between replicas, most of the time waiting for the others."""
        return self.type.startswith("Collective")

    @property
    def is_layout_change(self) -> bool:
        """True for a kernel that only changes the layout of a convolution's tensor."""
        return bool(self.kernel) and is_layout_kernel(self.kernel, self.name)


@dataclass(frozen=True)
class Idle:
    """What a GPU waited for: means over the steps of the GPU with the longest ones, in milliseconds.

    A step is the time from its first kernel to the first one of the next step. `busy_ms` is its time in kernels, and
    the others are the times without one, by cause (`trace.idle`); together they are the step.
    """

    step_ms: float
    busy_ms: float
    copy_ms: float
    launch_ms: float
    host_ms: float
    input_ms: float
    other_ms: float

    def metrics(self) -> dict[str, float]:
        """By their names in MLflow, where the parts that xprof knows on a CPU have its names."""
        return {
            "profiler/idle_ms": self.step_ms - self.busy_ms,
            "profiler/kernel_launch_ms": self.launch_ms,
            "profiler/host_compute_ms": self.host_ms,
            "profiler/input_ms": self.input_ms,
            "profiler/copy_wait_ms": self.copy_ms,
            "profiler/idle_other_ms": self.other_ms,
        }


@dataclass(frozen=True)
class Trace:
    """A profiler trace as numbers.

    Attributes:
        device_type: `CPU`, `GPU`, or xprof's name of another device.
        steps: the steps that the profiler could separate; on a CPU else the marked ones, without their parts.
        operations: of the hosts, and of the kernels of a GPU, longest self time first.
        kernels: compute kernels of a GPU, without copies, fills and collectives, longest first.
        peak_memory_bytes: peak of the device allocator with the highest peak.
        xprof_16bit_percent: share of device compute time in 16-bit types as claimed by xprof; only on a GPU.
        xprof_32bit_percent: the same in 32-bit types.
        device_count: GPUs in the trace, of all its hosts; None without a GPU.
        marked_steps: steps that the operations and kernels are of: also those at the ends, which the profiler may drop
            from `steps`; 0 if the trace has no step markers.
        idle: what a GPU waited for; None without one, or where the trace does not show it.
    """

    device_type: str
    steps: tuple[StepBreakdown, ...]
    operations: tuple[Operation, ...]
    kernels: tuple[Operation, ...]
    peak_memory_bytes: int | None
    xprof_16bit_percent: float | None = None
    xprof_32bit_percent: float | None = None
    device_count: int | None = None
    marked_steps: int = 0
    warnings: tuple[str, ...] = ()
    idle: Idle | None = None

    def metrics(self) -> dict[str, float]:
        """The metrics that apply, by their name in MLflow. Times are means over the steps."""
        waits = {} if self.idle is None else self.idle.metrics()
        values = {**waits, **self._step_metrics(), **self._compute_metrics()}
        if self.xprof_16bit_percent is not None:
            values["profiler/compute_16bit_percent_xprof"] = self.xprof_16bit_percent
        if self.xprof_32bit_percent is not None:
            values["profiler/compute_32bit_percent_xprof"] = self.xprof_32bit_percent
        if self.peak_memory_bytes is not None:
            values["memory/peak_mib"] = self.peak_memory_bytes / MIB
        return values

    @property
    def step_time_ms(self) -> tuple[float, ...]:
        """The time of every step, in milliseconds."""
        return tuple(step.step_time_ms for step in self.steps)

    @property
    def matched_percent(self) -> float | None:
        """Share of compute time whose data type is known; None without compute time."""
        total_us = math.fsum(row.self_time_us for row in self.compute)
        known_us = math.fsum(row.self_time_us for row in self.compute if row.dtype is not None)
        return 100 * known_us / total_us if total_us else None

    def cast_ms(self, steps: int) -> float | None:
        """Time in data type conversions in one of `steps` steps on one device, in milliseconds.

        None without compute time.
        """
        if not self.compute:
            return None
        cast_us = math.fsum(row.self_time_us for row in self.compute if row.is_cast)
        return cast_us / 1e3 / steps / (self.device_count or 1)

    @property
    def compute(self) -> tuple[Operation, ...]:
        """The kernels of a GPU, elsewhere the host's operations without the input pipeline and collectives."""
        if self.kernels or self.device_type != "CPU":
            return self.kernels
        on_host = (op for op in self.operations if op.host_or_device == "Host" and not op.is_collective)
        return tuple(op for op in on_host if op.category != "input")

    def _step_metrics(self) -> dict[str, float]:
        if not self.steps:
            return {}
        metrics = {"profiler/step_time_ms": statistics.fmean(self.step_time_ms)}
        for name in PART_NAMES:
            values = [step.parts()[name] for step in self.steps if name in step.parts()]
            if values:
                metrics[f"profiler/{name}"] = statistics.fmean(values)
        if len(self.steps) > 1:
            metrics["profiler/step_time_ms_median"] = statistics.median(self.step_time_ms)
            metrics["profiler/step_time_ms_sd"] = statistics.stdev(self.step_time_ms)
        return metrics

    def _compute_metrics(self) -> dict[str, float]:
        on_device = bool(self.kernels)
        # on a host the shares are of the operations in the graph, on a device of all kernels
        rows = [row for row in self.compute if on_device or row.dtype]
        total = math.fsum(row.self_time_us for row in rows)
        if not total:
            return {}

        def percent(chosen: Callable[[Operation], object]) -> float:
            return 100 * math.fsum(row.self_time_us for row in rows if chosen(row)) / total

        metrics = {
            "profiler/compute_16bit_percent": percent(lambda row: row.dtype in SIXTEEN_BIT),
            "profiler/compute_32bit_percent": percent(lambda row: row.dtype == "float32"),
            "profiler/cast_percent": percent(lambda row: row.is_cast),
            "profiler/matrix_percent": percent(lambda row: row.category == "matrix"),
            "profiler/memory_bound_percent": percent(lambda row: row.category == "memory"),
        }
        return metrics | (self._device_metrics(percent) if on_device else {})

    def _device_metrics(self, percent: Callable[[Callable[[Any], object]], float]) -> dict[str, float]:
        """Shares of a GPU's compute time. What names do not show is a share of its own."""
        metrics = {
            "profiler/compute_tf32_percent": percent(lambda row: row.dtype == "tf32"),
            "profiler/compute_unknown_percent": percent(lambda row: row.dtype is None),
            "profiler/tensor_core_percent": percent(lambda row: row.tensor_core),
            "profiler/tensor_core_unknown_percent": percent(lambda row: row.tensor_core is None),
            "profiler/layout_percent": percent(lambda row: row.is_layout_change),
        }
        matrix = percent(lambda row: row.category == "matrix")
        on_cores = percent(lambda row: row.category == "matrix" and row.tensor_core)
        return metrics | ({"profiler/matrix_tensor_core_percent": 100 * on_cores / matrix} if matrix else {})
