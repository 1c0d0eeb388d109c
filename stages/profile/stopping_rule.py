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
    ALONE,
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

    Where the arms of a process live in several blocks, one after the other, the blocks share its time. Where each block
    is one arm, the number of rounds is fixed before the first of them, so that all arms run as many.

    Args:
        plan: the timing protocol.
        target_precision: half-width that every interval should reach, as a ratio.
        baseline: name of the baseline's arm.
        records: the records by arm, to which the runner adds the rounds.

    Attributes:
        timing_seconds: seconds of timing so far.
    """

    def __init__(self, plan: Plan, target_precision: float, baseline: str, records: Mapping[str, ArmRecord]) -> None:
        self.plan, self.target_precision = plan, target_precision
        self._baseline, self._records = baseline, records
        self._out_of_time = False
        self._ended_s = 0.0  # timing seconds at which the last block ended
        self._blocks = 0
        self.timing_seconds = 0.0
        self._fixed_rounds = self._rounds_of_process()

    @property
    def processes(self) -> int:
        """Processes of every arm that were measured."""
        return self._blocks // self.plan.blocks

    @property
    def is_complete(self) -> bool:
        """Whether as many processes of every arm were measured."""
        return self._blocks % self.plan.blocks == 0

    def training_rounds(self) -> Iterator[int]:
        """Yields the numbers of one process's rounds of training until its share of the time is used, at least one."""
        end_s = self._ended_s + self.plan.training_share * self._seconds_of_block()
        yield from self._rounds_until(end_s, self._fixed_rounds[0])

    def inference_rounds(self) -> Iterator[int]:
        """Yields the numbers of its rounds of inference until the rest of its time is used; none without a size."""
        if self.plan.calls:
            yield from self._rounds_until(self._ended_s + self._seconds_of_block(), self._fixed_rounds[1])

    def end_process(self) -> None:
        """Counts the process of each arm of a block as measured."""
        self._ended_s = self.timing_seconds
        self._blocks += 1
        if self.is_complete:
            self._fixed_rounds = self._rounds_of_process()

    def _seconds_of_block(self) -> float:
        return (self.plan.timing_s - self._ended_s) / (self.plan.processes * self.plan.blocks - self._blocks)

    def _rounds_of_process(self) -> tuple[int | None, int | None]:
        """Rounds of training and of inference that each arm of a process runs; None where the time decides."""
        if self.plan.at_once != ALONE or self.processes == self.plan.processes:
            return None, None
        seconds, share = self._seconds_of_block() * self.plan.blocks, self.plan.training_share
        return (
            self._whole_rounds(share * seconds, self.plan.round_s),
            self._whole_rounds((1 - share) * seconds, self.plan.inference_round_s) if self.plan.calls else None,
        )

    def _whole_rounds(self, seconds: float, round_s: float) -> int:
        """Rounds of all arms that fit into so much time, at least one and at most as many as planned."""
        rounds = max(1, int(seconds / round_s))
        self._out_of_time |= self.plan.rounds is None or rounds < self.plan.rounds
        return rounds if self.plan.rounds is None else min(rounds, self.plan.rounds)

    def _rounds_until(self, end_s: float, fixed: int | None) -> Iterator[int]:
        """Yields round numbers until so many seconds of timing are used, and adds the time of the rounds to them.

        Where their number is `fixed`, it decides instead of the time.
        """
        before_s, started_s, number = self.timing_seconds, time.monotonic(), 0
        most = fixed or self.plan.rounds
        try:
            while most is None or number < most:
                if number and not fixed and before_s + time.monotonic() - started_s > end_s:
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
        times = {name: record.times for name, record in self._records.items()}
        return speedups(times, self._baseline, confidence, self.plan.at_once)

    def _is_narrow(self, found: Mapping[str, Mapping[str, Speedup]]) -> bool:
        """Whether every interval is; those of the control without a candidate."""
        return bool(found) and all(
            ratio.half_width < self.target_precision for by_measure in found.values() for ratio in by_measure.values()
        )


def speedups(
    times: Mapping[str, RawTimes], baseline: str, confidence: float, at_once: int | None = None
) -> dict[str, dict[str, Speedup]]:
    """Speed-ups of all candidates by measure, with the control as second baseline; of the control without a candidate.

    Bridging arms are no candidates. Empty without a baseline, or with fewer than two processes. `at_once` as in
    `train_speedup`.
    """
    processes = {name: {row.process for row in of_arm.rounds} for name, of_arm in times.items()}
    if baseline not in times or min(len(found & processes[baseline]) for found in processes.values()) < 2:
        return {}
    tables = {
        name: (pd.DataFrame(map(asdict, of_arm.rounds)), pd.DataFrame(map(asdict, of_arm.calls)))
        for name, of_arm in times.items()
    }
    others = [name for name in times if name != baseline and files.is_variant(name)]
    control = tables.get(files.CONTROL) if others else None
    sizes = sorted({row.batch_size for row in times[baseline].calls})
    return {
        name: speedups_by_measure(tables[baseline], tables[name], sizes, confidence, control, at_once)
        for name in others or [name for name in times if name == files.CONTROL]
    }
