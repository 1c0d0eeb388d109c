"""What a trace says, as numbers with units."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields

from stages.profile.trace.dtypes import SIXTEEN_BIT
from stages.profile.trace.kinds import Kind, is_cast, work_kind

MIB = 1024 * 1024


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


@dataclass(frozen=True)
class Operation:
    """An operation of the framework with its time in the whole trace, in microseconds."""

    type: str
    name: str
    host_or_device: str
    occurrences: int
    self_time_us: float
    dtype: str | None = None
    tensor_core: bool | None = None

    @property
    def is_data_set(self) -> bool:
        """True for the rows of tf.data, which no graph holds; Python functions run in no other place of a step."""
        if self.type in ("PyFunc", "EagerPyFunc"):
            return True
        return self.type == "Dataset" or self.type.startswith("Iterator") or self.name.startswith("Iterator::")

    @property
    def kind(self) -> Kind:
        """What bounds it: the multiplying of matrices, or memory."""
        return work_kind(self.type)

    @property
    def is_cast(self) -> bool:
        """True for what does nothing but change a data type."""
        return is_cast(self.type)


@dataclass(frozen=True)
class Kernel:
    """A GPU kernel with its time in the whole trace, in microseconds; what cannot be told is None."""

    name: str
    operation: str
    occurrences: int
    duration_us: float
    dtype: str | None
    tensor_core: bool | None
    operation_type: str = ""

    @property
    def self_time_us(self) -> float:
        """Its time, by the name that operations have for theirs."""
        return self.duration_us

    @property
    def kind(self) -> Kind:
        """What bounds it; by its own name where the operation that it belongs to does not tell."""
        by_operation = work_kind(self.operation_type)
        return work_kind(self.name) if by_operation == "other" else by_operation

    @property
    def is_cast(self) -> bool:
        """True for what does nothing but change a data type."""
        return is_cast(self.operation_type or self.name)


@dataclass(frozen=True)
class Trace:
    """A profiler trace as numbers.

    Attributes:
        device_type: `CPU`, `GPU`, or what xprof says of other devices.
        steps: the steps that the profiler could tell apart.
        operations: without the profiler's IDLE rows, longest self time first.
        kernels: compute kernels of a GPU; copies, fills and collectives are left out. Longest first.
        peak_memory_bytes: most memory in use during the trace, of the largest device allocator.
        xprof_16bit_percent: share of device compute time in 16-bit types as xprof claims; on a GPU only.
        xprof_32bit_percent: the same in 32-bit types.
        device_count: GPUs in the trace, of all its hosts; None without one.
    """

    device_type: str
    steps: tuple[StepBreakdown, ...]
    operations: tuple[Operation, ...]
    kernels: tuple[Kernel, ...]
    peak_memory_bytes: int | None
    xprof_16bit_percent: float | None = None
    xprof_32bit_percent: float | None = None
    device_count: int | None = None
    warnings: tuple[str, ...] = field(default=())

    def metrics(self) -> dict[str, float]:
        """The metrics that apply, under the names they are tracked by. Times are means over the steps."""
        found = {**self._step_metrics(), **self._compute_metrics()}
        if self.xprof_16bit_percent is not None:
            found["profiler/compute_16bit_percent_xprof"] = self.xprof_16bit_percent
        if self.xprof_32bit_percent is not None:
            found["profiler/compute_32bit_percent_xprof"] = self.xprof_32bit_percent
        if self.peak_memory_bytes is not None:
            found["memory/peak_mib"] = self.peak_memory_bytes / MIB
        return found

    @property
    def step_time_ms(self) -> tuple[float, ...]:
        """The time of every step, in milliseconds."""
        return tuple(step.step_time_ms for step in self.steps)

    @property
    def dtype_time_us(self) -> Mapping[str | None, float]:
        """Compute time by data type, in microseconds; None holds what cannot be told.

        On a GPU of the kernels, elsewhere of the host's operations without those of the data set.
        """
        return _sum_by_dtype((row.dtype, row.self_time_us) for row in self._compute)

    @property
    def matched_percent(self) -> float | None:
        """Share of compute time whose data type is known; None where there is no compute time."""
        times = self.dtype_time_us
        total = sum(times.values())
        return 100 * (total - times.get(None, 0.0)) / total if total else None

    @property
    def cast_time_us(self) -> float | None:
        """Time lost in changing data types in the whole trace, on all devices, in microseconds.

        None where there is no compute time to be lost.
        """
        return math.fsum(row.self_time_us for row in self._compute if row.is_cast) if self._compute else None

    @property
    def _compute(self) -> tuple[Kernel | Operation, ...]:
        """What computes: the kernels of a GPU, elsewhere the host's operations without those of the data set."""
        return self.kernels if self.kernels or self.device_type != "CPU" else self._host_operations

    @property
    def _host_operations(self) -> tuple[Operation, ...]:
        return tuple(op for op in self.operations if op.host_or_device == "Host" and not op.is_data_set)

    def _step_metrics(self) -> dict[str, float]:
        if not self.steps:
            return {}
        found = {"profiler/step_time_ms": statistics.fmean(self.step_time_ms)}
        for name in PART_NAMES:
            values = [step.parts()[name] for step in self.steps if name in step.parts()]
            if values:
                found[f"profiler/{name}"] = statistics.fmean(values)
        if len(self.steps) > 1:
            found["profiler/step_time_ms_median"] = statistics.median(self.step_time_ms)
            found["profiler/step_time_ms_sd"] = statistics.stdev(self.step_time_ms)
        return found

    def _compute_metrics(self) -> dict[str, float]:
        on_device = bool(self.kernels)
        # on a host the shares are of what the graph knows; on a device nothing leaves the denominator
        rows = [row for row in self._compute if on_device or row.dtype]
        total = math.fsum(row.self_time_us for row in rows)
        if not total:
            return {}

        def percent(chosen: Callable[[Kernel | Operation], object]) -> float:
            return 100 * math.fsum(row.self_time_us for row in rows if chosen(row)) / total

        found = {
            "profiler/compute_16bit_percent": percent(lambda row: row.dtype in SIXTEEN_BIT),
            "profiler/compute_32bit_percent": percent(lambda row: row.dtype == "float32"),
            "profiler/cast_percent": percent(lambda row: row.is_cast),
            "profiler/matrix_percent": percent(lambda row: row.kind == "matrix"),
            "profiler/memory_bound_percent": percent(lambda row: row.kind == "memory"),
        }
        if on_device:
            found["profiler/compute_tf32_percent"] = percent(lambda row: row.dtype == "tf32")
            found["profiler/tensor_core_percent"] = percent(lambda row: row.tensor_core)
        return found


def _sum_by_dtype(items: Iterable[tuple[str | None, float]]) -> dict[str | None, float]:
    times: dict[str | None, float] = {}
    for dtype, time in items:
        times[dtype] = times.get(dtype, 0.0) + time
    return times
