"""Lets the variants take turns: no import of TensorFlow here, and one process at a time that works."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stages.params import ProfileParams
from stages.profile.arm import Arm, Serve
from stages.profile.confounds import refuse_differences
from stages.profile.protocol import Course
from stages.profile.records import ArmRecord, Call, InputRound, Measurement, Round, SameWeights, Step, Task

INPUT_ROUNDS = 6  # in the last process alone: they tell input-bound from compute-bound, and decide nothing


@dataclass(frozen=True)
class Extras:
    """What is done once, in the last processes, apart from everything that is timed.

    Attributes:
        traced: names of the arms that are traced.
        scratch: a folder for the traces.
        trained: folder of the training whose weights the baseline's precision is to compute with, by arm.
    """

    traced: frozenset[str]
    scratch: Path
    trained: Mapping[str, Path]


def measure(
    tasks: Mapping[str, Task], baseline: str, profile: ProfileParams, extras: Extras, run: Serve | None = None
) -> Measurement:
    """Measures all arms, taking turns.

    Args:
        tasks: a `Task` for each arm's name.
        baseline: name of the arm that the others are compared with.
        profile: the timing protocol.
        extras: what is done once beside the timing.
        run: what a worker's process runs, where it is not the usual worker.

    Returns:
        The raw records by arm, and how the measurement went.

    Raises:
        ProfileError: a worker could not do its part, or the arms differ in more than their entries.
    """
    records = {name: ArmRecord() for name in tasks}
    course = Course(profile, baseline, records)
    same_weights: dict[str, SameWeights] = {}
    order = random.Random(profile.seed)
    for process in range(profile.processes):
        with _started(tasks, run) as arms:
            turns = _Turns(arms, records, profile, order, process)
            turns.warm_up()
            refuse_differences(baseline, records)
            if process == 0:
                course.warn(arms[0].ask("warnings"))
            with course.timing():
                for number in course.rounds():
                    turns.play(number)
            if course.is_over():
                turns.tell_input_from_compute()
                turns.trace(extras)
                same_weights = turns.compare_weights(baseline, extras.trained)
                break
    return Measurement(records, course.protocol(), same_weights)


@contextmanager
def _started(tasks: Mapping[str, Task], run: Serve | None) -> Iterator[list[Arm]]:
    arms: list[Arm] = []
    try:
        for name, task in tasks.items():
            arms.append(Arm(name, task, run))
        yield arms
    finally:
        for arm in arms:
            arm.stop()


class _Turns:
    """The arms of one start of the processes, and where their raw times go."""

    def __init__(
        self,
        arms: list[Arm],
        records: Mapping[str, ArmRecord],
        profile: ProfileParams,
        order: random.Random,
        process: int,
    ) -> None:
        self._arms, self._records, self._profile, self._process = arms, records, profile, process
        self._order = order
        self._last_order = arms

    def warm_up(self) -> None:
        """All at once, for nothing is timed yet. The peak of memory is read before the first prediction."""
        for arm in self._arms:
            arm.send("warm_up", self._profile.warmup_steps)
        for arm in self._arms:
            arm.answer()
        for arm in self._arms:
            self._records[arm.name].peak_device_bytes = arm.ask("peak_device_bytes")
            self._records[arm.name].configuration = arm.ask("configuration")
            self._records[arm.name].in_force = arm.ask("in_force")
        for batch_size in self._profile.inference_batch_sizes:
            for arm in self._arms:
                arm.ask("infer", batch_size, 1)

    def play(self, number: int) -> None:
        """A round: every arm has a turn at training and one at predicting with each batch size."""
        arms = self._in_turn(number)
        self._train(number, arms)
        self._infer(number, arms)
        if number < self._profile.single_step_rounds:
            self._train_step_by_step(number, arms)

    def _in_turn(self, number: int) -> list[Arm]:
        """A random order, and in the next round the same backwards: what drifts evenly cancels."""
        reverse = number % 2 == 1
        self._last_order = self._last_order[::-1] if reverse else self._order.sample(self._arms, len(self._arms))
        return self._last_order

    def _train(self, number: int, arms: list[Arm]) -> None:
        """The clock is read once a turn."""
        steps = self._profile.steps_per_round
        for position, arm in enumerate(arms):
            time_ms = arm.ask("train_round", steps)
            self._records[arm.name].rounds.append(Round(self._process, number, position, steps, time_ms))

    def _train_step_by_step(self, number: int, arms: list[Arm]) -> None:
        """The device is waited for after each step."""
        for arm in arms:
            times_ms = arm.ask("train_steps", self._profile.steps_per_round)
            self._records[arm.name].steps += [
                Step(self._process, number, step, time_ms) for step, time_ms in enumerate(times_ms)
            ]

    def _infer(self, number: int, arms: list[Arm]) -> None:
        for batch_size in self._profile.inference_batch_sizes:
            for arm in arms:
                latencies_ms = arm.ask("infer", batch_size, self._profile.inference_calls_per_round)
                self._records[arm.name].calls += [
                    Call(self._process, number, batch_size, call, latency_ms)
                    for call, latency_ms in enumerate(latencies_ms)
                ]

    def tell_input_from_compute(self) -> None:
        """Rounds in which each arm trains on the input pipeline and on one batch that stays on the device."""
        steps = self._profile.steps_per_round
        time_of_a_round_ms = 2 * sum(self._records[arm.name].rounds[-1].round_time_ms for arm in self._arms)
        fitting = int(1e3 * self._profile.max_seconds / self._profile.processes / time_of_a_round_ms)
        for number in range(min(INPUT_ROUNDS, max(fitting, 1))):
            for arm in self._in_turn(number):
                for batches in ("pipeline", "device"):
                    time_ms = arm.ask("train_round" if batches == "pipeline" else "train_round_on_device", steps)
                    self._records[arm.name].input_rounds.append(
                        InputRound(self._process, number, batches, steps, time_ms)
                    )

    def trace(self, extras: Extras) -> None:
        """A trace of each arm that is to be traced."""
        for arm in self._arms:
            if arm.name in extras.traced:
                self._records[arm.name].trace = arm.ask("trace", extras.scratch / arm.name, self._profile.trace_steps)

    def compare_weights(self, baseline: str, trained: Mapping[str, Path]) -> dict[str, SameWeights]:
        """The weights of each training, computed with in the baseline's precision."""
        arm = next((arm for arm in self._arms if arm.name == baseline), None)
        return {name: arm.ask("same_weights", folder) for name, folder in trained.items()} if arm else {}
