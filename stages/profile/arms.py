"""The worker processes of all arms, and how many of them live at once. Does not import TensorFlow.

All arms live at once where the memory allows it. On a GPU they are started one after the other, and what each keeps of
its memory is measured. If not all of them fit, each arm is started alone once. Then two live at once, in pairs with the
baseline, or one after the other.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages import files
from stages.params import ProfileParams
from stages.profile.blocks import Blocks, pairs
from stages.profile.device_memory import OutOfMemoryError, ReadMemory, Room
from stages.profile.differences import bridging_arms, check_configurations
from stages.profile.fork_server import start_server
from stages.profile.plan import Plan
from stages.profile.records import ArmConfig, ArmRecord, Calibration
from stages.profile.turns import Turns
from stages.profile.worker_process import Serve, WorkerProcess
from stages.profile.xla_choices import XlaChoices
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
        read_memory: reads the memory of the GPU. Without a GPU it returns None, and all arms start at the same time.
        scratch: a folder for what XLA's autotuner chooses on a GPU; None if that is not recorded.

    Attributes:
        records: everything that was measured, by arm.
        turns: the turns of the processes that run.
        blocks: which arms live at once.
        process: number of the processes that run, or ran last.
        at_once: how many arms live at once; None for all.
        startup_s: seconds from the start of the interpreters to the first turn, of one process of every arm.
        spent_s: seconds that went by before it was known how many arms fit; 0 if all do. Those of a measurement that
            began and was dropped are not counted.
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
        read_memory: ReadMemory,
        scratch: Path | None = None,
    ) -> None:
        self._configs, self._baseline, self._profile, self._serve = dict(configs), baseline, profile, serve
        self._room, self._xla_choices = Room(read_memory), XlaChoices(scratch)
        self._start_s: dict[str, float] = {}  # of the first start of each arm, where they start one after the other
        self._calibration_s = 0.0
        self._began_s = time.monotonic()
        self._workers: list[WorkerProcess] = []
        order = random.Random(profile.seed)
        self.records: dict[str, ArmRecord] = {}
        self.turns, self.blocks = Turns(self.records, order), Blocks(order)
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

    @property
    def can_be_fewer(self) -> bool:
        """Whether several arms live on one GPU, so that each would have more memory beside fewer."""
        return self._share_a_gpu and len(self._workers) > 1

    @property
    def _share_a_gpu(self) -> bool:
        """Whether the arms need memory of one GPU, as far as that is known before their first start."""
        return self._room.is_on_gpu or (bool(self.records) and self.on_gpu)

    @contextmanager
    def started(self, names: Collection[str] | None = None, *, is_next: bool = True) -> Iterator[None]:
        """Starts a process of every arm, ready for the first turn, and ends them after the block.

        Args:
            names: the arms to start; None for all, to which bridging arms are added at the first start.
            is_next: whether the processes get the next number. Arms that are measured one after the other share it.

        Raises:
            DoesNotFitError: an arm did not start beside others, or ran out of memory beside them, also in the block.
            ProfileError: a worker failed, or the arms differ in more than their entries of `variants`.
        """
        self.process += is_next
        self._workers = []
        with ExitStack() as stack:
            try:
                self._start_all(names, stack)
                yield
                for worker in self._workers:
                    self._xla_choices.add_to(self.records[worker.name], worker.name, self.process)
            except OutOfMemoryError as error:
                if not self._share_a_gpu:
                    raise
                others = [worker.name for worker in self._workers if worker.name != error.arm]
                raise self._room.explained(error, others) from error

    def _start_all(self, names: Collection[str] | None, stack: ExitStack) -> None:
        """Starts the arms and warms them up: one after the other on a GPU, else all at the same time."""
        started_s, in_turn, is_first = time.monotonic(), self._share_a_gpu, names is None and self.process == 0
        start = self._start_in_turn if in_turn else self._start
        start({name: config for name, config in self._configs.items() if names is None or name in names}, stack)
        if is_first:
            bridges = bridging_arms(self._configs, self.records, self._baseline)
            start(bridges, stack)
            self._configs |= bridges
        check_configurations(
            self._baseline, {name: record.settings.configuration for name, record in self.records.items()}
        )
        if not in_turn:
            self._warm_up(self._workers)
        if is_first:
            self.startup_s = time.monotonic() - started_s - self._calibration_s
        self.turns.begin(self.process, self._workers, time.monotonic() - started_s)

    def separate(self) -> str:
        """Lets fewer arms live at once from here on, forgets what was timed so far, and returns what is done instead.

        Raises:
            ProfileError: an arm does not start although no other one lives.
        """
        if any(record.times.rounds for record in self.records.values()):
            self._began_s = time.monotonic()  # what was timed is lost, and the next measurement has all of its time
        if self.at_once is None:
            self._start_each_alone()
            self._configs |= bridging_arms(self._configs, self.records, self._baseline)
            self._start_each_alone()
        found = pairs(self.records, self._baseline) if self.at_once is None and len(self._configs) > 2 else []
        self.at_once = PAIRS if found and self._room.fit(found) else ALONE
        self.blocks.replace(found if self.at_once == PAIRS else [(name,) for name in self._configs])
        self.process = -1
        for record in self.records.values():
            record.times, record.xla_choices = RawTimes(), {}
        self.startup_s = sum(self._start_s[name] for block in self.blocks.blocks for name in block)
        self.spent_s = time.monotonic() - self._began_s
        if self.at_once == PAIRS:
            return "each arm takes turns with the baseline alone, in pairs in random order"
        return "the arms are measured one after the other, in random order"

    def _start_each_alone(self) -> None:
        """Starts the arms that were never ready, to measure what each costs and keeps."""
        for name in [name for name in self._configs if name not in self._start_s]:
            with self.started((name,), is_next=False):
                pass

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
        if self._share_a_gpu:
            configs = {name: self._xla_choices.recorded(config, name, self.process) for name, config in configs.items()}
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
        if not self._share_a_gpu:
            return _together(chosen, method, *arguments)
        return {worker.name: worker.call(method, *arguments) for worker in chosen}

    def separate_input_from_compute(self, plan: Plan) -> None:
        """Runs the rounds of `Turns.separate_input_from_compute`."""
        self._together("prepare_cached", workers=[worker for worker in self._workers if files.is_variant(worker.name)])
        self.turns.separate_input_from_compute(plan)

    def trace(self, scratch: Path, steps: int) -> None:
        """Traces the arms that live and have no trace, but the bridging ones."""
        for worker in self._workers:
            if self._needs_trace(worker.name):
                shutil.rmtree(scratch / worker.name, ignore_errors=True)  # of a trace that did not succeed
                self.records[worker.name].trace = worker.call("trace", scratch / worker.name, steps)

    def evaluate_same_weights(self, trained: Mapping[int, Path]) -> None:
        """Evaluates the baseline's weights in the candidates that live, unless that was done: see `same_weights`."""
        others = [worker for worker in self._workers if self._needs_same_weights(worker.name)]
        found = {seed: self._together("same_weights", folder, workers=others) for seed, folder in trained.items()}
        for worker in others:
            self.same_weights[worker.name] = {seed: by_arm[worker.name] for seed, by_arm in found.items()}

    def unfinished(self, *, traced: bool) -> list[str]:
        """The arms that have not evaluated the baseline's weights, or, if all are `traced`, have no trace."""
        return [name for name in self.records if self._needs_same_weights(name) or (traced and self._needs_trace(name))]

    def warnings(self) -> Iterator[str]:
        """What the reader of the results should know."""
        yield from self._workers[0].call("warnings")
        yield from self.turns.warnings()

    def _needs_trace(self, name: str) -> bool:
        return self.records[name].trace is None and not name.startswith(files.BRIDGE_PREFIX)

    def _needs_same_weights(self, name: str) -> bool:
        return name != self._baseline and files.is_variant(name) and name not in self.same_weights


def _together(workers: Sequence[WorkerProcess], method: str, *arguments: Any) -> dict[str, Any]:
    """Calls a method of several workers at the same time, and returns the results by arm."""
    for worker in workers:
        worker.send(method, *arguments)
    return {worker.name: worker.receive() for worker in workers}
