"""Lets the variants take turns: no import of TensorFlow here, and one process at a time that works."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stages.params import ProfileParams
from stages.profile.arm import Arm
from stages.profile.records import ArmRecord, Call, Round, Step, Task

MIN_ROUNDS = 2  # in each process


def measure(
    tasks: Mapping[str, Task], profile: ProfileParams, *, traced: frozenset[str], scratch: Path
) -> dict[str, ArmRecord]:
    """Measures all arms, taking turns.

    Args:
        tasks: a `Task` for each arm's name.
        profile: the timing protocol.
        traced: names of the arms that are traced as well.
        scratch: a folder for the traces.

    Returns:
        The raw records by arm.

    Raises:
        ProfileError: a worker could not do its part.
    """
    records = {name: ArmRecord() for name in tasks}
    order = random.Random(profile.seed)
    for process in range(profile.processes):
        with _started(tasks) as arms:
            turns = _Turns(arms, records, profile, order, process)
            turns.warm_up()
            for number in _rounds(profile):
                turns.train(number)
                turns.infer(number)
                if number < profile.single_step_rounds:
                    turns.train_step_by_step(number)
            if process == profile.processes - 1:  # last, because a profiler may leave something running behind
                turns.trace(traced, scratch)
    return records


def _rounds(profile: ProfileParams) -> Iterator[int]:
    """Numbers of the rounds of one process, until its share of `profile.max_seconds` is used up.

    What ends them is the clock, never the ratios that were seen: looking at those would narrow an interval by luck.
    """
    ends_s = time.monotonic() + profile.max_seconds / profile.processes
    for number in range(profile.rounds):
        if number >= MIN_ROUNDS and time.monotonic() > ends_s:
            return
        yield number


@contextmanager
def _started(tasks: Mapping[str, Task]) -> Iterator[list[Arm]]:
    arms: list[Arm] = []
    try:
        for name, task in tasks.items():
            arms.append(Arm(name, task))
        yield arms
    finally:
        for arm in arms:
            arm.stop()


@dataclass(frozen=True)
class _Turns:
    """The arms of one start of the processes, and where their raw times go."""

    arms: list[Arm]
    records: Mapping[str, ArmRecord]
    profile: ProfileParams
    order: random.Random
    process: int

    def warm_up(self) -> None:
        """All at once, for nothing is timed yet. The peak of memory is read before the first prediction."""
        for arm in self.arms:
            arm.send("warm_up", self.profile.warmup_steps)
        for arm in self.arms:
            arm.answer()
        for arm in self.arms:
            self.records[arm.name].peak_device_bytes = arm.ask("peak_device_bytes")
            self.records[arm.name].configuration = arm.ask("configuration")

    def train(self, number: int) -> None:
        """A round in which the clock is read once a turn."""
        steps = self.profile.steps_per_round
        for position, arm in enumerate(self._shuffled()):
            time_ms = arm.ask("train_round", steps)
            self.records[arm.name].rounds.append(Round(self.process, number, position, steps, time_ms))

    def train_step_by_step(self, number: int) -> None:
        """A round in which the device is waited for after each step."""
        for arm in self._shuffled():
            times_ms = arm.ask("train_steps", self.profile.steps_per_round)
            self.records[arm.name].steps += [
                Step(self.process, number, step, time_ms) for step, time_ms in enumerate(times_ms)
            ]

    def infer(self, number: int) -> None:
        """A round of predictions at each batch size."""
        for batch_size in self.profile.inference_batch_sizes:
            for arm in self._shuffled():
                latencies_ms = arm.ask("infer", batch_size, self.profile.inference_calls_per_round)
                self.records[arm.name].calls += [
                    Call(self.process, number, batch_size, call, latency_ms)
                    for call, latency_ms in enumerate(latencies_ms)
                ]

    def trace(self, traced: frozenset[str], scratch: Path) -> None:
        """A trace of each arm in `traced`, apart from everything that is timed."""
        for arm in self.arms:
            if arm.name in traced:
                self.records[arm.name].trace = arm.ask("trace", scratch / arm.name, self.profile.trace_steps)

    def _shuffled(self) -> list[Arm]:
        return self.order.sample(self.arms, len(self.arms))
