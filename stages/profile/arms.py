"""The worker processes of all arms, one of each at a time, and their turns. Does not import TensorFlow.

All arms live at once where the memory allows it. On a GPU they are started one after the other, and what each keeps of
its memory is measured. If not all of them fit, each arm is started alone once. Then two live at once, in pairs with the
baseline, or one after the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages import files
from stages.errors import ProfileError
from stages.params import ProfileParams
from stages.profile.device_memory import ReadMemory, Room, device_memory_reader
from stages.profile.fork_server import start_server
from stages.profile.plan import Plan
from stages.profile.records import ArmConfig, ArmRecord, Calibration
from stages.profile.worker_process import Serve, WorkerProcess
from stages.results.profile import Call, Configuration, InputRound, RawTimes, Round, Step, bridge_name
from stages.stats.speedup import ALONE, PAIRS

WARM_UP_STEPS = 3  # the first one compiles; where the steady state begins is found in the rounds
INPUT_ROUNDS = 2  # they separate input from compute and affect no verdict


class Arms:
    """The arms and the records to which their times are added.

    Args:
        configs: what each arm's workers need, by the arm's name. Bridging arms are added at the first start.
        baseline: name of the arm that the others are compared with.
        profile: the timing protocol.
        serve: what a worker process runs.
        read_memory: reads the memory of the GPU; the default is what NVML reports. Without a GPU it returns None, and
            all arms start at the same time.

    Attributes:
        records: everything that was measured, by arm.
        process: number of the processes that run, or ran last.
        at_once: how many arms live at once; None for all.
        startup_s: seconds from the start of the interpreters to the first turn, of one process of every arm.
        spent_s: seconds that went by before it was known how many arms fit; 0 if all do.
        calibrations: costs of a training step, by arm.
        latency_ms: milliseconds of a call, by batch size and arm.
        repeated: rounds that were repeated because a process was stopped during them.
        bridge_seconds: seconds spent on bridging arms; None without one.
        is_throttled: called after each round; whether the GPU was slowed down during it, None if that is not known.
        same_weights: by candidate and seed, what the baseline's weights give in the candidate's precision.
    """

    def __init__(
        self,
        configs: Mapping[str, ArmConfig],
        baseline: str,
        profile: ProfileParams,
        serve: Serve,
        read_memory: ReadMemory | None = None,
    ) -> None:
        self._configs, self._baseline, self._profile, self._serve = dict(configs), baseline, profile, serve
        self._room = Room(read_memory or device_memory_reader())
        self._start_s: dict[str, float] = {}  # of the first start of each arm, where they start one after the other
        self._calibration_s = 0.0
        self._began_s = time.monotonic()
        self._workers: list[WorkerProcess] = []
        self._order = random.Random(profile.seed)
        self._last_order: list[WorkerProcess] = []
        self._next_blocks: list[tuple[str, ...]] = []
        self.records: dict[str, ArmRecord] = {}
        self.process = -1
        self.at_once: int | None = None
        self.startup_s = self.spent_s = 0.0
        self.calibrations: dict[str, Calibration] = {}
        self.latency_ms: dict[int, dict[str, float]] = {}
        self.repeated = 0
        self.bridge_seconds: float | None = None
        self.is_throttled: Callable[[], bool | None] = lambda: None
        self.same_weights: dict[str, dict[int, NDArray[np.float32]]] = {}

    @property
    def on_gpu(self) -> bool:
        """Whether the arms compute on a GPU."""
        return next(iter(self.records.values())).settings.configuration.device == "GPU"

    def blocks(self) -> list[tuple[str, ...] | None]:
        """The groups of arms that live at once, in the order in which they are measured; one group, None, for all.

        The order is random, and the next one its reverse, so that a linear drift of the machine cancels.
        """
        if self.at_once is None:
            return [None]
        if self._next_blocks:
            found, self._next_blocks = self._next_blocks, []
        else:
            found = self._order.sample(self.separate_blocks(), len(self.separate_blocks()))
            self._next_blocks = found[::-1]
        return [*found]

    @contextmanager
    def started(self, names: Collection[str] | None = None, *, is_next: bool = True) -> Iterator[None]:
        """Starts a process of every arm, ready for the first turn, and ends them after the block.

        Args:
            names: the arms to start; None for all, to which bridging arms are added at the first start.
            is_next: whether the processes get the next number. Arms that are measured one after the other share it.

        Raises:
            DoesNotFitError: an arm did not start beside others.
            ProfileError: a worker failed, or the arms differ in more than their entries of `variants`.
        """
        self.process += is_next
        started_s = time.monotonic()
        start = self._start_in_turn if self._room.is_on_gpu else self._start
        with ExitStack() as stack:
            self._workers = []
            start({name: config for name, config in self._configs.items() if names is None or name in names}, stack)
            if names is None and self.process == 0 and (bridges := self._bridges()):
                start(bridges, stack)
                self._configs |= bridges
            check_configurations(
                self._baseline, {name: record.settings.configuration for name, record in self.records.items()}
            )
            if not self._room.is_on_gpu:
                self._warm_up(self._workers)
            if names is None and self.process == 0:
                self.startup_s = time.monotonic() - started_s - self._calibration_s
            bridging = sum(worker.name.startswith(files.BRIDGE_PREFIX) for worker in self._workers)
            if share := bridging / len(self._workers):
                self.bridge_seconds = (self.bridge_seconds or 0.0) + share * (time.monotonic() - started_s)
            self._last_order = self._workers
            yield

    def separate(self) -> str:
        """Lets fewer arms live at once from here on, forgets what was timed so far, and returns what is done instead.

        Raises:
            ProfileError: an arm does not start although no other one lives.
        """
        if self.at_once is None:
            self._start_each_alone()
            self._configs |= self._bridges()
            self._start_each_alone()
        is_worth_pairs = self.at_once is None and len(self._configs) > 2
        self.at_once = PAIRS if is_worth_pairs and self._pairs() and self._room.fit(self._pairs()) else ALONE
        self.process, self._next_blocks = -1, []
        for record in self.records.values():
            record.times = RawTimes()
        self.startup_s = sum(self._start_s[name] for block in self.separate_blocks() for name in block)
        self.spent_s = time.monotonic() - self._began_s
        pairs = "each arm takes turns with the baseline alone, in pairs in random order"
        return pairs if self.at_once == PAIRS else "the arms are measured one after the other, in random order"

    def _start_each_alone(self) -> None:
        """Starts the arms that were never ready, to measure what each costs and keeps."""
        for name in [name for name in self._configs if name not in self._start_s]:
            with self.started((name,), is_next=False):
                pass

    def separate_blocks(self) -> list[tuple[str, ...]]:
        """The same groups in the order of the arms; empty if all arms live at once."""
        if self.at_once is None:
            return []
        return self._pairs() if self.at_once == PAIRS else [(name,) for name in self._configs]

    def _pairs(self) -> list[tuple[str, ...]]:
        """The baseline with every other arm, and each bridging arm with its candidates; none without a baseline."""
        if self._baseline not in self._configs:
            return []
        others = [name for name in self._configs if name != self._baseline]
        bridges = {name: self._bridge_of(name) for name in others if files.is_variant(name)}
        return [
            *((self._baseline, name) for name in others),
            *((bridge, name) for name, bridge in bridges.items() if bridge is not None),
        ]

    def _start_in_turn(self, configs: Mapping[str, ArmConfig], stack: ExitStack) -> None:
        """Starts and warms up one arm after the other, and measures what each keeps of the GPU's memory.

        cuDNN's autotuner times algorithms in the first steps and needs scratch memory, so two would disturb each other.
        """
        for name, config in configs.items():
            start_server(config.variant.variables, self._server_name(name))  # they import TensorFlow at the same time
        for name, config in configs.items():
            started_s, calibration_s = time.monotonic(), self._calibration_s
            with self._room.starting(name, [worker.name for worker in self._workers]):
                self._start({name: config}, stack)
                self._warm_up(self._workers[-1:])
            ready_s = time.monotonic() - started_s - (self._calibration_s - calibration_s)
            self._start_s.setdefault(name, ready_s)

    def _warm_up(self, workers: Sequence[WorkerProcess]) -> None:
        """Compiles what the turns run; at the first start of an arm, also measures what everything costs."""
        self._together("warm_up", self._profile.warmup_steps or WARM_UP_STEPS, workers=workers)
        new = [worker for worker in workers if worker.name not in self.calibrations]
        self._calibrate(new)
        latencies = self._together("prepare_inference", self._profile.inference_batch_sizes, workers=workers)
        for size in self._profile.inference_batch_sizes:
            self.latency_ms.setdefault(size, {}).update({worker.name: latencies[worker.name][size] for worker in new})

    def _start(self, configs: Mapping[str, ArmConfig], stack: ExitStack) -> None:
        """Starts the interpreters at the same time, then a worker of each arm, and asks how the arms run."""
        for name, config in configs.items():
            start_server(config.variant.variables, self._server_name(name))
        started = [
            stack.enter_context(closing(WorkerProcess(name, config, self._serve, self._server_name(name))))
            for name, config in configs.items()
        ]
        self._workers += started
        for name, settings in _together(started, "settings").items():
            self.records.setdefault(name, ArmRecord(configs[name].variant, settings)).settings = settings

    def _server_name(self, arm: str) -> str:
        """The interpreter that the processes of this number are forked from: the control has its own."""
        return f"{self.process}{arm if arm == files.CONTROL else ''}"

    def _bridges(self) -> dict[str, ArmConfig]:
        """The arms with the baseline's policy and a candidate's other settings, by name."""
        if self._baseline not in self.records:
            return {}
        found: dict[str, ArmConfig] = {}
        for name in self.records:
            arm = self._bridge_of(name)
            if arm is not None and name != files.CONTROL:
                settings = {
                    "policy": self._configs[self._baseline].variant.policy,
                    "xla": self.records[name].settings.in_force.xla,  # Keras may choose another with the policy
                }
                variant = self._configs[name].variant.model_copy(update=settings)
                found.setdefault(arm, replace(self._configs[name], variant=variant))
        return found

    def _bridge_of(self, name: str) -> str | None:
        """Name of the arm between the baseline and another arm; None where only the precision differs."""
        baseline = self.records[self._baseline].settings
        return bridge_name(baseline.in_force, self.records[name].settings.in_force, baseline.configuration.device)

    def _calibrate(self, workers: Sequence[WorkerProcess]) -> None:
        """Measures the costs of each arm alone."""
        started_s = time.monotonic()
        for worker in workers:
            found: Calibration = worker.call("calibrate")
            self.calibrations[worker.name] = found
            self.records[worker.name].peak_memory_bytes = found.peak_memory_bytes
        self._calibration_s += time.monotonic() - started_s

    def _together(self, method: str, *arguments: Any, workers: Sequence[WorkerProcess] | None = None) -> dict[str, Any]:
        """Calls a method of all workers, or of `workers`: at the same time on CPUs; on GPUs one after the other.

        cuDNN chooses its algorithms by timing them in the first steps, which other processes on the GPU would disturb.
        """
        chosen = self._workers if workers is None else workers
        device = next(iter(self.records.values())).settings.configuration.device
        if device == "CPU" and not self._room.is_on_gpu:
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
        """Traces the arms that live and have no trace, but the bridging ones."""
        for worker in self._workers:
            record = self.records[worker.name]
            if record.trace is None and not worker.name.startswith(files.BRIDGE_PREFIX):
                record.trace = worker.call("trace", scratch / worker.name, steps)

    def evaluate_same_weights(self, trained: Mapping[int, Path]) -> None:
        """Evaluates the baseline's weights in the candidates that live, unless that was done: see `same_weights`."""
        others = [worker for worker in self._workers if not self._runs_the_baseline(worker.name)]
        others = [worker for worker in others if worker.name not in self.same_weights]
        found = {seed: self._together("same_weights", folder, workers=others) for seed, folder in trained.items()}
        for worker in others:
            self.same_weights[worker.name] = {seed: by_arm[worker.name] for seed, by_arm in found.items()}

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
