"""The GPUs of this machine, and which of them a CUDA program in this environment uses. Creates no CUDA context.

NVML counts GPUs in another way than CUDA, so GPUs are identified by UUID. `CUDA_VISIBLE_DEVICES` is read as CUDA does
(CUDA programming guide, environment variables): indices in CUDA's order, or UUIDs, also shortened; the first entry that
is none hides the rest. CUDA's order is that of the PCI bus with `CUDA_DEVICE_ORDER=PCI_BUS_ID`. Otherwise the fastest
GPU comes first and the rest is not specified, and CUDA itself is asked. A program uses one slice of a partitioned GPU,
and then no other GPU (MIG user guide, CUDA device enumeration).
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

_CUDA_TIMEOUT_S = 60  # without the persistence mode, initialising the driver takes seconds


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a slice of one (MIG). What the driver does not report is None.

    Attributes:
        name: as the driver reports it, of a slice with its profile, such as `NVIDIA A100-SXM4-80GB MIG 1g.10gb`.
        uuid: begins with `GPU-` or `MIG-`.
        pci_bus_id: place of the GPU in the machine.
        memory_bytes: of a slice its own.
        compute_capability: such as `8.0`.
        parent: of a slice, the GPU that it is a part of.
        instance: of a slice, the ids of its GPU instance and its compute instance.
        multiprocessors, gpu_slices, compute_slices: of a slice, its share of the GPU.
        is_partitioned: whether only its slices can be used.
        slices: the slices of a partitioned GPU.
    """

    name: str
    uuid: str
    pci_bus_id: str = ""
    memory_bytes: int | None = None
    compute_capability: str | None = None
    parent: Gpu | None = None
    instance: tuple[int, int] | None = None
    multiprocessors: int | None = None
    gpu_slices: int | None = None
    compute_slices: int | None = None
    is_partitioned: bool = False
    slices: tuple[Gpu, ...] = ()

    @property
    def model(self) -> tuple[str, int | None, str | None]:
        """What two GPUs of one model have in common."""
        return self.name, self.memory_bytes, self.compute_capability

    @property
    def whole(self) -> Gpu:
        """The GPU itself, which has the clocks and the temperature of its slices."""
        return self.parent or self


@dataclass(frozen=True)
class Visible:
    """The GPUs that a CUDA program sees, in its order. TensorFlow uses the first.

    Attributes:
        gpus: empty without a driver, without a GPU, or if all are hidden.
        candidates: if it is not known which GPUs these are, those of which each may be the first; else empty. Then
            `gpus` has as many of them as CUDA shows, or all if they are of different models.
        driver: version of the driver.
        driver_cuda: newest version of CUDA that the driver supports.
    """

    gpus: tuple[Gpu, ...]
    candidates: tuple[Gpu, ...] = ()
    driver: str | None = None
    driver_cuda: str | None = None

    @property
    def identified(self) -> bool:
        """Whether it is known which GPUs these are."""
        return not self.candidates


@contextmanager
def nvml() -> Iterator[Any]:
    """The driver's management library, initialised for the block; None without a driver. Blocks may be nested."""
    import pynvml

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
        return _installed(library)


def visible(variables: Mapping[str, str] = os.environ, *, model_only: bool = False) -> Visible:
    """The GPUs that a CUDA program with these environment variables uses.

    Args:
        variables: the environment of the program.
        model_only: whether it does not matter which of several GPUs of one model they are. Asking CUDA takes seconds.
    """
    with nvml() as library:
        found = select(_installed(library), variables, lambda: _ask_cuda(variables), model_only=model_only)
        return found if library is None else _with_versions(found, library)


def are_hidden(machine: Sequence[Gpu], variables: Mapping[str, str] = os.environ) -> bool:
    """Whether `CUDA_VISIBLE_DEVICES` hides all of these GPUs, of which a program would see some without it."""

    def has_any(seen: Mapping[str, str]) -> bool:
        return bool(select(machine, seen, lambda: None).gpus)

    return "CUDA_VISIBLE_DEVICES" in variables and has_any({}) and not has_any(variables)


