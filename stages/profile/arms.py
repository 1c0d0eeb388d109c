"""The worker processes of all arms, one of each at a time, and their turns. Does not import TensorFlow."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages import files
from stages.errors import ProfileError
from stages.params import ProfileParams
from stages.profile.fork_server import start_server
from stages.profile.plan import Plan
from stages.profile.records import ArmConfig, ArmRecord, Calibration
from stages.profile.worker_process import Serve, WorkerProcess
from stages.results.profile import Call, Configuration, InputRound, Round, Step, bridge_name

WARM_UP_STEPS = 3  # the first one compiles; where the steady state begins is found in the rounds
INPUT_ROUNDS = 2  # they separate input from compute and affect no verdict


class Arms:
    """The arms and the records to which their times are added.

    Args:
        configs: what each arm's workers need, by the arm's name. Bridging arms are added at the first start.
        baseline: name of the arm that the others are compared with.
        profile: the timing protocol.
        serve: what a worker process runs.

    Attributes:
        records: everything that was measured, by arm.
        process: number of the processes that run, or ran last.
        startup_s: seconds from the start of the interpreters to the first turn, of the first processes.
        calibrations: costs of a training step, by arm.
        latency_ms: milliseconds of a call, by batch size and arm.
        repeated: rounds that were repeated because a process was stopped during them.
        bridge_seconds: seconds spent on bridging arms; None without one.
        is_throttled: called after each round; whether the GPU was slowed down during it, None if that is not known.
    """

    def __init__(self, configs: Mapping[str, ArmConfig], baseline: str, profile: ProfileParams, serve: Serve) -> None:
        self._configs, self._baseline, self._profile, self._serve = dict(configs), baseline, profile, serve
        self._workers: list[WorkerProcess] = []
        self._order = random.Random(profile.seed)
        self._last_order: list[WorkerProcess] = []
        self.records: dict[str, ArmRecord] = {}
        self.process = -1
        self.startup_s = 0.0
        self.calibrations: dict[str, Calibration] = {}
        self.latency_ms: dict[int, dict[str, float]] = {}
        self.repeated = 0
        self.bridge_seconds: float | None = None
        self.is_throttled: Callable[[], bool | None] = lambda: None

    @property
    def on_gpu(self) -> bool:
        """Whether the arms compute on a GPU."""
        return next(iter(self.records.values())).settings.configuration.device == "GPU"

    @contextmanager
    def started(self) -> Iterator[None]:
        """Starts a process of every arm, ready for the first turn, and ends them after the block."""
        self.process += 1
        started_s = time.monotonic()
        with ExitStack() as stack:
            self._workers = []
            self._start(self._configs, stack)
            if self.process == 0 and (bridges := self._bridges()):
                self._start(bridges, stack)
                self._configs |= bridges
            check_configurations(
                self._baseline, {name: record.settings.configuration for name, record in self.records.items()}
            )
            self._warm_up(started_s)
            if share := sum(name.startswith(files.BRIDGE_PREFIX) for name in self._configs) / len(self._configs):
                self.bridge_seconds = (self.bridge_seconds or 0.0) + share * (time.monotonic() - started_s)
            self._last_order = self._workers
            yield

    def _warm_up(self, started_s: float) -> None:
        """Compiles what the turns run; in the first processes, also measures what everything costs."""
        self._together("warm_up", self._profile.warmup_steps or WARM_UP_STEPS)
        calibration_s = self._calibrate() if self.process == 0 else 0.0
        latencies = self._together("prepare_inference", self._profile.inference_batch_sizes)
        if self.process == 0:
            self.startup_s = time.monotonic() - started_s - calibration_s
            for size in self._profile.inference_batch_sizes:
                self.latency_ms[size] = {name: found[size] for name, found in latencies.items()}

    def _start(self, configs: Mapping[str, ArmConfig], stack: ExitStack) -> None:
        """Starts the interpreters at the same time, then a worker of each arm, and asks how the arms run."""
        servers = {name: f"{self.process}{name if name == files.CONTROL else ''}" for name in configs}
        for name, config in configs.items():
            start_server(config.variant.variables, servers[name])
        started = [
            stack.enter_context(closing(WorkerProcess(name, config, self._serve, servers[name])))
            for name, config in configs.items()
        ]
        self._workers += started
        for name, settings in _together(started, "settings").items():
            self.records.setdefault(name, ArmRecord(configs[name].variant, settings)).settings = settings

    def _bridges(self) -> dict[str, ArmConfig]:
        """The arms with the baseline's policy and a candidate's other settings, by name."""
        if self._baseline not in self.records:
            return {}
        baseline = self.records[self._baseline].settings
        found: dict[str, ArmConfig] = {}
        for name, record in self.records.items():
            arm = bridge_name(baseline.in_force, record.settings.in_force, baseline.configuration.device)
            if arm is not None and name != files.CONTROL:
                policy = self._configs[self._baseline].variant.policy
                settings = {
                    "policy": policy,
                    "xla": record.settings.in_force.xla,
                }  # null may be another with the policy
                variant = self._configs[name].variant.model_copy(update=settings)
                found.setdefault(arm, replace(self._configs[name], variant=variant))
        return found

    def _calibrate(self) -> float:
        """Measures the costs of each arm alone, and returns the seconds that it took."""
        started_s = time.monotonic()
        for worker in self._workers:
            found: Calibration = worker.call("calibrate")
            self.calibrations[worker.name] = found
            self.records[worker.name].peak_memory_bytes = found.peak_memory_bytes
        return time.monotonic() - started_s

    def _together(self, method: str, *arguments: Any, workers: Sequence[WorkerProcess] | None = None) -> dict[str, Any]:
        """Calls a method of all workers, or of `workers`: at the same time on CPUs; on GPUs one after the other.

        cuDNN chooses its algorithms by timing them in the first steps, which other processes on the GPU would disturb.
        """
        chosen = self._workers if workers is None else workers
        if next(iter(self.records.values())).settings.configuration.device == "CPU":
            return _together(chosen, method, *arguments)
        return {worker.name: worker.call(method, *arguments) for worker in chosen}

    def train(self, number: int, plan: Plan) -> None:
        """Runs one round of training: a turn of each arm."""

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for position, worker in enumerate(workers):
                steps = plan.steps_per_round
                time_ms = self._timed_call(worker, "train_round", steps, plan.lead_in_steps)
                row = Round(self.process, number, position, steps, time_ms)
                self.records[worker.name].times.rounds.append(row)

        self._run_round(number, turns, "rounds")

    def infer(self, number: int, plan: Plan) -> None:
        """Runs one round of inference: a turn of each arm at each batch size."""

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for size, calls in plan.calls.items():
                for worker in workers:
                    latencies_ms = self._timed_call(worker, "infer", size, calls)
                    self.records[worker.name].times.calls += [
                        Call(self.process, number, size, call, latency_ms)
                        for call, latency_ms in enumerate(latencies_ms)
                    ]

        self._run_round(number, turns, "calls")

    def train_single_steps(self, plan: Plan) -> None:
        """Runs a turn of each arm in which every step is synchronised and timed, for the percentiles."""

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for worker in workers:
                times_ms = self._timed_call(worker, "train_steps", plan.steps_per_round, plan.lead_in_steps)
                self.records[worker.name].times.steps += [
                    Step(self.process, 0, step, time_ms) for step, time_ms in enumerate(times_ms)
                ]

        self._run_round(0, turns, "steps")

    def use_rounds_as_steps(self) -> None:
        """Takes the counted rounds, if they have one step, as the single steps: every one is synchronised and timed."""
        for record in self.records.values():
            counted = (row for row in record.times.rounds if row.counted)
            record.times.steps = [Step(row.process, row.round, 0, row.round_time_ms) for row in counted]

    def separate_input_from_compute(self, plan: Plan) -> None:
        """Runs rounds in which each variant trains on its input pipeline and on one batch cached on the device."""
        variants = [worker for worker in self._workers if files.is_variant(worker.name)]
        self._together("prepare_cached", workers=variants)

        def turns(workers: Sequence[WorkerProcess]) -> None:
            for worker in (worker for worker in workers if worker in variants):
                rows = self.records[worker.name].times.input_rounds
                steps = plan.steps_per_round
                time_ms = self._timed_call(worker, "train_round", steps, plan.lead_in_steps)
                rows.append(InputRound(self.process, number, "pipeline", steps, time_ms))
                time_ms = self._timed_call(worker, "train_round_cached", steps)
                rows.append(InputRound(self.process, number, "cached", steps, time_ms))

        for number in range(INPUT_ROUNDS):
            self._run_round(number, turns, "input_rounds")

    def trace(self, scratch: Path, steps: int) -> None:
        """Traces all arms but the bridging ones."""
        for worker in self._workers:
            if not worker.name.startswith(files.BRIDGE_PREFIX):
                self.records[worker.name].trace = worker.call("trace", scratch / worker.name, steps)

    def same_weights(self, trained: Mapping[int, Path]) -> dict[str, dict[int, NDArray[np.float32]]]:
        """By candidate and seed, what the baseline's weights give in the candidate's precision."""
        others = [worker for worker in self._workers if not self._runs_the_baseline(worker.name)]
        found = {seed: _together(others, "same_weights", folder) for seed, folder in trained.items()}
        return {worker.name: {seed: by_arm[worker.name] for seed, by_arm in found.items()} for worker in others}

    def warnings(self) -> Iterator[str]:
        """What the reader of the results should know."""
        yield from self._workers[0].call("warnings")
        if self.repeated:
            yield (
                "the measurement was stopped and continued during the timing (SIGSTOP, or Ctrl-Z and `fg`); rounds "
                f"dropped and repeated: {self.repeated}; the stop used some of the time budget, so the intervals may "
                "be wider"
            )

    def _runs_the_baseline(self, name: str) -> bool:
        return name == self._baseline or not files.is_variant(name)

    def _run_round(self, number: int, turns: Callable[[Sequence[WorkerProcess]], None], table: str) -> None:
        """Runs the turns of one round, and repeats it if a process was stopped during it: a time includes the stop."""
        workers = self._interleaved(number)
        rows = {name: len(getattr(record.times, table)) for name, record in self.records.items()}
        while self._is_stopped_during(lambda: turns(workers)):
            for name, record in self.records.items():
                del getattr(record.times, table)[rows[name] :]
            self.repeated += 1
        if (throttled := self.is_throttled()) is not None and table in ("rounds", "calls"):
            for name, record in self.records.items():
                times = getattr(record.times, table)
                times[rows[name] :] = [replace(row, throttled=throttled) for row in times[rows[name] :]]

    def _is_stopped_during(self, run: Callable[[], None]) -> bool:
        """Runs something, and returns whether a worker process was stopped and continued meanwhile."""
        before = [worker.call("times_continued") for worker in self._workers]
        run()
        return before != [worker.call("times_continued") for worker in self._workers]

    def _interleaved(self, number: int) -> list[WorkerProcess]:
        """A random order in even rounds, and its reverse in the next round, so that a linear drift cancels."""
        reverse = number % 2 == 1
        self._last_order = self._last_order[::-1] if reverse else self._order.sample(self._workers, len(self._workers))
        return self._last_order

    def _timed_call(self, worker: WorkerProcess, method: str, *arguments: Any) -> Any:
        """Calls a method, and adds its duration to those of bridging arms if the worker is one."""
        started_s = time.monotonic()
        found = worker.call(method, *arguments)
        if worker.name.startswith(files.BRIDGE_PREFIX):
            self.bridge_seconds = (self.bridge_seconds or 0.0) + time.monotonic() - started_s
        return found


def _together(workers: Sequence[WorkerProcess], method: str, *arguments: Any) -> dict[str, Any]:
    """Calls a method of several workers at the same time, and returns the results by arm."""
    for worker in workers:
        worker.send(method, *arguments)
    return {worker.name: worker.receive() for worker in workers}


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
