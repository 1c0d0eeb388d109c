"""The turns of the arms that live: rounds of training and of inference, and what is timed beside them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages import files
from stages.profile.plan import Plan
from stages.profile.records import ArmRecord
from stages.profile.worker_process import WorkerProcess
from stages.results.profile import Call, InputRound, Round, Step

INPUT_ROUNDS = 2  # they separate input from compute and affect no verdict


class Turns:
    """Runs the turns of the arms that live, and adds their times to the records.

    Args:
        records: everything that was measured, by arm.
        order: draws the order of the turns.

    Attributes:
        repeated: rounds that were repeated because a process was stopped during them.
        bridge_seconds: seconds spent on bridging arms; None without one.
        is_throttled: called after each round; whether the GPU was slowed down during it, None if that is not known.
    """

    def __init__(self, records: Mapping[str, ArmRecord], order: random.Random) -> None:
        self._records, self._order = records, order
        self._process = -1
        self._workers: Sequence[WorkerProcess] = ()
        self._last_order: Sequence[WorkerProcess] = ()
        self.repeated = 0
        self.bridge_seconds: float | None = None
        self.is_throttled: Callable[[], bool | None] = lambda: None

    def begin(self, process: int, workers: Sequence[WorkerProcess], startup_s: float = 0.0) -> None:
        """The turns are from here on those of these workers, which have this number and took so long to start."""
        self._process, self._workers, self._last_order = process, workers, workers
        if bridging := sum(map(_is_bridging, workers)):
            self._add_bridge_seconds(bridging / len(workers) * startup_s)

    def train(self, number: int, plan: Plan) -> None:
        """Runs one round of training: a turn of each arm."""

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for position, worker in enumerate(workers):
                steps = plan.steps_per_round
                time_ms = self._timed_call(worker, "train_round", steps, plan.lead_in_steps)
                row = Round(self._process, number, position, steps, time_ms)
                self._records[worker.name].times.rounds.append(row)

        self._run_round(number, turns, "rounds")

    def infer(self, number: int, plan: Plan) -> None:
        """Runs one round of inference: a turn of each arm at each batch size."""

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for size, calls in plan.calls.items():
                for worker in workers:
                    latencies_ms = self._timed_call(worker, "infer", size, calls)
                    self._records[worker.name].times.calls += [
                        Call(self._process, number, size, call, latency_ms)
                        for call, latency_ms in enumerate(latencies_ms)
                    ]

        self._run_round(number, turns, "calls")

    def train_single_steps(self, plan: Plan) -> None:
        """Runs a turn of each arm in which every step is synchronised and timed, for the percentiles."""

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for worker in workers:
                times_ms = self._timed_call(worker, "train_steps", plan.steps_per_round, plan.lead_in_steps)
                self._records[worker.name].times.steps += [
                    Step(self._process, 0, step, time_ms) for step, time_ms in enumerate(times_ms)
                ]

        self._run_round(0, turns, "steps")

    def use_rounds_as_steps(self) -> None:
        """Takes the counted rounds, if they have one step, as the single steps: every one is synchronised and timed."""
        for record in self._records.values():
            counted = (row for row in record.times.rounds if row.counted)
            record.times.steps = [Step(row.process, row.round, 0, row.round_time_ms) for row in counted]

    def separate_input_from_compute(self, plan: Plan) -> None:
        """Runs rounds in which each variant trains on its input pipeline and on one batch cached on the device.

        The workers must be prepared for the cached batch.
        """

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for worker in (worker for worker in workers if files.is_variant(worker.name)):
                rows = self._records[worker.name].times.input_rounds
                steps = plan.steps_per_round
                time_ms = self._timed_call(worker, "train_round", steps, plan.lead_in_steps)
                rows.append(InputRound(self._process, number, "pipeline", steps, time_ms))
                time_ms = self._timed_call(worker, "train_round_cached", steps)
                rows.append(InputRound(self._process, number, "cached", steps, time_ms))

        for number in range(INPUT_ROUNDS):
            self._run_round(number, turns, "input_rounds")

    def warnings(self) -> Iterator[str]:
        """Yields a line if rounds were repeated."""
        if self.repeated:
            yield (
                "the measurement was stopped and continued during the timing (SIGSTOP, or Ctrl-Z and `fg`); rounds "
                f"dropped and repeated: {self.repeated}; the stop used some of the time budget, so the intervals may "
                "be wider"
            )

    def _run_round(self, number: int, turns: Callable[[Sequence[WorkerProcess]], None], table: str) -> None:
        """Runs the turns of one round, and repeats it if a process was stopped during it: a time includes the stop."""
        workers = self._interleaved(number)
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
        """Runs something, and returns whether a worker process was stopped and continued meanwhile."""
        before = [worker.call("times_continued") for worker in self._workers]
        run()
        return before != [worker.call("times_continued") for worker in self._workers]

    def _interleaved(self, number: int) -> Sequence[WorkerProcess]:
        """A random order in even rounds, and its reverse in the next round, so that a linear drift cancels."""
        reverse = number % 2 == 1
        self._last_order = self._last_order[::-1] if reverse else self._order.sample(self._workers, len(self._workers))
        return self._last_order

    def _timed_call(self, worker: WorkerProcess, method: str, *arguments: Any) -> Any:
        """Calls a method, and adds its duration to those of bridging arms if the worker is one."""
        started_s = time.monotonic()
        found = worker.call(method, *arguments)
        if _is_bridging(worker):
            self._add_bridge_seconds(time.monotonic() - started_s)
        return found

    def _add_bridge_seconds(self, seconds: float) -> None:
        self.bridge_seconds = (self.bridge_seconds or 0.0) + seconds


def _is_bridging(worker: WorkerProcess) -> bool:
    return worker.name.startswith(files.BRIDGE_PREFIX)
