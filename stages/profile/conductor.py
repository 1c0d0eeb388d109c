"""Lets the variants take turns: no import of TensorFlow here, and one process at a time that works."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stages.params import ProfileParams
from stages.profile.arm import Arm
from stages.profile.records import ArmRecord, Call, Round, Step, Task


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
            _warm_up(arms, profile)
            if process == 0:
                _note(arms, records)
            for number in range(profile.rounds):
                _one_round(arms, records, profile, process, number, order)
            for number in range(profile.single_step_rounds):
                _single_steps(arms, records, profile, process, number, order)
            if process == profile.processes - 1:
                for arm in (arm for arm in arms if arm.name in traced):
                    records[arm.name].trace = arm.ask("trace", scratch / arm.name, profile.trace_steps)
    return records


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


def _warm_up(arms: list[Arm], profile: ProfileParams) -> None:
    # Nothing is timed yet, so they may all work at once. The peak of memory is read before the first prediction.
    for arm in arms:
        arm.send("warm_up", profile.warmup_steps)
    for arm in arms:
        arm.answer()


def _note(arms: list[Arm], records: Mapping[str, ArmRecord]) -> None:
    for arm in arms:
        records[arm.name].peak_device_bytes = arm.ask("peak_device_bytes")
        records[arm.name].configuration = arm.ask("configuration")


def _one_round(
    arms: list[Arm],
    records: Mapping[str, ArmRecord],
    profile: ProfileParams,
    process: int,
    number: int,
    order: random.Random,
) -> None:
    steps = profile.steps_per_round
    for position, arm in enumerate(order.sample(arms, len(arms))):
        time_ms = arm.ask("train_round", steps)
        records[arm.name].rounds.append(Round(process, number, position, steps, time_ms))
    for batch_size in profile.inference_batch_sizes:
        for arm in order.sample(arms, len(arms)):
            latencies = arm.ask("infer", batch_size, profile.inference_calls_per_round)
            records[arm.name].calls += [
                Call(process, number, batch_size, call, latency_ms) for call, latency_ms in enumerate(latencies)
            ]


def _single_steps(
    arms: list[Arm],
    records: Mapping[str, ArmRecord],
    profile: ProfileParams,
    process: int,
    number: int,
    order: random.Random,
) -> None:
    for arm in order.sample(arms, len(arms)):
        times_ms = arm.ask("train_steps", profile.steps_per_round)
        records[arm.name].steps += [Step(process, number, step, time_ms) for step, time_ms in enumerate(times_ms)]
