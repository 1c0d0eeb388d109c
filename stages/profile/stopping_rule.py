"""Decides when to stop measuring: all intervals are narrow enough, or the time budget or the rounds are used up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd

from stages import files
from stages.params import ProfileParams
from stages.profile.machine_load import OtherLoad, gpu_state
from stages.profile.records import ArmRecord
from stages.results.profile import Protocol
from stages.stats.speedup import (
    INTERIM_CONFIDENCE,
    MIN_ROUNDS_AT_A_LOOK,
    Speedup,
    final_confidence,
    inference_speedup,
    interim_looks,
    train_speedup,
)

# With fewer processes, Student's t interval is too wide to use: its factor is 12.7 for 2, 4.3 for 3, 3.2 for 4.
MIN_PROCESSES = 4
BUSY_SHARE = 0.05  # of the machine's cores; if other programs keep more than this busy, the protocol has a warning

EndedBy = Literal["target_precision", "max_seconds", "rounds"]


@dataclass(frozen=True)
class Decision:
    """Whether to stop measuring.

    Attributes:
        ended_by: why measuring ends; None if it continues.
        confidence: of each interval at this look, so that all looks together have 95 %.
        looks: how often the intervals have been inspected, this look included.
    """

    ended_by: EndedBy | None
    confidence: float
    looks: int


class StoppingRule:
    """Divides the time budget among the processes, and decides after each of them whether to stop.

    The time of a process, and so the number of its rounds, never depends on the measured ratios. Only the decision at
    an interim look does, and `interim_looks` accounts for that.

    Args:
        profile: the timing protocol.
        baseline: name of the baseline's arm.
        records: the records by arm, to which the runner adds the rounds.
    """

    def __init__(self, profile: ProfileParams, baseline: str, records: Mapping[str, ArmRecord]) -> None:
        self._profile, self._baseline, self._records = profile, baseline, records
        self._used_s = 0.0
        self._processes = 0
        self._out_of_time = False
        self._load = OtherLoad()
        self._gpus_before = gpu_state()

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Adds the duration of the block, and the other load during it, as one process."""
        started_s = time.monotonic()
        with self._load.counted():
            yield
        self._used_s += time.monotonic() - started_s
        self._processes += 1

    def rounds(self) -> Iterator[int]:
        """Yields the round numbers of one process, at least one, until its share of the time budget is used up."""
        share_s = (self._profile.max_seconds - self._used_s) / (self._profile.processes - self._processes)
        ends_s = time.monotonic() + share_s
        for number in range(self._profile.rounds):
            if number and time.monotonic() > ends_s:
                self._out_of_time = True
                return
            yield number

    def decide(self) -> Decision:
        """The decision after the processes measured so far. Has no side effects: repeated calls are equal."""
        due = [count for count in interim_looks(self._profile.processes) if self._rounds(count) >= MIN_ROUNDS_AT_A_LOOK]
        earlier = sum(count < self._processes for count in due)
        is_last = self._processes == self._profile.processes
        if is_last or (self._processes >= MIN_PROCESSES and self._used_s >= self._profile.max_seconds):
            confidence = final_confidence(earlier)
            exhausted: EndedBy = "max_seconds" if self._out_of_time else "rounds"
            return Decision("target_precision" if self._is_narrow(confidence) else exhausted, confidence, earlier + 1)
        if self._processes not in due:
            return Decision(None, INTERIM_CONFIDENCE, earlier)
        narrow = self._is_narrow(INTERIM_CONFIDENCE)
        return Decision("target_precision" if narrow else None, INTERIM_CONFIDENCE, earlier + 1)

    def protocol(self, decision: Decision, warnings: Iterable[str] = ()) -> Protocol:
        """The protocol of the measurement that `decision` ended."""
        assert decision.ended_by is not None, "the measurement has not ended"
        return Protocol(
            confidence=decision.confidence,
            processes=self._processes,
            rounds=self._rounds(self._processes),
            timing_seconds=self._used_s,
            ended_by=decision.ended_by,
            target_precision=self._profile.target_precision,
            interim_looks=decision.looks,
            other_load_cores=self._load.cores(),
            gpus=(*self._gpus_before, *gpu_state()),
            warnings=(*warnings, *self._load.warnings(BUSY_SHARE)),
        )

    def _rounds(self, processes: int) -> int:
        """Number of rounds in the first `processes` processes."""
        return sum(row.process < processes for row in next(iter(self._records.values())).times.rounds)

    def _is_narrow(self, confidence: float) -> bool:
        ratios = speedups(self._records, self._baseline, self._profile, confidence)
        return all(ratio.half_width < self._profile.target_precision for ratio in ratios)


def speedups(
    records: Mapping[str, ArmRecord], baseline: str, profile: ProfileParams, confidence: float
) -> list[Speedup]:
    """Speed-ups of all candidates in training and at each inference batch size; of the control without a candidate."""
    if baseline not in records:
        return []
    candidates = [name for name in records if name not in (baseline, files.CONTROL)] or [files.CONTROL]
    rounds = {name: pd.DataFrame(map(asdict, record.times.rounds)) for name, record in records.items()}
    calls = {name: pd.DataFrame(map(asdict, record.times.calls)) for name, record in records.items()}
    measured = [name for name in candidates if name in records]
    return [train_speedup(rounds[baseline], rounds[name], confidence) for name in measured] + [
        inference_speedup(calls[baseline], calls[name], batch_size, confidence)
        for name in measured
        for batch_size in profile.inference_batch_sizes
    ]
