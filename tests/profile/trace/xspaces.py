"""Builds profiler traces of any device, with TensorFlow's schema but without importing TensorFlow."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

HOST = "/host:CPU"
PS_PER_US = 1_000_000
Stat = int | str


def _load_schema() -> ModuleType:
    package = importlib.util.find_spec("tensorflow")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "tsl/profiler/protobuf/xplane_pb2.py"
    spec = importlib.util.spec_from_file_location("xplane_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    schema = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(schema)
    return schema


SCHEMA = _load_schema()


@dataclass(frozen=True)
class Kernel:
    """A kernel of each step, with its time in microseconds and its statistics in the trace."""

    name: str
    duration_us: int
    operation: str = "dense/MatMul:MatMul"
    shapes: str = ""
    has_details: bool = True


@dataclass(frozen=True)
class HostOperation:
    """An operation of the host in each step; its name is `name:type` or `Iterator::…`, its time is in microseconds."""

    name: str
    duration_us: int


@dataclass
class Space:
    """An unfinished trace. Times are microseconds from its start."""

    message: Any = field(default_factory=SCHEMA.XSpace)

    def plane(self, name: str) -> Any:
        for plane in self.message.planes:
            if plane.name == name:
                return plane
        return self.message.planes.add(name=name, id=len(self.message.planes))

    def line(self, plane: str, name: str) -> Any:
        lines = self.plane(plane).lines
        for line in lines:
            if line.name == name:
                return line
        return lines.add(name=name, id=len(lines) + 1, timestamp_ns=1000)

    def event(self, plane: str, line: str, name: str, start_us: int, duration_us: int, **stats: Stat) -> None:
        owner = self.plane(plane)
        event = self.line(plane, line).events.add(
            metadata_id=_metadata(owner.event_metadata, name),
            offset_ps=start_us * PS_PER_US,
            duration_ps=duration_us * PS_PER_US,
        )
        for stat, value in stats.items():
            added = event.stats.add(metadata_id=_metadata(owner.stat_metadata, stat))
            if isinstance(value, str):
                added.str_value = value
            else:
                added.int64_value = value

    def stat(self, plane: str, name: str, value: int) -> None:
        owner = self.plane(plane)
        owner.stats.add(metadata_id=_metadata(owner.stat_metadata, name), int64_value=value)

    def save(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self.message.hostnames:
            self.message.hostnames.append(path.name)  # the profiler writes it last
        path.write_bytes(self.message.SerializeToString())
        return path


def _metadata(entries: Any, name: str) -> int:
    for key, entry in entries.items():
        if entry.name == name:
            return int(key)
    key = len(entries) + 1
    entries[key].id = key
    entries[key].name = name
    return key


def gpu_space(
    kernels: Iterable[Kernel],
    *,
    steps: int = 4,
    devices: int = 1,
    gap_us: int = 0,
    markers: bool = True,
    on_device: Mapping[int, Sequence[Kernel]] | None = None,
) -> Space:
    """A trace of `steps` training steps in which each of `devices` GPUs runs `kernels`, `gap_us` apart.

    A GPU's step lasts from the start of its first kernel to the end of its last. `on_device` replaces the kernels of
    some devices.
    """
    space, kernels, correlation = Space(), tuple(kernels), 0
    kernels_of = {device: (on_device or {}).get(device, kernels) for device in range(devices)}
    step_us = 200 + max(sum(kernel.duration_us + gap_us for kernel in own) for own in kernels_of.values())
    for device in range(devices):
        plane = space.plane(_gpu(device))
        for name, value in (("compute_cap_major", 9), ("compute_cap_minor", 0), ("core_count", 132)):
            plane.stats.add(metadata_id=_metadata(plane.stat_metadata, name), int64_value=value)
    for step in range(steps):
        start = step * step_us
        if markers:
            space.event(HOST, "python", "train", start, step_us, step_num=step, _r=1)
        for device in range(devices):
            at = start + 100
            for kernel in kernels_of[device]:
                correlation += 1
                launch = {"correlation_id": correlation, "device_id": device}
                space.event(HOST, "python", "cuLaunchKernel", start + 1 + correlation % 50, 1, **launch)
                stats = _stats(kernel, launch)
                space.event(_gpu(device), "Stream #1(Compute)", kernel.name, at, kernel.duration_us, **stats)
                at += kernel.duration_us + gap_us
    return space


def _gpu(device: int) -> str:
    return f"/device:GPU:{device}"


def _stats(kernel: Kernel, launch: Mapping[str, Stat]) -> dict[str, Stat]:
    stats = dict(launch)
    if kernel.has_details:
        stats["kernel_details"] = "regs:32 static_shared:0 dynamic_shared:0 grid:1,1,1 block:128,1,1 occ_pct:50"
    if kernel.operation:
        stats["tf_op"] = kernel.operation
    if kernel.shapes:
        stats["shape"] = kernel.shapes
    return stats


def cpu_space(operations: Iterable[HostOperation], *, steps: int = 4, input_us: int = 0) -> Space:
    """A trace of `steps` training steps of 1,000 us, of which 900 are the step's function.

    The function waits `input_us` for its input; in parallel, another thread runs `operations` one after the other.
    """
    space, operations = Space(), tuple(operations)
    for step in range(steps):
        start = step * 1000
        space.event(HOST, "python", "train", start, 1000, step_num=step, _r=1)
        space.event(HOST, "python", "multi_step_on_iterator", start + 50, 900)
        if input_us:
            space.event(HOST, "python", "IteratorGetNextOp::DoCompute", start + 60, input_us)
        at = start + 50
        for operation in operations:
            space.event(HOST, "tf_Compute", operation.name, at, operation.duration_us)
            at += operation.duration_us
    return space


def add_allocation(space: Space, allocator: str, peak_bytes: int, at_us: int = 500) -> None:
    """Adds an allocation after which `allocator` holds `peak_bytes`."""
    space.event(
        HOST, "python", "MemoryAllocation", at_us, 0,
        allocator_name=allocator, bytes_reserved=0, bytes_allocated=peak_bytes, bytes_available=1 << 30,
        peak_bytes_in_use=peak_bytes, requested_bytes=peak_bytes, allocation_bytes=peak_bytes, addr=4096, tf_op="step",
    )  # fmt: skip


def add_program(space: Space, name: str, program: bytes) -> None:
    """Adds a program that XLA compiled (HLO), as the profiler stores it."""
    plane = space.plane("/host:metadata")
    entry = plane.event_metadata[_metadata(plane.event_metadata, name)]
    entry.stats.add(metadata_id=_metadata(plane.stat_metadata, "Hlo Proto"), bytes_value=program)
