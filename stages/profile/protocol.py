"""How long is measured: until the intervals are narrow, or the time is up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Literal

import pandas as pd

from stages import files
from stages.params import ProfileParams
from stages.profile.load import OtherLoad, gpu_state
from stages.profile.records import ArmRecord, Protocol
from stages.speedup import (
    EARLY_CONFIDENCE,
    FEWEST_ROUNDS_AT_A_LOOK,
    Speedup,
    early_looks,
    inference_speedup,
    last_confidence,
    train_speedup,
)

# An interval over fewer processes is hardly one: Student's factor is 12.7 for two, 4.3 for three, 3.2 for four.
FEWEST_PROCESSES = 4
BUSY_SHARE = 0.05  # of the machine, by other programs; more than that is said


class Course:
    """The course of one measurement: how much time a process gets, when intervals are looked at, what ended it.

    The time that a process gets, and so the number of rounds, never depends on the ratios that were seen. Whether a
    look ends the measurement does, which is what `early_looks` pays for.
    """

    def __init__(self, profile: ProfileParams, baseline: str, records: Mapping[str, ArmRecord]) -> None:
        self._profile, self._baseline, self._records = profile, baseline, records
        self._used_s = 0.0
        self._processes = 0
        self._looks_held = 0
        self._confidence = last_confidence(0)
        self._ended_by: Literal["target_precision", "max_seconds", "rounds"] = "max_seconds"
        self._cut_short = False
        self._load = OtherLoad()
        self._gpus = gpu_state()
        self._warnings: list[str] = []

    def warn(self, lines: Iterable[str]) -> None:
        """Lines that stand with the numbers."""
        self._warnings += lines

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Around the rounds of one process: this is the time that counts."""
        started_s = time.monotonic()
        with self._load.counted():
            yield
        self._used_s += time.monotonic() - started_s
        self._processes += 1

    def rounds(self) -> Iterator[int]:
        """Numbers of the rounds of one process, at least one, until its share of the time is used up."""
        share_s = (self._profile.max_seconds - self._used_s) / (self._profile.processes - self._processes)
        ends_s = time.monotonic() + share_s
        for number in range(self._profile.rounds):
            if number and time.monotonic() > ends_s:
                self._cut_short = True
                return
            yield number

    def is_over(self) -> bool:
        """After each process: whether this was the last, because of a look, the time or the number of processes."""
        last = self._processes == self._profile.processes
        out_of_time = self._processes >= FEWEST_PROCESSES and self._used_s >= self._profile.max_seconds
        if last or out_of_time:
            self._confidence = last_confidence(self._looks_held)
            narrow = self._is_narrow(self._confidence)
            self._ended_by = "target_precision" if narrow else "max_seconds" if self._cut_short else "rounds"
            self._looks_held += 1
            return True
        if self._processes not in early_looks(self._profile.processes) or self._rounds() < FEWEST_ROUNDS_AT_A_LOOK:
            return False
        self._looks_held += 1
        if not self._is_narrow(EARLY_CONFIDENCE):
            return False
        self._confidence, self._ended_by = EARLY_CONFIDENCE, "target_precision"
        return True

    def protocol(self) -> Protocol:
        """How the measurement went."""
        return Protocol(
            confidence=self._confidence,
            processes=self._processes,
            rounds=self._rounds(),
            timing_seconds=self._used_s,
            ended_by=self._ended_by,
            target_precision=self._profile.target_precision,
            looks_held=self._looks_held,
            other_load_cores=self._load.cores(),
            machine=(*self._gpus, *gpu_state()),
            warnings=(*self._warnings, *self._load.warnings(BUSY_SHARE)),
        )

    def _rounds(self) -> int:
        return len(next(iter(self._records.values())).rounds)

    def _is_narrow(self, confidence: float) -> bool:
        ratios = speedups(self._records, self._baseline, self._profile, confidence)
        return all(ratio.half_width < self._profile.target_precision for ratio in ratios)


def speedups(
    records: Mapping[str, ArmRecord], baseline: str, profile: ProfileParams, confidence: float
) -> list[Speedup]:
    """Every speed-up over the baseline, of training and of inference; the control's where there is no candidate."""
    candidates = [name for name in records if name not in (baseline, files.CONTROL)] or [files.CONTROL]
    if baseline not in records:
        return []
    rounds, calls = (
        {name: pd.DataFrame([asdict(row) for row in getattr(record, kind)]) for name, record in records.items()}
        for kind in ("rounds", "calls")
    )
    found = [train_speedup(rounds[baseline], rounds[name], confidence) for name in candidates if name in rounds]
    return found + [
        inference_speedup(calls[baseline], calls[name], batch_size, confidence)
        for name in candidates
        if name in calls
        for batch_size in profile.inference_batch_sizes
    ]
