"""The turns of the arms: rounds of training and of inference, and what is timed beside them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

from halfstep import files
from halfstep.profile.plan import Plan
from halfstep.profile.records import ArmRecord, Measurement, TracedStretch
from halfstep.profile.worker_process import WorkerProcess
from halfstep.results.profile import InferenceCall, InputRound, Round, Step
from halfstep.text import TRAIN, inference_measure

CONTROL_PAIRS = 3
LEAST_ROUNDS = 4  # of a repeat, from which on the control leaves the first pair out
MAX_STANDSTILL_S, SETTLING_STEPS = 2.0, 6


class Turns:
    """Runs the turns of the running worker processes, and adds their times to the records.

    Where arms take turns, those that are not in turn are stopped: their input pipelines would fill buffers, which a
    training has no time for, and take the processor from the arm that is timed.

    Args:
        measurement: to whose records, and seconds, they are added.
        seed: of the order of the turns.
        rounds: largest number of rounds in a repeat; None if only the time limits it.

    Attributes:
        repeated: rounds that were repeated because a process was stopped during them.
        is_throttled: called after each round; whether the GPU was slowed down during it, None if that is not known.
    """

    def __init__(self, measurement: Measurement, seed: str, rounds: int | None = None) -> None:
        self._measurement, self._records, self._seed = measurement, measurement.records, seed
        self._has_few_rounds = rounds is not None and rounds < LEAST_ROUNDS
        self._repeat = 0
        self._workers: Sequence[WorkerProcess] = ()
        self._stand_still = False
        self._was_stopped = False
        self.repeated = 0
        self.is_throttled: Callable[[], bool | None] = lambda: None

    def begin(
        self, repeat: int, workers: Sequence[WorkerProcess], new: Sequence[WorkerProcess], startup_s: float
    ) -> None:
        """The turns are from here on those of these workers, of which the new ones took so long to start together."""
        self._repeat, self._workers = repeat, workers
        for worker in new:
            self._add_seconds(worker, startup_s / len(new))
        self._stand_still = len(workers) > 1
        for worker in workers if self._stand_still else ():
            worker.stand_still()

    def end(self) -> None:
        """From here on, all workers may run at the same time."""
        for worker in self._workers if self._stand_still else ():
            worker.go_on()
        self._workers, self._stand_still = (), False

    def call(self, worker: WorkerProcess, method: str, *arguments: Any) -> Any:
        """Calls a method of one worker, for which it goes on."""
        if self._stand_still:
            worker.go_on()
        answer = worker.call(method, *arguments)
        if self._stand_still:
            worker.stand_still()
        return answer

    def train(self, number: int, plan: Plan) -> None:
        """Runs one round of training: a turn of each arm."""

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for position, worker in enumerate(workers):
                steps = self._steps(worker.name, plan)
                time_ms = self._turn(worker, "train_round", steps, plan.lead_in_steps)
                row = Round(self._repeat, number, position, steps, time_ms)
                self._records[worker.name].times.rounds.append(row)

        self._run_round(number, TRAIN, turns, "rounds")

    def _steps(self, name: str, plan: Plan) -> int:
        return plan.steps_of(self._records[name].settings.in_force.batch_size)

    def infer(self, number: int, plan: Plan) -> None:
        """Runs one round of inference: a turn of each arm at each batch size."""
        for size, calls in plan.calls.items():
            self._run_round(number, inference_measure(size), self._inference_turns(number, size, calls), "calls")

    def _inference_turns(self, number: int, size: int, calls: int) -> Callable[[Sequence[WorkerProcess]], None]:
        def turns(workers: Sequence[WorkerProcess]) -> None:
            for worker in workers:
                latencies_ms = self._turn(worker, "infer", size, calls)
                self._records[worker.name].times.calls += [
                    InferenceCall(self._repeat, number, size, call, latency_ms)
                    for call, latency_ms in enumerate(latencies_ms)
                ]

        return turns

    def train_single_steps(self, plan: Plan) -> None:
        """Runs a turn of each arm in which every step is synchronised and timed, for the percentiles."""

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for worker in workers:
                times_ms = self._turn(worker, "train_steps", self._steps(worker.name, plan), plan.lead_in_steps)
                self._records[worker.name].times.steps += [
                    Step(self._repeat, 0, step, time_ms) for step, time_ms in enumerate(times_ms)
                ]

        self._run_round(0, TRAIN, turns, "steps")

    def separate_input(self, worker: WorkerProcess, number: int, plan: Plan) -> None:
        """Runs two turns of an arm, on its input pipeline and on one batch cached on the device; odd ones in reverse.

        They follow each other at once, so that both meet the same machine. The worker must be prepared for the batch.
        """
        record = self._records[worker.name]
        step_ms = (record.calibration.step_time_ms if record.calibration else None) or math.inf
        steps = plan.input_steps(record.settings.in_force.batch_size, step_ms)
        methods: list[tuple[Literal["pipeline", "cached"], str, tuple[int, ...]]] = [
            ("pipeline", "train_round", (max(1, plan.lead_in_steps), plan.drained_batches)),
            ("cached", "train_round_cached", ()),
        ]
        rows: list[InputRound] = []

        def turns() -> None:
            rows[:] = [
                InputRound(self._repeat, number, batches, steps, self._turn(worker, method, steps, *arguments))
                for batches, method, arguments in methods[:: -1 if number % 2 else 1]
            ]

        while self._is_stopped_during(turns):
            self.repeated += 1
        record.times.input_rounds += rows

    def account(self, worker: WorkerProcess, plan: Plan) -> list[TracedStretch]:
        """A short trace of an arm, again if its process was stopped during it, in stretches as long as its turns."""
        stretches: list[TracedStretch] = []
        amounts = plan.account_steps, self._steps(worker.name, plan), plan.lead_in_steps

        def trace() -> None:
            stretches[:] = self._watched(worker, "account", *amounts)

        started_s = time.monotonic()
        while self._is_stopped_during(trace):
            self.repeated += 1
        self._measurement.account_s += time.monotonic() - started_s
        return stretches

    def settling_steps(self, worker: WorkerProcess, input_time_ms: float) -> int:
        """Steps after a standstill that wait less for their input, because what was under way is ready by then."""
        if not self._stand_still:
            return 0
        time.sleep(min(MAX_STANDSTILL_S, 3e-3 * input_time_ms))
        times_ms = self.call(worker, "train_steps", 2 * SETTLING_STEPS)
        first_ms, steady_ms = fmean(times_ms[:SETTLING_STEPS]), fmean(times_ms[SETTLING_STEPS:])
        return max(0, math.ceil(SETTLING_STEPS * (1 - first_ms / steady_ms) - 0.25))

    def warnings(self) -> Iterator[str]:
        """Yields a line if rounds were repeated."""
        if self.repeated:
            yield (
                "the measurement was stopped and continued during the timing (SIGSTOP, or Ctrl-Z and `fg`); rounds "
                f"dropped and repeated: {self.repeated}; the stop used some of the time budget, so the intervals may "
                "be wider"
            )

    def _run_round(
        self, number: int, measure: str, turns: Callable[[Sequence[WorkerProcess]], None], table: str
    ) -> None:
        """Runs the turns of one round, and repeats it if a process was stopped during it: a time includes the stop."""
        workers = self._in_order(number, measure)
        rows = {name: len(getattr(record.times, table)) for name, record in self._records.items()}
        while self._is_stopped_during(lambda: turns(workers)):
            for name, record in self._records.items():
                del getattr(record.times, table)[rows[name] :]
            self.repeated += 1
        if (throttled := self.is_throttled()) is not None and table in ("rounds", "calls"):
            for name, record in self._records.items():
                times = getattr(record.times, table)
                times[rows[name] :] = [replace(row, throttled=throttled) for row in times[rows[name] :]]

    def _is_stopped_during(self, run: Callable[[], None]) -> bool:
        """Runs something, and returns whether someone stopped and continued a worker in its turn."""
        self._was_stopped = False
        run()
        return self._was_stopped

    def _in_order(self, number: int, measure: str) -> Sequence[WorkerProcess]:
        """A random order in even rounds, and its reverse in the next round, so that a linear drift cancels.

        The control takes part in one of `CONTROL_PAIRS` pairs of rounds.
        """
        workers = [worker for worker in self._workers if measure in worker.measures]
        may_drop_first = measure == TRAIN and not self._has_few_rounds
        if len(workers) > 2 and not control_takes_part(number // 2, may_drop_first=may_drop_first):
            workers = [worker for worker in workers if worker.name != files.CONTROL]
        return self.in_order(number, measure, workers)

    def in_order(self, number: int, what: str, workers: Sequence[WorkerProcess]) -> Sequence[WorkerProcess]:
        """A random order in even rounds of something, and its reverse in the next."""
        order = random.Random(f"{self._seed} {self._repeat} {what} {number // 2}").sample(workers, len(workers))
        return order[::-1] if number % 2 else order

    def _turn(self, worker: WorkerProcess, method: str, *arguments: Any) -> Any:
        """Calls a method in a worker's turn, and adds its duration to those of the arm."""
        started_s = time.monotonic()
        answer = self._watched(worker, method, *arguments)
        self._add_seconds(worker, time.monotonic() - started_s)
        return answer

    def _add_seconds(self, worker: WorkerProcess, seconds: float) -> None:
        spent_s = self._measurement.seconds
        spent_s[worker.name] = spent_s.get(worker.name, 0.0) + seconds

    def _watched(self, worker: WorkerProcess, method: str, *arguments: Any) -> Any:
        """Calls a method of one worker, for which it goes on, and notices if someone stops it meanwhile."""
        if self._stand_still:
            worker.go_on()
        before = worker.call("times_continued", worker.continued)
        answer = worker.call(method, *arguments)
        self._was_stopped |= worker.call("times_continued") != before
        if self._stand_still:
            worker.stand_still()
        return answer


def control_takes_part(pair: int, *, may_drop_first: bool) -> bool:
    """Whether the control takes part in a pair of rounds, counted from 0: in one of `CONTROL_PAIRS`.

    With `may_drop_first`, up to half of the rounds may not count in the end, because they come before the steady state.
    Then the control takes part in the pairs 1, 3, 6, 9 and so on: after any half of at least `LEAST_ROUNDS` rounds it
    has one that counts.
    """
    return pair == 1 or (pair > 0 and pair % CONTROL_PAIRS == 0) if may_drop_first else pair % CONTROL_PAIRS == 0


def use_rounds_as_steps(records: Mapping[str, ArmRecord]) -> None:
    """Takes the counted rounds that have one step as the single steps: every one is synchronised and timed."""
    for record in records.values():
        single = [row for row in record.times.rounds if row.counted and row.steps == 1]
        if single:
            record.times.steps = [Step(row.process, row.round, 0, row.round_time_ms) for row in single]


def order_of_arms(names: Sequence[str], repeat: int, seed: str) -> list[str]:
    """The order in which arms are measured one at a time: random, and reversed in the next repeat."""
    order = random.Random(f"{seed} {repeat // 2}").sample(list(names), len(names))
    return order[::-1] if repeat % 2 else order
