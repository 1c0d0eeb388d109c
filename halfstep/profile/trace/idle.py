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
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from halfstep.profile.trace.kernels import is_compute
from halfstep.profile.trace.model import Idle
from halfstep.profile.trace.segments import HOST, streams
from halfstep.profile.trace.xspace import marker_spans, names_of, span
from halfstep.results.profile import HOST as HOST_KIND
from halfstep.results.profile import IDLE_CAUSES

_INPUT = re.compile(r"IteratorGetNext|MultiDeviceIteratorGetNext")
_WORK = re.compile(r"[^:]+:\w+|Executor\w+|ExecutorState::Process|Memory(?:Dea|A)llocation")  # of a thread
_PS_PER_MS = 1e9
Span = tuple[int, int]


class _Launch(NamedTuple):
    start: int
    end: int
    thread: int


class _Ran(NamedTuple):
    """A kernel or copy, with what it has in common with its launch; -1 without."""

    start: int
    end: int
    number: int
    is_kernel: bool


class Causes:
    """What the threads of the host did while a GPU waited.

    Args:
        planes: of the trace.
    """

    def __init__(self, planes: Sequence[Any]) -> None:
        self.hosts = [plane for plane in planes if plane.name == HOST]
        threads = [(plane, line) for plane in self.hosts for line in plane.lines]
        self.launches = dict(_launches(threads))
        self._inputs = _Spans(_named(plane, line, _INPUT) for plane, line in threads)
        self._work = [_Spans([_named(plane, line, _WORK, without=_INPUT)]) for plane, line in threads]

    def divide(self, ran: Sequence[_Ran], copies: _Spans, start: int, end: int) -> list[int]:
        """The times from `start` to `end` without what ran, in picoseconds: copy, launch, host, input, other."""
        found = [0] * 5
        for low, high, launch in _gaps(ran, start, end, self.launches):
            rest = [(low, high)]
            calls = _Spans([[(launch.start, high)]] if launch else [])
            work = self._work[launch.thread] if launch else _Spans([])
            for place, spans in enumerate((copies, calls, work, self._inputs)):
                taken, rest = spans.of(rest)
                found[place] += taken
            found[-1] += sum(until - since for since, until in rest)
        return found


def idle_of(planes: Sequence[Any]) -> Idle | None:
    """The idle time of a trace; None without kernels, without steps, or where no kernel has its launch."""
    gpus = [plane for plane in planes if streams(plane)]
    if not gpus:
        return None
    causes = Causes(planes)
    markers = sorted(one for plane in causes.hosts for one in marker_spans(plane))
    found = (idle for plane in gpus if (idle := _of_gpu(plane, causes, markers)) is not None)
    return max(found, key=lambda idle: idle.step_ms, default=None)


def waiting(planes: Sequence[Any]) -> Callable[[int, int], dict[str, float]]:
    """Returns what divides a time without kernels and copies on any GPU among the kinds of an account, in milliseconds.

    Where no kernel has its launch, all of it is `HOST`.
    """
    causes = Causes(planes)
    ran = sorted(one for plane in planes for one in _ran(plane))
    kinds = (HOST_KIND, *IDLE_CAUSES, HOST_KIND)
    is_known = any(number in causes.launches for _, _, number, _ in ran)

    def divided(start: int, end: int) -> dict[str, float]:
        times_ms = dict.fromkeys(kinds, 0.0)
        for kind, time_ps in zip(kinds, causes.divide(ran, _Spans([]), start, end), strict=True):
            times_ms[kind if is_known else HOST_KIND] += time_ps / _PS_PER_MS
        return times_ms

    return divided


def _ran(plane: Any) -> Iterator[_Ran]:
    """The kernels and copies of a GPU."""
    names, known = names_of(plane.event_metadata), _correlations(plane)
    for line in streams(plane):
        for event in line.events:
            number, is_kernel = _number(event, known), is_compute(names.get(event.metadata_id, ""))
            yield _Ran(*span(line, event), -1 if number is None else number, is_kernel)


def _of_gpu(plane: Any, causes: Causes, markers: Sequence[Span]) -> Idle | None:
    both = sorted(_ran(plane))
    kernels = [one for one in both if one.is_kernel]
    if not any(one.number in causes.launches for one in kernels):
        return None
    steps = _steps(plane, kernels, causes.launches, markers)
    if not steps:
        return None
    copies = _Spans([[(one.start, one.end) for one in both if not one.is_kernel]])
    parts = [causes.divide(kernels, copies, start, end) for start, end in steps]
    step_ps, waits_ps = sum(end - start for start, end in steps), [sum(of_one) for of_one in zip(*parts, strict=True)]
    return Idle(*(total / len(steps) / _PS_PER_MS for total in (step_ps, step_ps - sum(waits_ps), *waits_ps)))


def _steps(plane: Any, kernels: Sequence[_Ran], launches: dict[int, _Launch], markers: Sequence[Span]) -> list[Span]:
    """The steps of a GPU: those of its plane, or where that has none, of the kernels that each marked step launched."""
    own = sorted(span(line, event) for line in plane.lines if line.name == b"Steps" for event in line.events)
    if not own:
        by_marker: dict[int, list[Span]] = {}
        begins = [start for start, _ in markers]
        for start, end, number, _ in kernels:
            place = bisect_right(begins, launches[number].start) - 1 if number in launches else -1
            if place >= 0 and launches[number].start < markers[place][1]:
                by_marker.setdefault(place, []).append((start, end))
        own = [(min(one)[0], max(end for _, end in one)) for _, one in sorted(by_marker.items())]
    return [*((start, following) for (start, _), (following, _) in pairwise(own)), *own[-1:]]


def _gaps(
    kernels: Sequence[_Ran], start: int, end: int, launches: dict[int, _Launch]
) -> Iterator[tuple[int, int, _Launch | None]]:
    """The times from `start` to `end` without a kernel, each with the launch of the kernel that ends it."""
    clock = start
    for begun, ended, number, _ in kernels:
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
        known = _correlations(plane)
        for event in line.events:
            if (number := _number(event, known)) is not None:
                yield number, _Launch(*span(line, event), thread)


def _correlations(plane: Any) -> set[int]:
    """The statistics of what a launch and its kernel have in common."""
    return {entry.key for entry in plane.stat_metadata if entry.value.name == b"correlation_id"}


def _number(event: Any, known: set[int]) -> int | None:
    numbers = (int(stat.int64_value or stat.uint64_value) for stat in event.stats if stat.metadata_id in known)
    return next(numbers, None)


def _named(plane: Any, line: Any, pattern: re.Pattern[str], without: re.Pattern[str] | None = None) -> Iterator[Span]:
    """The times of a thread's events whose names begin so, and are not others."""
    names = names_of(plane.event_metadata)
    chosen = {key for key, name in names.items() if pattern.match(name) and not (without and without.match(name))}
    return (span(line, event) for event in line.events if event.metadata_id in chosen)
