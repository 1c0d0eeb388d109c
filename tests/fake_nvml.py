"""NVML without a driver: what the calls of `pynvml` answer is set by the test, its constants and errors are real.

Only what a recorded source shows is in `nvml_recordings`; every other query answers that it is not supported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml


def error(kind: str) -> Exception:
    """The error of a call, such as `error("GPU_IS_LOST")`."""
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{kind}"))


@dataclass(eq=False)
class Device:
    """A GPU or a slice, which is also its own handle. An answer that is an error is raised.

    Attributes:
        slices: of a partitioned GPU; None if the GPU cannot be partitioned.
        parent: of a slice.
        counters_ns: by number of the field; absent are not supported.
        violations_ns: the same by number of the policy, for the older function.
        pids: of the processes that the driver lists.
        answers: by name of the query without `nvmlDeviceGet`.
    """

    name: str
    uuid: str
    bus_id: str = "00000000:01:00.0"
    memory_mib: int | None = None
    capability: tuple[int, int] | None = None
    slices: list[Device] | None = None
    parent: Device | None = None
    instance: tuple[int, int] = (0, 0)
    multiprocessors: int | None = None
    gpu_slices: int | None = None
    counters_ns: dict[int, int] = field(default_factory=dict)
    violations_ns: dict[int, int] = field(default_factory=dict)
    pids: list[int] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in self.slices or ():
            part.parent = self

    def answer(self, name: str) -> Any:
        value = self.answers.get(name, error("NOT_SUPPORTED"))
        if isinstance(value, Exception):
            raise value
        return value

    def set_flags(self, *names: str) -> None:
        """Sets which clocks event reasons are active now, by the end of their constants."""
        flags = [getattr(pynvml, f"nvmlClocksEventReason{name}") for name in names]
        self.answers["CurrentClocksEventReasons"] = sum(flags)


class FakeNvml:
    """Stands for the module `pynvml`."""

    def __init__(self, *devices: Device, driver: str = "535.216.01", cuda: int = 12020) -> None:
        self._devices, self._driver, self._cuda = list(devices), driver, cuda
        self.initialised = 0
        self.depth = 0
        self.calls: list[str] = []
        self.failing: Exception | None = None  # raised by every query

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet"):
            return lambda device, *_: self._query(device, name.removeprefix("nvmlDeviceGet"))
        return getattr(pynvml, name)

    def _query(self, device: Device, name: str) -> Any:
        self._check(name)
        return device.answer(name)

    def _check(self, name: str) -> None:
        self.calls.append(name)
        assert self.depth > 0, "the library is not initialised"
        if self.failing is not None:
            raise self.failing

    def nvmlInit(self) -> None:  # noqa: N802
        self.initialised += 1
        self.depth += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.depth -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self._driver

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return self._cuda

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check("Count")
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        self._check("HandleByIndex")
        device = self._devices[index]
        if isinstance(lost := device.answers.get("HandleByIndex"), Exception):
            raise lost
        return device

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:  # noqa: N802
        self._check("HandleByUUID")
        for device in (*self._devices, *(part for whole in self._devices for part in whole.slices or ())):
            if device.uuid == uuid:
                return device
        raise error("NOT_FOUND")

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: bytes) -> Device:  # noqa: N802
        self._check("HandleByPciBusId")
        for device in self._devices:
            if device.bus_id == bus_id.decode():
                return device
        raise error("NOT_FOUND")

    def nvmlDeviceGetName(self, device: Device) -> str:  # noqa: N802
        return device.name

    def nvmlDeviceGetUUID(self, device: Device) -> str:  # noqa: N802
        return device.uuid

    def nvmlDeviceGetPciInfo(self, device: Device) -> Any:  # noqa: N802
        return SimpleNamespace(busId=device.bus_id)

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:  # noqa: N802
        if device.memory_mib is None:
            raise error("NOT_SUPPORTED")
        used_mib = device.answers.get("used", 0)
        return SimpleNamespace(total=device.memory_mib * 2**20, free=(device.memory_mib - used_mib) * 2**20)

    def nvmlDeviceGetCudaComputeCapability(self, device: Device) -> tuple[int, int]:  # noqa: N802
        if device.capability is None:
            raise error("NOT_SUPPORTED")
        return device.capability

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:  # noqa: N802
        if device.slices is None:
            raise error("NOT_SUPPORTED")
        return [pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_ENABLE]

    def nvmlDeviceGetMaxMigDeviceCount(self, _: Device) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> Device:  # noqa: N802
        if index >= len(device.slices or ()):
            raise error("NOT_FOUND")
        assert device.slices is not None
        return device.slices[index]

    def nvmlDeviceGetGpuInstanceId(self, device: Device) -> int:  # noqa: N802
        return device.instance[0]

    def nvmlDeviceGetComputeInstanceId(self, device: Device) -> int:  # noqa: N802
        return device.instance[1]

    def nvmlDeviceGetAttributes(self, device: Device) -> Any:  # noqa: N802
        if device.multiprocessors is None:
            raise error("NOT_SUPPORTED")
        return SimpleNamespace(
            multiprocessorCount=device.multiprocessors,
            gpuInstanceSliceCount=device.gpu_slices,
            computeInstanceSliceCount=device.gpu_slices,
        )

    def nvmlDeviceGetFieldValues(self, device: Device, fields: list[int]) -> Any:  # noqa: N802
        self._check("FieldValues")
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, number in zip(values, fields, strict=True):
            value.fieldId = number
            value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            if number in device.counters_ns:
                value.nvmlReturn = pynvml.NVML_SUCCESS
                value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
                value.value.ullVal = device.counters_ns[number]
        return values

    def nvmlDeviceGetViolationStatus(self, device: Device, policy: int) -> Any:  # noqa: N802
        self._check("ViolationStatus")
        if policy not in device.violations_ns:
            raise error("NOT_SUPPORTED")
        status = pynvml.c_nvmlViolationTime_t()
        status.violationTime = device.violations_ns[policy]
        return status

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> list[Any]:  # noqa: N802
        self._check("ComputeRunningProcesses")
        if isinstance(refused := device.answers.get("ComputeRunningProcesses"), Exception):
            raise refused
        return [SimpleNamespace(pid=pid) for pid in device.pids]
