"""What a GPU waited for: the instants of its steps in which no kernel ran, by cause.

Before each kernel the GPU may wait. Such an instant is, in this order,

- `copy`: a copy runs on a stream of this GPU,
- `launch`: the host is in the call that launches the kernel which runs next, or has ended it and the kernel has not
  begun: the two have the same `correlation_id`,
- `host`: the thread that will launch it runs something else, such as another operation,
- `input`: a thread takes the next element from the input pipeline,
- `other`.

HTA's launch statistics ask the same of PyTorch's traces (Holistic Trace Analysis, pytorch.org/blog/trace-analysis).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, NamedTuple

from halfstep.profile.trace.kernels import is_compute
from halfstep.profile.trace.model import Idle
from halfstep.profile.trace.segments import HOST, streams
from halfstep.profile.trace.xspace import marker_spans, names_of, span

_INPUT = re.compile(r"IteratorGetNext|MultiDeviceIteratorGetNext")
_WORK = re.compile(r"[^:]+:\w+|Executor\w+|ExecutorState::Process|Memory(?:Dea|A)llocation")  # of a thread
_PS_PER_MS = 1e9
Span = tuple[int, int]


class _Launch(NamedTuple):
    start: int
    end: int
    thread: int


def idle_of(planes: Sequence[Any]) -> Idle | None:
    """The idle time of a trace; None without kernels, without steps, or where no kernel has its launch."""
    gpus = [plane for plane in planes if streams(plane)]
    if not gpus:
        return None
    hosts = [plane for plane in planes if plane.name == HOST]
    threads = [(plane, line) for plane in hosts for line in plane.lines]
    launches = dict(_launches(threads))
    inputs = _Spans(_named(plane, line, _INPUT) for plane, line in threads)
    work = [_Spans([_named(plane, line, _WORK, without=_INPUT)]) for plane, line in threads]
    markers = sorted(one for plane in hosts for one in marker_spans(plane))
    found = (idle for plane in gpus if (idle := _of_gpu(plane, launches, inputs, work, markers)) is not None)
    return max(found, key=lambda idle: idle.step_ms, default=None)


def _of_gpu(
    plane: Any, launches: dict[int, _Launch], inputs: _Spans, work: Sequence[_Spans], markers: Sequence[Span]
) -> Idle | None:
    names, kernels, copies = names_of(plane.event_metadata), list[tuple[int, int, int]](), list[Span]()
    for line in streams(plane):
        for event, number in _with_numbers(plane, line):
            start, end = span(line, event)
            if is_compute(names.get(event.metadata_id, "")):
                kernels.append((start, end, number))
            else:
                copies.append((start, end))
    kernels.sort()
    if not any(number in launches for _, _, number in kernels):
        return None
    steps = _steps(plane, kernels, launches, markers)
    if not steps:
        return None
    totals, copying = [0] * len(fields(Idle)), _Spans([copies])
    for start, end in steps:
        totals[0] += end - start
        for low, high, launch in _gaps(kernels, start, end, launches):
            rest = [(low, high)]
            calls = _Spans([[(launch.start, high)]] if launch else [])
            for place, spans in enumerate((copying, calls, work[launch.thread] if launch else _Spans([]), inputs), 2):
                taken, rest = spans.of(rest)
                totals[place] += taken
            totals[-1] += sum(until - since for since, until in rest)
    totals[1] = totals[0] - sum(totals[2:])
    return Idle(*(total / len(steps) / _PS_PER_MS for total in totals))


def _steps(
    plane: Any, kernels: Sequence[tuple[int, int, int]], launches: dict[int, _Launch], markers: Sequence[Span]
) -> list[Span]:
    """The steps of a GPU: those of its plane, or where that has none, of the kernels that each marked step launched."""
    own = sorted(span(line, event) for line in plane.lines if line.name == b"Steps" for event in line.events)
    if not own:
        by_marker: dict[int, list[Span]] = {}
        begins = [start for start, _ in markers]
        for start, end, number in kernels:
            place = bisect_right(begins, launches[number].start) - 1 if number in launches else -1
            if place >= 0 and launches[number].start < markers[place][1]:
                by_marker.setdefault(place, []).append((start, end))
        own = [(min(one)[0], max(end for _, end in one)) for _, one in sorted(by_marker.items())]
    return [*((start, following) for (start, _), (following, _) in pairwise(own)), *own[-1:]]


def _gaps(
    kernels: Sequence[tuple[int, int, int]], start: int, end: int, launches: dict[int, _Launch]
) -> Iterator[tuple[int, int, _Launch | None]]:
    """The times from `start` to `end` without a kernel, each with the launch of the kernel that ends it."""
    clock = start
    for begun, ended, number in kernels:
        if ended <= start:
            continue
        if begun > clock and clock < end:
            yield clock, min(begun, end), launches.get(number)
        if begun >= end:
            return
        clock = max(clock, ended)
    if clock < end:
        yield clock, end, None


class _Spans:
    """Times that are joined where they meet.

    Args:
        groups: of starts and ends, in any order.
    """

    def __init__(self, groups: Iterable[Iterable[Span]]) -> None:
        self._starts, self._ends = list[int](), list[int]()
        for start, end in sorted(one for group in groups for one in group):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def of(self, times: Sequence[Span]) -> tuple[int, list[Span]]:
        """How much of some times is in these, and what is left of them."""
        taken, left = 0, list[Span]()
        for low, high in times:
            clock = low
            for place in range(bisect_right(self._ends, low), bisect_left(self._starts, high)):
                start, end = max(self._starts[place], low), min(self._ends[place], high)
                taken += end - start
                left += [(clock, start)] if start > clock else []
                clock = end
            left += [(clock, high)] if high > clock else []
        return taken, left


def _launches(threads: Sequence[tuple[Any, Any]]) -> Iterator[tuple[int, _Launch]]:
    for thread, (plane, line) in enumerate(threads):
        for event, number in _with_numbers(plane, line):
            yield number, _Launch(*span(line, event), thread)


def _with_numbers(plane: Any, line: Any) -> Iterator[tuple[Any, int]]:
    """The events with what a launch and its kernel have in common."""
    known = {entry.key for entry in plane.stat_metadata if entry.value.name == b"correlation_id"}
    for event in line.events:
        number = next(
            (stat.int64_value or stat.uint64_value for stat in event.stats if stat.metadata_id in known), None
        )
        if number is not None:
            yield event, int(number)


def _named(plane: Any, line: Any, pattern: re.Pattern[str], without: re.Pattern[str] | None = None) -> Iterator[Span]:
    """The times of a thread's events whose names begin so, and are not others."""
    names = names_of(plane.event_metadata)
    chosen = {key for key, name in names.items() if pattern.match(name) and not (without and without.match(name))}
    return (span(line, event) for event in line.events if event.metadata_id in chosen)