def select(
    machine: Sequence[Gpu],
    variables: Mapping[str, str],
    ask_cuda: Callable[[], Sequence[str] | None],
    *,
    model_only: bool = False,
) -> Visible:
    """Which GPUs of a machine CUDA shows.

    Args:
        machine: its GPUs, in the order of the PCI bus.
        variables: the environment of the program.
        ask_cuda: returns the UUIDs in CUDA's order without their prefixes; None if CUDA does not answer. Called only
            where NVML's answers leave it open.
        model_only: as in `visible`.
    """
    requested = variables.get("CUDA_VISIBLE_DEVICES")
    usable = [gpu for gpu in machine if gpu.uuid and (gpu.slices or not gpu.is_partitioned)]
    entries = [str(index) for index in range(len(usable))] if requested is None else requested.split(",")
    chosen, has_index, may_choose_slice = list[Gpu](), False, False
    for entry in map(str.strip, entries):
        gpu = _find(entry, usable)
        if gpu is None:
            break
        has_index |= entry.isdecimal()
        may_choose_slice |= len(gpu.slices) > 1  # CUDA uses the first, and NVML's order need not be CUDA's
        if gpu not in chosen:
            chosen.append(gpu)
    in_known_order = len(usable) <= 1 or not has_index or variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not chosen or (in_known_order and not may_choose_slice):
        return Visible(_as_cuda_shows(chosen))
    candidates = tuple(part for gpu in usable for part in gpu.slices) or tuple(usable)
    are_alike = len({gpu.model for gpu in candidates}) == 1
    answered = None if are_alike and model_only else _by_uuid(ask_cuda(), usable)
    if answered is not None:
        return Visible(tuple(answered))
    return Visible(_as_cuda_shows(chosen) if are_alike else candidates, candidates)


def _find(entry: str, usable: Sequence[Gpu]) -> Gpu | None:
    """The GPU or slice that an entry of `CUDA_VISIBLE_DEVICES` names; None if it is not valid or not unique."""
    if entry.isdecimal():
        return usable[int(entry)] if int(entry) < len(usable) else None
    if old := re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", entry):  # drivers before 470
        parent, instance = _find(old[1], usable), (int(old[2]), int(old[3]))
        return next((part for part in parent.slices if part.instance == instance), None) if parent else None
    if not re.match(r"(GPU|MIG)-.", entry):
        return None
    devices = [*usable, *(part for gpu in usable for part in gpu.slices)]
    named = [gpu for gpu in devices if gpu.uuid.lower().startswith(entry.lower())]
    return named[0] if len(named) == 1 else None


def _as_cuda_shows(chosen: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The same with the first slice of partitioned GPUs: one slice alone, or GPUs that have none."""
    found = [gpu.slices[0] if gpu.slices else gpu for gpu in chosen]
    slices = [gpu for gpu in found if gpu.parent is not None]
    return tuple(slices[:1] or found)


def _by_uuid(uuids: Sequence[str] | None, usable: Sequence[Gpu]) -> list[Gpu] | None:
    """The GPUs with these UUIDs; None if one of them is not known."""
    known = {gpu.uuid[4:].lower(): gpu for whole in usable for gpu in (whole, *whole.slices)}
    if uuids is None or not all(name in known for name in uuids):
        return None
    return [known[name] for name in uuids]


def _ask_cuda(variables: Mapping[str, str]) -> list[str] | None:
    """What CUDA answers in a process of its own: its driver reads the variables once, and must not be forked."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__],
            env=dict(variables),
            capture_output=True,
            text=True,
            timeout=_CUDA_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split() or None


def cuda_uuids(cuda: Any) -> list[str]:
    """UUIDs in the order of CUDA, without their prefixes. Initialises the driver of this process, without a context.

    Args:
        cuda: CUDA's driver library.

    Raises:
        OSError: a call failed.
    """

    def call(name: str, *arguments: Any) -> None:
        if status := getattr(cuda, name)(*arguments):
            raise OSError(f"{name} returned {status}")

    call("cuInit", 0)
    count, found = ctypes.c_int(), list[str]()
    call("cuDeviceGetCount", ctypes.byref(count))
    get_uuid = "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"  # v2 knows slices
    for ordinal in range(count.value):
        device, octets = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        call("cuDeviceGet", ctypes.byref(device), ordinal)
        call(get_uuid, ctypes.byref(octets), device)
        found.append(str(uuid.UUID(bytes=bytes(octets))))
    return found


def _installed(library: Any) -> tuple[Gpu, ...]:
    if library is None:
        return ()
    try:
        found = [_at(library, index) for index in range(library.nvmlDeviceGetCount())]
    except library.NVMLError as error:
        return (Gpu(name=f"unknown ({error})", uuid=""),)
    return tuple(sorted(found, key=lambda gpu: gpu.pci_bus_id))


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
    found = _supported(library, lambda: library.nvmlDeviceGetMemoryInfo(handle))
    return None if found is None else int(found.total)


def _with_versions(found: Visible, library: Any) -> Visible:
    cuda = _supported(library, library.nvmlSystemGetCudaDriverVersion)
    driver = _supported(library, library.nvmlSystemGetDriverVersion)
    return replace(
        found,
        driver=None if driver is None else _text(driver),
        driver_cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _supported(library: Any, query: Callable[[], Any]) -> Any:
    """The answer; None if this GPU or driver gives none."""
    try:
        return query()
    except library.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    print("\n".join(cuda_uuids(ctypes.CDLL("libcuda.so.1"))))
