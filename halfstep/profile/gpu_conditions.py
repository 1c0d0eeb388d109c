"""Clocks, throttling and other programs of the GPU, read by the parent after each round. Creates no CUDA context.

A reading during a turn would disturb it, and one after it finds the GPU idle. What counts is therefore how far the
driver's counters of throttled time advanced from one reading to the next. Their fields are those of the performance
policies: the fields that were added later for single causes have other numbers in CUDA 12 than in CUDA 13 (251 to 253,
and 269 to 271), so that an older driver would answer with something else. These counters know heat and the power limit.
The flags of the moment are used where a driver has no counters, and for the causes without one. The counters are in
nanoseconds (NVML API reference, `nvmlViolationTime_t`) and were seen to advance in steps of 100 ms, so throttling in
the last tenth of a second of a round may be ascribed to the next one.

A GPU at its power limit (`sw_power_cap`) is not called throttled: "the clocks have been optimized to ensure not to
exceed currently set power limits" (NVML API reference, clocks event reasons). That is usual under load, and the same
whenever this program trains on this GPU. The other causes depend on cooling and power supply at that moment; those of
the hardware divide the clock by two or more.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import psutil

from halfstep.machine.gpus import Gpu, Visible, nvml
from halfstep.results.profile import THROTTLING, GpuConditions
from halfstep.words.text import MEASURE_AGAIN

THROTTLED_SHARE = 0.01  # of the time between two readings
SENSORS_EVERY_S = 0.5  # the driver measures no more often than a few times a second

_FLAGS = {
    "application_clocks": "nvmlClocksThrottleReasonApplicationsClocksSetting",
    "sw_power_cap": "nvmlClocksThrottleReasonSwPowerCap",
    "hw_slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "sync_boost": "nvmlClocksThrottleReasonSyncBoost",
    "sw_thermal_slowdown": "nvmlClocksThrottleReasonSwThermalSlowdown",
    "hw_thermal_slowdown": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "hw_power_brake_slowdown": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "display_clocks": "nvmlClocksThrottleReasonDisplayClockSetting",
}
# By reason: the field, and the policy of the older function for the same counter.
_COUNTERS = {
    "sw_power_cap": ("NVML_FI_DEV_PERF_POLICY_POWER", "NVML_PERF_POLICY_POWER"),
    "sw_thermal_slowdown": ("NVML_FI_DEV_PERF_POLICY_THERMAL", "NVML_PERF_POLICY_THERMAL"),
}
# After these, a query is not repeated; after those of `_FATAL`, no query is.
_UNSUPPORTED = (
    "NOT_SUPPORTED",
    "FUNCTION_NOT_FOUND",
    "NO_PERMISSION",
    "INVALID_ARGUMENT",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
)
_FATAL = (
    "UNINITIALIZED",
    "DRIVER_NOT_LOADED",
    "TIMEOUT",
    "IRQ_ISSUE",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "OPERATING_SYSTEM",
    "LIB_RM_VERSION_MISMATCH",
    "GPU_NOT_FOUND",
    "UNKNOWN",
)


class GpuMonitor:
    """Reads the first of the visible GPUs, which TensorFlow uses, or all that it may use; nothing without a driver."""

    def __init__(self, visible_gpus: Visible) -> None:
        self._found = visible_gpus
        self._watched: list[_Watched] = []
        self._reading_s = 0.0
        self._readings = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Initialises the driver's library once, for all readings in the block."""
        with ExitStack() as stack:
            library = stack.enter_context(nvml())
            if library is not None:
                self._watched = [_Watched(library, gpu) for gpu in self._found.candidates or self._found.gpus[:1]]
            yield

    def between_processes(self) -> None:
        """Notes the programs that use the GPU while no worker does."""
        for gpu in self._watched:
            gpu.note_processes(set())

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """What is read in the block counts from its beginning; notes the programs that use the GPU at its end."""
        for gpu in self._watched:
            gpu.read(counts=False)
        yield
        own = {process.pid for process in psutil.Process().children(recursive=True)} | {os.getpid()}
        for gpu in self._watched:
            gpu.note_processes(own)

    def round_ended(self) -> bool | None:
        """Whether the GPU was throttled since the last reading; None if that is not known.

        If several GPUs may be the one that is used, it is known where all agree.
        """
        started_s = time.perf_counter()
        throttled = {gpu.read() for gpu in self._watched}
        self._reading_s += time.perf_counter() - started_s
        self._readings += 1
        return throttled.pop() if len(throttled) == 1 else None

    def conditions(self) -> tuple[GpuConditions, ...]:
        """What was found, by GPU; empty if none was read after a round."""
        reading_ms = 1e3 * self._reading_s / max(1, self._readings)
        return tuple(gpu.conditions(self._found.identified, reading_ms) for gpu in self._watched if gpu.readings)


