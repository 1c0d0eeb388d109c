"""What the instants of traced steps were spent on, read from an XSpace file.

The times of operations that run at once on several threads, or of kernels on several streams, do not add up to a step.
Here each instant is shared equally by the operations that run then, the innermost on each thread; an instant without
any is the host's. So the shares add up to the traced step. On a GPU the operations are those of its kernels, and a
marked step must end when the device is synchronised.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from halfstep.errors import TraceError
from halfstep.profile.trace.hlo import fusion_dtypes, source_operations
from halfstep.profile.trace.kernels import is_compute, kernel_dtype, uses_tensor_cores
from halfstep.profile.trace.xspace import kernel_operations, parse, programs

_HOST, _GPU, _STREAM = b"/host:CPU", b"/device:GPU", b"Stream"
_INPUT_THREAD = b"tf_data"  # how the names of the threads of an input pipeline begin
_OPERATION = re.compile(r"(?P<name>[^:]+):(?P<type>\w+)")  # an event of the executor
_MARKER = b"train"
_PS_PER_MS = 1e9


class Work(NamedTuple):
    """An operation: its name in the graph, its type, and whether a thread of the input pipeline ran it.

    `dtype` is that of its kernel on a GPU, and `tensor_core` whether the kernel uses tensor cores; None if the name of
    the kernel does not show it, and on a CPU.
    """

    name: str
    type: str
    is_input: bool = False
    dtype: str | None = None
    tensor_core: bool | None = None


@dataclass(frozen=True)
class TracedStep:
    """A step of a trace.

    Attributes:
        step_ms: its time in milliseconds: that of all shares and of the host.
        shares_ms: what each operation takes of it.
        host_ms: instants in which no operation ran.
    """

    step_ms: float
    shares_ms: dict[Work, float]
    host_ms: float


class _Segment(NamedTuple):
    """A time in which one thread ran one operation and none inside of it, in picoseconds."""

    start: int
    end: int
    work: Work


def traced_steps(path: Path) -> list[TracedStep]:
    """Reads the marked steps of a trace, without the first one. Each lasts until the next one begins.

    Raises:
        TraceError: the file is not a trace, has fewer than two marked steps, or shows no operations, as under XLA.
    """
    planes = parse(path).planes
    host = next((plane for plane in planes if plane.name == _HOST), None)
    markers = [] if host is None else sorted(_markers(host))
    if host is None or len(markers) < 2:
        raise TraceError(f"the trace has {len(markers)} marked steps; at least 2 are needed")
    bounds = [start for start, _ in markers[1:]] + [markers[-1][1]]
    gpus = [plane for plane in planes if plane.name.startswith(_GPU) and plane.lines]
    compiled = [program for plane in planes for program in programs(plane)] if gpus else []
    of_instructions, dtypes = source_operations(compiled), fusion_dtypes(compiled)
    streams = [(plane, line) for plane in gpus for line in plane.lines if line.name.startswith(_STREAM)]
    lines = [_kernels(plane, line, of_instructions, dtypes) for plane, line in streams]
    lines = lines or [_operations(host, line) for line in host.lines]
    by_step: list[list[_Segment]] = [[] for _ in bounds[1:]]
    for segment in (found for line in lines for found in _innermost(line, bounds[0], bounds[-1])):
        for step in range(bisect_right(bounds, segment.start) - 1, bisect_left(bounds, segment.end)):
            start, end = max(segment.start, bounds[step]), min(segment.end, bounds[step + 1])
            by_step[step].append(segment._replace(start=start, end=end))
    if not any(by_step):
        raise TraceError("the trace shows no operations, as under XLA on a CPU")
    return [_step(segments, end - start) for segments, (start, end) in zip(by_step, pairwise(bounds), strict=True)]


def _step(segments: Sequence[_Segment], length_ps: int) -> TracedStep:
    shares_ps, busy_ps = _shared(segments)
    shares_ms = {work: share / _PS_PER_MS for work, share in shares_ps.items()}
    return TracedStep(length_ps / _PS_PER_MS, shares_ms, (length_ps - busy_ps) / _PS_PER_MS)


def _markers(plane: Any) -> Iterator[tuple[int, int]]:
    """Start and end of each step marker."""
    names = {entry.key for entry in plane.event_metadata if entry.value.name == _MARKER}
    numbers = {entry.key for entry in plane.stat_metadata if entry.value.name == b"step_num"}
    for line in plane.lines:
        for event in line.events:
            if event.metadata_id in names and any(stat.metadata_id in numbers for stat in event.stats):
                start = line.timestamp_ns * 1000 + event.offset_ps
                yield start, start + event.duration_ps


def _operations(plane: Any, line: Any) -> list[_Segment]:
    """The operations that a thread ran, in the order of their starts, the outer ones first."""
    is_input = line.name.startswith(_INPUT_THREAD)
    known: dict[int, Work | None] = {}
    names = {entry.key: entry.value.name for entry in plane.event_metadata}
    found = []
    for event in line.events:
        number = event.metadata_id
        if number not in known:
            match = _OPERATION.fullmatch(names.get(number, b"").decode("utf-8", errors="replace"))
            known[number] = Work(match["name"], match["type"], is_input) if match else None
        if (work := known[number]) is not None:
            start = line.timestamp_ns * 1000 + event.offset_ps
            found.append(_Segment(start, start + event.duration_ps, work))
    return sorted(found, key=lambda one: (one.start, -one.end))


def _kernels(
    plane: Any, line: Any, of_instructions: Mapping[tuple[str, str], tuple[str, str]], dtypes: Mapping[str, str]
) -> list[_Segment]:
    """What a stream of a GPU ran, in order: kernels by their operation, and copies by their own name.

    Args:
        plane, line: the GPU and the stream.
        of_instructions, dtypes: of the programs that XLA compiled.
    """
    found = []
    for event, kernel, operation, op_type in kernel_operations(plane, line, of_instructions):
        start = line.timestamp_ns * 1000 + event.offset_ps
        dtype = kernel_dtype(kernel) or dtypes.get(kernel)
        used = uses_tensor_cores(kernel, dtype, flagged=False) if is_compute(kernel) else None
        work = Work(operation or kernel, op_type, dtype=dtype, tensor_core=used)
        found.append(_Segment(start, start + event.duration_ps, work))
    return sorted(found, key=lambda one: (one.start, -one.end))


def _innermost(operations: Sequence[_Segment], start: int, end: int) -> Iterator[_Segment]:
    """The times of a thread's operations without those of the operations inside of them, cut to `start` and `end`."""
    running: list[_Segment] = []
    clock = 0

    def piece(until: int) -> Iterator[_Segment]:
        low, high = max(clock, start), min(until, end)
        if high > low:
            yield _Segment(low, high, running[-1].work)

    for begun in (*operations, None):
        while running and (begun is None or running[-1].end <= begun.start):
            yield from piece(running[-1].end)
            clock = max(clock, running.pop().end)
        if begun is not None:
            if running:
                yield from piece(begun.start)
            running.append(begun)
            clock = begun.start


def _shared(segments: Iterable[_Segment]) -> tuple[dict[Work, float], int]:
    """What each operation has of the instants, and the time in which any ran, in picoseconds."""
    shares: dict[Work, float] = defaultdict(float)
    running: Counter[Work] = Counter()
    threads = busy = clock = 0
    for time, change, work in sorted(_bounds(segments), key=lambda bound: bound[0]):
        if threads:
            busy += time - clock
            for other, number in running.items():
                shares[other] += (time - clock) * number / threads
        threads, clock = threads + change, time
        running[work] += change
        if not running[work]:
            del running[work]
    return dict(shares), busy


def _bounds(segments: Iterable[_Segment]) -> Iterator[tuple[int, int, Work]]:
    for segment in segments:
        yield segment.start, 1, segment.work
        yield segment.end, -1, segment.work
