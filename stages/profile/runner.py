"""Interleaves the rounds of all arms. Does not import TensorFlow; one worker process computes at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from stages.errors import ProfileError
from stages.params import ProfileParams
from stages.profile.records import ArmConfig, ArmRecord, Measurement
from stages.profile.stopping_rule import StoppingRule
from stages.profile.worker_process import Serve, WorkerProcess, serve_worker
from stages.results.profile import Call, Configuration, InputRound, Round, SameWeights, Step

INPUT_ROUNDS = 6  # run by the last processes only; they separate input from compute and affect no verdict


@dataclass(frozen=True)
class Extras:
    """What is done once, by the last processes, outside the timing.

    Attributes:
        traced: names of the arms to trace.
        scratch: a folder for the traces.
        trained: by arm, the folder of the training whose weights are evaluated in the baseline's precision.
    """

    traced: frozenset[str]
    scratch: Path
    trained: Mapping[str, Path]


def measure(
    configs: Mapping[str, ArmConfig],
    baseline: str,
    profile: ProfileParams,
    extras: Extras,
    serve: Serve = serve_worker,
) -> Measurement:
    """Measures all arms in interleaved rounds.

    Args:
        configs: what each arm's workers need, by the arm's name.
        baseline: name of the arm that the others are compared with.
        profile: the timing protocol.
        extras: what is done once, outside the timing.
        serve: what a worker process runs.

    Raises:
        ProfileError: a worker failed, or the arms differ in more than their entries of `variants`.
    """
    records: dict[str, ArmRecord] = {}
    repeated = 0
    rule = StoppingRule(profile, baseline, records)
    order = random.Random(profile.seed)
    for process in range(profile.processes):
        with ExitStack() as stack:
            started = (WorkerProcess(name, config, serve) for name, config in configs.items())
            workers = [stack.enter_context(closing(worker)) for worker in started]
            arms = _Arms(workers, records, profile, order, process)
            arms.warm_up()
            check_configurations(baseline, {name: record.settings.configuration for name, record in records.items()})
            with rule.timing():
                for round_number in rule.rounds():
                    repeated += arms.run_round(round_number)
            decision = rule.decide()
            if decision.ended_by:
                arms.separate_input_from_compute()
                arms.trace(extras)
                same_weights = arms.compare_weights(baseline, extras.trained)
                warnings = [*workers[0].call("warnings"), *repetition_warnings(repeated)]
                return Measurement(records, rule.protocol(decision, warnings), same_weights)
    raise AssertionError("the stopping rule ends the measurement after the last process")


class _Arms:
    """One worker process for each arm, and the records to which the measured times are added."""

    def __init__(
        self,
        workers: list[WorkerProcess],
        records: dict[str, ArmRecord],
        profile: ProfileParams,
        order: random.Random,
        process: int,
    ) -> None:
        self._workers, self._records, self._profile, self._process = workers, records, profile, process
        self._order = order
        self._last_order = workers

    def warm_up(self) -> None:
        """Warms up all arms at the same time, since nothing is timed. Reads the peak memory before any inference."""
        for worker in self._workers:
            worker.send("warm_up", self._profile.warmup_steps)
        for worker in self._workers:
            worker.receive()
        for worker in self._workers:
            settings = worker.call("settings")
            self._records.setdefault(worker.name, ArmRecord(settings)).settings = settings
        for batch_size in self._profile.inference_batch_sizes:
            for worker in self._workers:
                worker.call("infer", batch_size, 1)

    def run_round(self, number: int) -> int:
        """Runs one round: each arm has one turn of training, and one of inference at each batch size.

        Returns:
            How often the round was repeated, because a process was stopped during it: a time includes the stop.
        """
        workers, repetitions = self._interleaved(number), 0
        while self._is_stopped_during(lambda: self._turns(number, workers)):
            self._drop(number)
            repetitions += 1
        return repetitions

    def _turns(self, number: int, workers: list[WorkerProcess]) -> None:
        self._train(number, workers)
        self._infer(number, workers)
        if number < self._profile.single_step_rounds:
            self._train_single_steps(number, workers)

    def _is_stopped_during(self, run: Callable[[], None]) -> bool:
        """Runs something, and returns whether a worker process was stopped and continued meanwhile."""
        before = [worker.call("times_continued") for worker in self._workers]
        run()
        return before != [worker.call("times_continued") for worker in self._workers]

    def _drop(self, number: int) -> None:
        """Removes a round from the records."""
        for record in self._records.values():
            times, dropped = record.times, (self._process, number)
            times.rounds = [row for row in times.rounds if (row.process, row.round) != dropped]
            times.steps = [row for row in times.steps if (row.process, row.round) != dropped]
            times.calls = [row for row in times.calls if (row.process, row.round) != dropped]

    def _interleaved(self, number: int) -> list[WorkerProcess]:
        """A random order in even rounds, and its reverse in the next round, so that a linear drift cancels."""
        reverse = number % 2 == 1
        self._last_order = self._last_order[::-1] if reverse else self._order.sample(self._workers, len(self._workers))
        return self._last_order

    def _train(self, number: int, workers: list[WorkerProcess]) -> None:
        steps = self._profile.steps_per_round
        for position, worker in enumerate(workers):
            time_ms = worker.call("train_round", steps)
            self._records[worker.name].times.rounds.append(Round(self._process, number, position, steps, time_ms))

    def _train_single_steps(self, number: int, workers: list[WorkerProcess]) -> None:
        for worker in workers:
            times_ms = worker.call("train_steps", self._profile.steps_per_round)
            self._records[worker.name].times.steps += [
                Step(self._process, number, step, time_ms) for step, time_ms in enumerate(times_ms)
            ]

    def _infer(self, number: int, workers: list[WorkerProcess]) -> None:
        for batch_size in self._profile.inference_batch_sizes:
            for worker in workers:
                latencies_ms = worker.call("infer", batch_size, self._profile.inference_calls_per_round)
                self._records[worker.name].times.calls += [
                    Call(self._process, number, batch_size, call, latency_ms)
                    for call, latency_ms in enumerate(latencies_ms)
                ]

    def separate_input_from_compute(self) -> None:
        """Runs rounds in which each arm trains on its input pipeline and on one batch cached on the device."""
        steps = self._profile.steps_per_round
        round_time_ms = 2 * sum(self._records[worker.name].times.rounds[-1].round_time_ms for worker in self._workers)
        affordable = int(1e3 * self._profile.max_seconds / self._profile.processes / round_time_ms)
        for number in range(min(INPUT_ROUNDS, max(affordable, 1))):
            for worker in self._interleaved(number):
                rows = self._records[worker.name].times.input_rounds
                time_ms = worker.call("train_round", steps)
                rows.append(InputRound(self._process, number, "pipeline", steps, time_ms))
                time_ms = worker.call("train_round_cached", steps)
                rows.append(InputRound(self._process, number, "cached", steps, time_ms))

    def trace(self, extras: Extras) -> None:
        """Traces the arms in `extras.traced`."""
        for worker in self._workers:
            if worker.name in extras.traced:
                folder = extras.scratch / worker.name
                self._records[worker.name].trace = worker.call("trace", folder, self._profile.trace_steps)

    def compare_weights(self, baseline: str, trained: Mapping[str, Path]) -> dict[str, SameWeights]:
        """Evaluates the weights of each training in the baseline's precision; empty without a baseline."""
        worker = next((worker for worker in self._workers if worker.name == baseline), None)
        return {name: worker.call("same_weights", folder) for name, folder in trained.items()} if worker else {}


def repetition_warnings(repeated: int) -> Iterator[str]:
    """Yields a line if rounds were repeated."""
    if repeated:
        yield (
            "the measurement was stopped and continued during the timing (SIGSTOP, or Ctrl-Z and `fg`); rounds dropped "
            f"and repeated: {repeated}; the stop used some of the time budget, so the intervals may be wider"
        )


def check_configurations(baseline: str, configurations: Mapping[str, Configuration]) -> None:
    """Checks that all arms have the configuration of the baseline; does nothing without a baseline.

    Raises:
        ProfileError: an arm differs; the message has the settings that differ, with both values.
    """
    if baseline not in configurations:
        return
    expected = configurations[baseline].model_dump()
    for name, configuration in configurations.items():
        found = configuration.model_dump()
        differing = [
            f"{key} {found[key]} instead of {expected[key]}" for key in expected if found[key] != expected[key]
        ]
        if differing:
            raise ProfileError(
                f"profile: '{name}' does not run like '{baseline}' ({', '.join(differing)}); arms may differ only in "
                "their entries of variants: find what sets it, such as an environment variable or the model's code"
            )
