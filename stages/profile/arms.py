"""The worker processes of all arms, and how many of them live at once. Does not import TensorFlow.

All arms live at once where the memory allows it. On a GPU they are started one after the other, and what each keeps of
its memory is measured. If not all of them fit, each arm is started alone once. Then two live at once, in pairs with the
baseline, or one after the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages import files
from stages.params import ProfileParams
from stages.profile.device_memory import ReadMemory, Room, device_memory_reader
from stages.profile.differences import bridge_of, bridging_arms, check_configurations
from stages.profile.fork_server import start_server
from stages.profile.plan import Plan
from stages.profile.records import ArmConfig, ArmRecord, Calibration
from stages.profile.turns import Turns
from stages.profile.worker_process import Serve, WorkerProcess
from stages.results.profile import RawTimes
from stages.stats.speedup import ALONE, PAIRS

WARM_UP_STEPS = 3  # the first one compiles; where the steady state begins is found in the rounds


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
        turns: the turns of the processes that run.
        process: number of the processes that run, or ran last.
        at_once: how many arms live at once; None for all.
        startup_s: seconds from the start of the interpreters to the first turn, of one process of every arm.
        spent_s: seconds that went by before it was known how many arms fit; 0 if all do.
        calibrations: costs of a training step, by arm.
        latency_ms: milliseconds of a call, by batch size and arm.
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
        self._next_blocks: list[tuple[str, ...]] = []
        self.records: dict[str, ArmRecord] = {}
        self.turns = Turns(self.records, self._order)
        self.process = -1
        self.at_once: int | None = None
        self.startup_s = self.spent_s = 0.0
        self.calibrations: dict[str, Calibration] = {}
        self.latency_ms: dict[int, dict[str, float]] = {}
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
            if names is None and self.process == 0:
                bridges = bridging_arms(self._configs, self.records, self._baseline)
                start(bridges, stack)
                self._configs |= bridges
            check_configurations(
                self._baseline, {name: record.settings.configuration for name, record in self.records.items()}
            )
            if not self._room.is_on_gpu:
                self._warm_up(self._workers)
            if names is None and self.process == 0:
                self.startup_s = time.monotonic() - started_s - self._calibration_s
            self.turns.begin(self.process, self._workers, time.monotonic() - started_s)
            yield

    def separate(self) -> str:
        """Lets fewer arms live at once from here on, forgets what was timed so far, and returns what is done instead.

        Raises:
            ProfileError: an arm does not start although no other one lives.
        """
        if self.at_once is None:
            self._start_each_alone()
            self._configs |= bridging_arms(self._configs, self.records, self._baseline)
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
        others, baseline = [name for name in self._configs if name != self._baseline], self.records[self._baseline]
        variants = filter(files.is_variant, others)
        bridges = {name: bridge_of(self.records[name].settings, baseline.settings) for name in variants}
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

    def separate_input_from_compute(self, plan: Plan) -> None:
        """Runs the rounds of `Turns.separate_input_from_compute`."""
        self._together("prepare_cached", workers=[worker for worker in self._workers if files.is_variant(worker.name)])
        self.turns.separate_input_from_compute(plan)

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
        yield from self.turns.warnings()

    def _runs_the_baseline(self, name: str) -> bool:
        return name == self._baseline or not files.is_variant(name)


def _together(workers: Sequence[WorkerProcess], method: str, *arguments: Any) -> dict[str, Any]:
    """Calls a method of several workers at the same time, and returns the results by arm."""
    for worker in workers:
        worker.send(method, *arguments)
    return {worker.name: worker.receive() for worker in workers}
