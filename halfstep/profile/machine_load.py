"""What else affects the timing: load of the processor by other programs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

import psutil

from halfstep.results.profile import OTHER_PROGRAMS
from halfstep.words.text import measure_again

_PROFILES = {("-m", "stages.profile"), ("-m", "halfstep.stages.profile")}  # the second one of `halfstep judge`


class OtherLoad:
    """Number of cores that programs other than this one and its workers kept busy.

    Args:
        stage: what measures.
        seconds: of earlier sessions, as of the attribute.

    Attributes:
        seconds: for which the load was measured, and of processors that other programs used then.
    """

    def __init__(self, stage: str = "profile", seconds: tuple[float, float] = (0.0, 0.0)) -> None:
        self._again = measure_again(stage)
        self.seconds = seconds
        self._measuring: set[str] = set()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Measures the load during the block, and adds it to that of earlier blocks."""
        self._measuring |= measuring_users()
        started_s, machine_s, own_s = time.monotonic(), _machine_busy_s(), _own_busy_s()
        yield
        span_s, other_s = self.seconds
        # The kernel counts in hundredths of a second, so on an idle machine the difference may be negative.
        other_s += max(0.0, (_machine_busy_s() - machine_s) - (_own_busy_s() - own_s))
        self.seconds = (span_s + time.monotonic() - started_s, other_s)
        self._measuring |= measuring_users()

    def cores(self) -> float | None:
        """Mean number of cores that other programs kept busy; None before the first block."""
        span_s, other_s = self.seconds
        return other_s / span_s if span_s else None

    def warnings(self, share: float) -> Iterator[str]:
        """Yields a line if other programs used more than this share of the machine, or other users measured on it."""
        cores, count = self.cores(), psutil.cpu_count() or 1
        if cores is not None and cores > share * count:
            yield (
                f"{OTHER_PROGRAMS} {cores:.2f} of {count} cores during the timing, which widens the intervals: stop "
                f"them, then measure again with `{self._again}`"
            )
        if self._measuring:
            yield (
                f"{', '.join(sorted(self._measuring))} also ran `python -m stages.profile` on this machine during the "
                "timing, and both measurements disturb each other; agree on a time, then measure again with "
                f"`{self._again}`"
            )


def measuring_users() -> set[str]:
    """Other users who run `profile` on this machine, as far as the system shows their processes."""
    own, users = os.getuid(), set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or the system hides it
            if _PROFILES & {*pairwise(process.cmdline())} and process.uids().real != own:
                users.add(f"user {process.username()}")
    return users


def _machine_busy_s() -> float:
    """Busy time of all cores together in seconds, with the time that a hypervisor took away (steal)."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # contained in user and nice
    return float(sum(times) - idle - guest)


def _own_busy_s() -> float:
    """Processor time of this process and its descendants, in seconds."""
    this = psutil.Process(os.getpid())
    busy_s = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            busy_s += times.user + times.system
    return busy_s
