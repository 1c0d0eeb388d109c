"""What a trace says, as numbers with units."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from stages.profile.trace.dtypes import SIXTEEN_BIT

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


@dataclass(frozen=True)
class Kernel:
    """A GPU kernel with its time in the whole trace, in microseconds; what cannot be told is None."""

    name: str
    operation: str
    occurrences: int
    duration_us: float
    dtype: str | None
    tensor_core: bool | None


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
        if self.kernels or self.device_type != "CPU":
            return _sum_by_dtype((kernel.dtype, kernel.duration_us) for kernel in self.kernels)
        return _sum_by_dtype((operation.dtype, operation.self_time_us) for operation in self._host_operations)

    @property
    def matched_percent(self) -> float | None:
        """Share of compute time whose data type is known; None where there is no compute time."""
        times = self.dtype_time_us
        total = sum(times.values())
        return 100 * (total - times.get(None, 0.0)) / total if total else None

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
        times = dict(self.dtype_time_us)
        on_device = bool(self.kernels)
        if not on_device:
            times.pop(None, None)  # on a host the share is of what the graph knows
        total = math.fsum(times.values())
        if not total:
            return {}
        shares = {dtype: 100 * time / total for dtype, time in times.items()}
        found = {"profiler/compute_16bit_percent": math.fsum(shares.get(dtype, 0.0) for dtype in SIXTEEN_BIT)}
        found["profiler/compute_32bit_percent"] = shares.get("float32", 0.0)
        if on_device:
            on_cores = math.fsum(kernel.duration_us for kernel in self.kernels if kernel.tensor_core)
            found["profiler/compute_tf32_percent"] = shares.get("tf32", 0.0)
            found["profiler/tensor_core_percent"] = 100 * on_cores / total
        return found


def _sum_by_dtype(items: Iterable[tuple[str | None, float]]) -> dict[str | None, float]:
    times: dict[str | None, float] = {}
    for dtype, time in items:
        times[dtype] = times.get(dtype, 0.0) + time
    return times
