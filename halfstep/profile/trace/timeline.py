"""What the instants of traced steps were spent on, read from an XSpace file.

The times of operations that run at once on several threads, or of kernels on several streams, do not add up to a step.
Here each instant is shared equally by the operations that run then, the innermost on each thread; an instant without
any is idle, on a GPU by its cause (`trace.idle`). So the shares add up to the traced step. On a GPU the operations are
those of its kernels, and a marked step must end when the device is synchronised.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from halfstep.errors import TraceError
from halfstep.profile.trace.idle import waiting
from halfstep.profile.trace.model import Operation
from halfstep.profile.trace.segments import HOST, Segment, gpu_streams, host_threads, innermost
from halfstep.profile.trace.xspace import marker_spans, parse
from halfstep.results.profile import HOST as HOST_KIND

_PS_PER_MS = 1e9


@dataclass(frozen=True)
class TracedStep:
    """A step of a trace.

    Attributes:
        step_ms: its time in milliseconds: that of all shares and of the instants without an operation.
        shares_ms: what each operation takes of it; the operations themselves have no times.
        idle_ms: instants in which no operation ran, by their kind in an account.
    """

    step_ms: float
    shares_ms: dict[Operation, float]
    idle_ms: dict[str, float]


def traced_steps(path: Path, turns: Sequence[int] = ()) -> list[TracedStep]:
    """Reads the marked steps of a trace, without the first one. Each lasts until the next one begins.

    Args:
        path: of the XSpace file.
        turns: marked steps of each turn, where the process stands still between turns: the last step of a turn ends
            with its marker.

    Raises:
        TraceError: the file is not a trace, has fewer than two marked steps, or shows no operations.
    """
    planes = parse(path).planes
    host = next((plane for plane in planes if plane.name == HOST), None)
    markers = [] if host is None else sorted(marker_spans(host))
    if host is None or len(markers) < 2:
        raise TraceError(f"the trace has {len(markers)} marked steps; at least 2 are needed")
    starts = [start for start, _ in markers[1:]]
    lasts = {number - 2 for number in accumulate(turns)}
    ends = [
        end if place in lasts else begun
        for place, ((_, end), begun) in enumerate(zip(markers[1:], [*starts[1:], markers[-1][1]], strict=True))
    ]
    by_step: list[list[Segment]] = [[] for _ in starts]
    of_gpus = gpu_streams(planes)
    threads, idle = of_gpus or host_threads(planes), waiting(planes) if of_gpus else None
    for segment in (piece for thread in threads for piece in innermost(thread, starts[0], ends[-1])):
        for step in range(bisect_right(ends, segment.start), bisect_left(starts, segment.end)):
            start, end = max(segment.start, starts[step]), min(segment.end, ends[step])
            by_step[step].append(segment._replace(start=start, end=end))
    if not any(by_step):
        raise TraceError("the trace shows no operations")
    return [_step(segments, start, end, idle) for segments, start, end in zip(by_step, starts, ends, strict=True)]


def _step(
    segments: Sequence[Segment], start: int, end: int, idle: Callable[[int, int], dict[str, float]] | None
) -> TracedStep:
    shares_ps, busy_ps = _shared(segments)
    shares_ms = {operation: share / _PS_PER_MS for operation, share in shares_ps.items()}
    idle_ms = idle(start, end) if idle else {HOST_KIND: (end - start - busy_ps) / _PS_PER_MS}
    return TracedStep((end - start) / _PS_PER_MS, shares_ms, idle_ms)


def _shared(segments: Iterable[Segment]) -> tuple[dict[Operation, float], int]:
    """What each operation has of the instants, and the time in which any ran, in picoseconds."""
    shares: dict[Operation, float] = defaultdict(float)
    running: Counter[Operation] = Counter()
    threads = busy = clock = 0
    bounds = [(time, change, one.operation) for one in segments for time, change in ((one.start, 1), (one.end, -1))]
    for time, change, operation in sorted(bounds, key=lambda bound: bound[0]):
        if threads:
            busy += time - clock
            for other, number in running.items():
                shares[other] += (time - clock) * number / threads
        threads, clock = threads + change, time
        running[operation] += change
        if not running[operation]:
            del running[operation]
    return dict(shares), busy