class _Watched:
    """One GPU, or a slice of one, which has the clocks, counters and temperature of its GPU."""

    def __init__(self, library: Any, gpu: Gpu) -> None:
        self._library, self._gpu = library, gpu
        self._errors = (library.NVMLError, library.NVMLLibraryMismatchError)
        self._unsupported: set[str] = set()
        self._failure: str | None = None
        self._counters_ns: dict[str, int] = {}
        self._read_s = self._sensors_s = 0.0
        self._ranges: dict[str, tuple[float, float]] = {}
        self._reasons: Counter[str] = Counter()
        self._throttled = 0
        self._others: set[int] | None = None
        self._has_own_ids: bool | None = None
        self.readings = 0
        self._slice = self._ask("handle", lambda: library.nvmlDeviceGetHandleByUUID(gpu.uuid))
        self._handle = self._ask("parent", lambda: library.nvmlDeviceGetHandleByUUID(gpu.whole.uuid))
        if self._handle is None or self._slice is None:
            self._failure = self._failure or "it cannot be found"
        limit_mw = self._ask("power limit", lambda: library.nvmlDeviceGetEnforcedPowerLimit(self._handle))
        self._power_limit_w = None if limit_mw is None else limit_mw / 1e3
        self._max_sm_clock_mhz = self._ask(
            "max clock", lambda: library.nvmlDeviceGetMaxClockInfo(self._handle, library.NVML_CLOCK_SM)
        )

    def _ask(self, name: str, query: Callable[[], Any]) -> Any:
        """The answer; None if the GPU gives none. An error here must not stop a measurement."""
        if self._failure or name in self._unsupported:
            return None
        try:
            return query()
        except self._errors as error:
            value = getattr(error, "value", self._library.NVML_ERROR_FUNCTION_NOT_FOUND)
            if value in [getattr(self._library, f"NVML_ERROR_{kind}") for kind in _FATAL]:
                self._failure = str(error)
            elif value in [getattr(self._library, f"NVML_ERROR_{kind}") for kind in _UNSUPPORTED]:
                self._unsupported.add(name)
            return None

    def read(self, *, counts: bool = True) -> bool | None:
        """Whether the GPU was throttled since the last reading; None if that is not known."""
        now_s, before_ns, span_s = time.monotonic(), self._counters_ns, time.monotonic() - self._read_s
        self._counters_ns, self._read_s = self._read_counters(), now_s
        flags = self._read_flags()
        if not counts or (flags is None and "sw_thermal_slowdown" not in self._counters_ns):
            return None
        reasons = flags or set()
        reasons |= {
            name
            for name, value_ns in self._counters_ns.items()
            if value_ns - before_ns.get(name, value_ns) > THROTTLED_SHARE * span_s * 1e9
        }
        self.readings += 1
        self._reasons.update(reasons)
        self._throttled += bool(reasons & THROTTLING)
        if now_s - self._sensors_s >= SENSORS_EVERY_S:
            self._sensors_s = now_s
            self._read_sensors()
        return bool(reasons & THROTTLING)

    def _read_flags(self) -> set[str] | None:
        library, handle = self._library, self._handle
        reasons = self._ask("event reasons", lambda: library.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if reasons is None:  # its name before driver 535
            reasons = self._ask("throttle reasons", lambda: library.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return None if reasons is None else {name for name, flag in _FLAGS.items() if reasons & getattr(library, flag)}

    def _read_counters(self) -> dict[str, int]:
        """Throttled time in nanoseconds since the driver was loaded, by reason, of those that have a counter."""
        library, handle = self._library, self._handle
        fields = [getattr(library, field) for field, _ in _COUNTERS.values()]
        values = self._ask("fields", lambda: library.nvmlDeviceGetFieldValues(handle, fields))
        counters_ns = {
            name: int(value.value.ullVal)
            for name, value in zip(_COUNTERS, values or (), strict=False)
            if value.nvmlReturn == library.NVML_SUCCESS
        }
        for name, (_, policy) in _COUNTERS.items():
            if name not in counters_ns:
                query = partial(library.nvmlDeviceGetViolationStatus, handle, getattr(library, policy))
                if (old := self._ask(policy, query)) is not None:
                    counters_ns[name] = int(old.violationTime)
        return counters_ns

    def _read_sensors(self) -> None:
        library, handle = self._library, self._handle
        queries: dict[str, Callable[[], float]] = {
            "sm_clock_mhz": lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM),
            "temperature_c": lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU),
            "power_w": lambda: library.nvmlDeviceGetPowerUsage(handle) / 1e3,
        }
        for name, query in queries.items():
            if (value := self._ask(name, query)) is not None:
                low, high = self._ranges.get(name, (value, value))
                self._ranges[name] = min(low, value), max(high, value)

    def note_processes(self, own: set[int]) -> None:
        """Notes the programs that are not this one.

        Args:
            own: ids of this program's processes; empty while none of them uses the GPU.
        """
        processes = self._ask("processes", lambda: self._library.nvmlDeviceGetComputeRunningProcesses(self._slice))
        if processes is None:
            return
        listed = {int(process.pid) for process in processes}
        self._others = self._others or set()
        if own and self._has_own_ids is not True:
            # The workers use the GPU now: if none of them is listed, the ids are those of the host.
            self._has_own_ids = bool(listed & own)
        if not own or listed & own:
            self._others |= listed - own

    def conditions(self, identified: bool, reading_ms: float) -> GpuConditions:
        """What was found."""
        return GpuConditions(
            name=self._gpu.name,
            uuid=self._gpu.uuid,
            identified=identified,
            readings=self.readings,
            throttled=self._throttled / self.readings,
            reasons={name: count / self.readings for name, count in sorted(self._reasons.items())},
            max_sm_clock_mhz=self._max_sm_clock_mhz,
            power_limit_w=self._power_limit_w,
            other_processes=None if self._others is None else len(self._others),
            has_own_process_ids=self._has_own_ids,
            reading_ms=reading_ms,
            failure=self._failure,
            **self._ranges,
        )


def warnings(conditions: tuple[GpuConditions, ...]) -> Iterator[str]:
    """Yields a line for each thing about the GPUs that a reader of the numbers should know."""
    for gpu in conditions:
        if gpu.throttled and gpu.identified:
            yield (
                f"{gpu.name} was throttled ({gpu.throttling_text}) in {gpu.throttled:.0%} of the rounds, which do not "
                "count; look at its cooling and its power supply"
            )
        if gpu.other_processes:
            programs = "another program" if gpu.other_processes == 1 else f"{gpu.other_processes} other programs"
            yield (
                f"{programs} used {gpu.name} during the timing, which disturbs it; stop what `nvidia-smi` lists, then "
                f"measure again with `{MEASURE_AGAIN}`"
            )
        if gpu.failure:
            yield f"the driver of {gpu.name} stopped answering ({gpu.failure}), so later rounds may be throttled"
    if any(not gpu.identified for gpu in conditions):
        yield (
            f"it is not known which GPU of this machine was used, one of {', '.join(gpu.name for gpu in conditions)}; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to a UUID that `nvidia-smi -L` lists"
        )
