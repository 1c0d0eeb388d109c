"""What NVML, the management library of the NVIDIA driver, says about the GPUs. Creates no CUDA context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from halfstep.machine.gpus.description import Gpu


@contextmanager
def nvml() -> Iterator[Any]:
    """The driver's management library, initialised for the block; None without a driver. Blocks may be nested."""
    try:
        import pynvml
    except ImportError:  # in the environment of a user's code
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def installed() -> tuple[Gpu, ...]:
    """The GPUs that the driver reports, hidden ones too, in the order of the PCI bus; empty without a driver."""
    with nvml() as library:
        return listed(library)


def listed(library: Any) -> tuple[Gpu, ...]:
    """The same, of NVML where it is initialised already; empty for None."""
    if library is None:
        return ()
    try:
        gpus = [_at(library, index) for index in range(library.nvmlDeviceGetCount())]
    except library.NVMLError as error:
        return (Gpu(name=f"unknown ({error})", uuid=""),)
    return tuple(sorted(gpus, key=lambda gpu: gpu.pci_bus_id))


def _at(library: Any, index: int) -> Gpu:
    """The GPU at NVML's index; without a UUID if it is lost."""
    try:
        return _described(library, library.nvmlDeviceGetHandleByIndex(index))
    except library.NVMLError as error:
        return Gpu(name=f"unknown ({error})", uuid="")


def _described(library: Any, handle: Any) -> Gpu:
    capability = _supported(library, lambda: library.nvmlDeviceGetCudaComputeCapability(handle))
    mode = _supported(library, lambda: library.nvmlDeviceGetMigMode(handle))
    gpu = Gpu(
        name=_text(library.nvmlDeviceGetName(handle)),
        uuid=_text(library.nvmlDeviceGetUUID(handle)),
        pci_bus_id=_text(library.nvmlDeviceGetPciInfo(handle).busId),
        memory_bytes=_memory_bytes(library, handle),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        is_partitioned=mode is not None and mode[0] == library.NVML_DEVICE_MIG_ENABLE,
    )
    return replace(gpu, slices=tuple(_slices(library, handle, gpu))) if gpu.is_partitioned else gpu


def _slices(library: Any, handle: Any, parent: Gpu) -> Iterator[Gpu]:
    for index in range(library.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except library.NVMLError:  # there are fewer than the most that are possible
            continue
        attributes = _supported(library, partial(library.nvmlDeviceGetAttributes, part))
        yield Gpu(
            name=_text(library.nvmlDeviceGetName(part)),
            uuid=_text(library.nvmlDeviceGetUUID(part)),
            pci_bus_id=parent.pci_bus_id,
            memory_bytes=_memory_bytes(library, part),
            compute_capability=parent.compute_capability,
            parent=parent,
            instance=(library.nvmlDeviceGetGpuInstanceId(part), library.nvmlDeviceGetComputeInstanceId(part)),
            multiprocessors=getattr(attributes, "multiprocessorCount", None),
            gpu_slices=getattr(attributes, "gpuInstanceSliceCount", None),
            compute_slices=getattr(attributes, "computeInstanceSliceCount", None),
        )


def _memory_bytes(library: Any, handle: Any) -> int | None:
    """Memory of a GPU or slice; None for a GPU that shares the memory of the processor."""
    memory = _supported(library, lambda: library.nvmlDeviceGetMemoryInfo(handle))
    return None if memory is None else int(memory.total)


def versions(library: Any) -> tuple[str | None, str | None]:
    """Version of the driver, and the newest version of CUDA that it supports; None where it does not say."""
    cuda = _supported(library, library.nvmlSystemGetCudaDriverVersion)
    driver = _supported(library, library.nvmlSystemGetDriverVersion)
    return (
        None if driver is None else _text(driver),
        None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _supported(library: Any, query: Callable[[], Any]) -> Any:
    """The answer; None if this GPU or driver gives none."""
    try:
        return query()
    except library.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
