"""Divides the time among the processes, and decides when to stop measuring."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd

from stages import files
from stages.profile.plan import MIN_PROCESSES, Plan
from stages.profile.records import ArmRecord
from stages.results.profile import RawTimes
from stages.stats.speedup import (
    INTERIM_CONFIDENCE,
    Speedup,
    final_confidence,
    interim_looks,
    speedups_by_measure,
)

EndedBy = Literal["target_precision", "max_seconds", "rounds"]


@dataclass(frozen=True)
class Decision:
    """Whether to stop measuring.

    Attributes:
        ended_by: why measuring ends; None if it continues.
        confidence: of each interval at this look, so that all looks together have 95 %.
        looks: how often the intervals have been inspected, this look included.
        speedups: by candidate and measure, at this confidence; empty before the second process.
    """

    ended_by: EndedBy | None
    confidence: float
    looks: int
    speedups: Mapping[str, Mapping[str, Speedup]]


class StoppingRule:
    """Divides the time budget among the processes, and decides after each of them whether to stop.

    The time of a process, and so the number of its rounds, never depends on the measured ratios. Only the decision at
    an interim look does, by their precision, and `interim_looks` accounts for that. Verdicts play no part.

    Args:
        plan: the timing protocol.
        target_precision: half-width that every interval should reach, as a ratio.
        baseline: name of the baseline's arm.
        records: the records by arm, to which the runner adds the rounds.

    Attributes:
        timing_seconds: seconds of timing so far.
        processes: processes of every arm that were measured.
    """

    def __init__(self, plan: Plan, target_precision: float, baseline: str, records: Mapping[str, ArmRecord]) -> None:
        self.plan, self.target_precision = plan, target_precision
        self._baseline, self._records = baseline, records
        self._out_of_time = False
        self._ended_s = 0.0  # timing seconds at which the last process ended
        self.timing_seconds = 0.0
        self.processes = 0

    def training_rounds(self) -> Iterator[int]:
        """Yields the numbers of one process's rounds of training until its share of the time is used, at least one."""
        yield from self._rounds_until(self._ended_s + self.plan.training_share * self._seconds_of_process())

    def inference_rounds(self) -> Iterator[int]:
        """Yields the numbers of its rounds of inference until the rest of its time is used; none without a size."""
        if self.plan.calls:
            yield from self._rounds_until(self._ended_s + self._seconds_of_process())

    def end_process(self) -> None:
        """Counts a process of every arm as measured."""
        self._ended_s = self.timing_seconds
        self.processes += 1

    def _seconds_of_process(self) -> float:
        return (self.plan.timing_s - self._ended_s) / (self.plan.processes - self.processes)

    def _rounds_until(self, end_s: float) -> Iterator[int]:
        """Yields round numbers until so many seconds of timing are used, and adds the time of the rounds to them."""
        before_s, started_s, number = self.timing_seconds, time.monotonic(), 0
        try:
            while self.plan.rounds is None or number < self.plan.rounds:
                if number and before_s + time.monotonic() - started_s > end_s:
                    self._out_of_time = True
                    return
                yield number
                number += 1
        finally:
            self.timing_seconds = before_s + time.monotonic() - started_s

    def decide(self) -> Decision:
        """The decision after the processes measured so far. Has no side effects: repeated calls are equal."""
        due = interim_looks(self.plan.processes)
        earlier = sum(count < self.processes for count in due)
        is_out_of_time = self.processes >= MIN_PROCESSES and self.timing_seconds >= self.plan.timing_s
        if self.processes == self.plan.processes or is_out_of_time:
            confidence = final_confidence(earlier)
            found = self._speedups(confidence)
            exhausted: EndedBy = "max_seconds" if self._out_of_time else "rounds"
            ended_by: EndedBy = "target_precision" if self._is_narrow(found) else exhausted
            return Decision(ended_by, confidence, earlier + 1, found)
        found = self._speedups(INTERIM_CONFIDENCE)
        is_due = self.processes in due
        narrow = is_due and self._is_narrow(found)
        return Decision("target_precision" if narrow else None, INTERIM_CONFIDENCE, earlier + is_due, found)

    def _speedups(self, confidence: float) -> dict[str, dict[str, Speedup]]:
        return speedups({name: record.times for name, record in self._records.items()}, self._baseline, confidence)

    def _is_narrow(self, found: Mapping[str, Mapping[str, Speedup]]) -> bool:
        """Whether every interval is; those of the control without a candidate."""
        return bool(found) and all(
            ratio.half_width < self.target_precision for by_measure in found.values() for ratio in by_measure.values()
        )


def speedups(times: Mapping[str, RawTimes], baseline: str, confidence: float) -> dict[str, dict[str, Speedup]]:
    """Speed-ups of all candidates by measure, with the control as second baseline; of the control without a candidate.

    Bridging arms are no candidates. Empty without a baseline, or with fewer than two processes.
    """
    if baseline not in times or len({row.process for row in times[baseline].rounds}) < 2:
        return {}
    tables = {
        name: (pd.DataFrame(map(asdict, of_arm.rounds)), pd.DataFrame(map(asdict, of_arm.calls)))
        for name, of_arm in times.items()
    }
    others = [name for name in times if name != baseline and files.is_variant(name)]
    control = tables.get(files.CONTROL) if others else None
    sizes = sorted({row.batch_size for row in times[baseline].calls})
    return {
        name: speedups_by_measure(tables[baseline], tables[name], sizes, confidence, control)
        for name in others or [name for name in times if name == files.CONTROL]
    }
