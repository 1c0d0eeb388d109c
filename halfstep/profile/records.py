"""A measurement with the raw records of its arms."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from halfstep.params.schema import Variant
from halfstep.profile.plan import Plan
from halfstep.results.audit import ModelAudit
from halfstep.results.profile import AccountRow, Configuration, Ending, InForce, Protocol, RawTimes
from halfstep.system.records import Field
from halfstep.words.text import MIB

FULL_DISK = os.strerror(errno.ENOSPC)  # in the message of a worker that cannot write what it compiled


@dataclass(frozen=True)
class TraceRecord:
    """A trace of `marked_steps` steps, and the time of a step with and without the profiler, in milliseconds."""

    directory: Path
    marked_steps: int
    plain_step_time_ms: float
    traced_step_time_ms: float
    graph_dtypes: Mapping[str, str]


class TracedStretch(NamedTuple):
    """Traced steps one after the other: the mean time of a step, and the rows that add up to it."""

    step_ms: float
    rows: list[AccountRow]


@dataclass(frozen=True)
class ArmSettings:
    """How one arm runs, as its worker reports it. `warning` is for the reader of the results."""

    configuration: Configuration
    in_force: InForce
    warning: str | None = None


@dataclass(frozen=True)
class FirstStep:
    """The first step of a process.

    Attributes:
        seconds: it takes, traced, and compiled or loaded.
        cpu_s: processor seconds of the process until its end, with the imports.
    """

    seconds: float
    cpu_s: float


@dataclass(frozen=True)
class Calibration:
    """Costs of one arm alone, from which the protocol is planned.

    Attributes:
        step_time_ms: time of a training step; None where training is not measured.
        input_time_ms: time of the input pipeline for one batch, in all of its threads together.
        buffered_batches: batches that the input pipeline had prepared before the first step that waited.
        peak_memory_bytes: peak during these training steps: of the GPU's allocator, on a CPU of the resident memory;
            None if it cannot be read.
        latency_ms: time of a steady call by batch size, or of those that are timed together.
        cold_calls: calls by batch size until the latency is steady.
    """

    step_time_ms: float | None
    input_time_ms: float
    buffered_batches: int
    peak_memory_bytes: int | None
    latency_ms: Mapping[int, float]
    cold_calls: Mapping[int, int]

    @property
    def peak_mib(self) -> float | None:
        """The peak memory in MiB."""
        return None if self.peak_memory_bytes is None else self.peak_memory_bytes / MIB


@dataclass
class ArmRecord:
    """Everything that was measured of one arm with its entry of `variants`.

    Attributes:
        calibration: None for a bridging arm.
        trace: None for a bridging arm, and where it failed.
        same_weights: by seed, the file with what the baseline's weights give in this arm's precision.
        audit: of its model; None for the control and a bridging arm, and where it failed.
        failed: by the name of an extra, why it is absent.
        first_step: of a process that compiled what it runs; None for a bridging arm, and where all were loaded.
        loaded_s: seconds of the first step of a process that loaded what another one compiled; None if none did.
    """

    entry: Variant
    settings: ArmSettings
    calibration: Calibration | None = None
    times: Annotated[RawTimes, Field(exclude=True)] = field(default_factory=RawTimes)  # written by repeat
    trace: TraceRecord | None = None
    same_weights: dict[int, Path] = field(default_factory=dict)
    audit: ModelAudit | None = None
    failed: dict[str, str] = field(default_factory=dict)
    first_step: FirstStep | None = None
    loaded_s: float | None = None


@dataclass
class Looks:
    """How often the interval of one measure of a candidate was inspected, and how the measure ended.

    Attributes:
        interim: looks before the time was up.
        last: looks when it was up; after all but the last one the measure went on.
        ending: None while it goes on.
    """

    interim: int = 0
    last: int = 0
    ending: Ending | None = None


@dataclass
class Measurement:
    """A measurement so far: what the schedule, the turns and the rule work with, and what is kept after each repeat.

    Attributes:
        asked: the parameters that say how much is measured.
        plan: lengths of turns and repeats; None before an arm has run.
        repeats: number of complete repeats.
        timing_s, account_s, stage_s: seconds of timing, of short traces, and of the stage, in all sessions.
        counted_s, other_busy_s: seconds of the rounds, and what other programs used of the processors in them.
        records: what is known of each arm, by name; its times are in files of their own.
        looks: by candidate and measure.
        seconds: spent on each arm: its turns, and its share of the start-up; without short traces.
        compilations: of each arm that its repeats share; None on a CPU, and where each process compiled for itself.
        trained: sha256 of the baseline's trainings whose weights were evaluated, by seed; empty if none was.
        finished: whether its results were written.
        resumed: how many of the repeats were taken over from an earlier session.
        ended: how it went; None before its end.
    """

    asked: dict[str, float | None]
    plan: Plan | None = None
    repeats: int = 0
    timing_s: float = 0.0
    account_s: float = 0.0
    stage_s: float = 0.0
    counted_s: float = 0.0
    other_busy_s: float = 0.0
    records: dict[str, ArmRecord] = field(default_factory=dict)
    looks: dict[str, dict[str, Looks]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    compilations: int | None = None
    trained: dict[int, str] = field(default_factory=dict)
    finished: bool = False
    resumed: Annotated[int, Field(exclude=True)] = 0
    ended: Annotated[Protocol | None, Field(exclude=True)] = None

    @property
    def endings(self) -> dict[str, dict[str, Ending]]:
        """Why and when measures ended, by candidate and measure."""
        by_candidate = {
            candidate: {measure: looks.ending for measure, looks in of_one.items() if looks.ending is not None}
            for candidate, of_one in self.looks.items()
        }
        return {candidate: endings for candidate, endings in by_candidate.items() if endings}

    @property
    def protocol(self) -> Protocol:
        """How it went."""
        assert self.ended is not None, "it has not ended"
        return self.ended

    @property
    def trace_steps(self) -> int:
        """Training steps in a trace."""
        return self.plan.trace_steps if self.plan else 0

    def drop_weights(self) -> None:
        """Forgets what the weights of the baseline gave in each precision: there are others now."""
        for record in self.records.values():
            record.same_weights.clear()

    def reopen(self) -> None:
        """All measures go on; the looks that were taken stay paid for."""
        for of_one in self.looks.values():
            for looks in of_one.values():
                looks.ending = None
