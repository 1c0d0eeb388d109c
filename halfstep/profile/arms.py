"""The worker processes of a repeat: starting them, warming them up, and what one of them costs alone.

Does not import TensorFlow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import wait
from typing import Any

from halfstep import files
from halfstep.fork_server import start_server
from halfstep.params import ProfileParams
from halfstep.params.measures import measures_of
from halfstep.profile.differences import bridging_arms, check_configurations
from halfstep.profile.plan import BUFFER_SHARE
from halfstep.profile.records import ArmConfig, ArmRecord, Measurement
from halfstep.profile.turns import Turns
from halfstep.profile.worker_process import Serve, WorkerProcess
from halfstep.text import TRAIN, batch_size_of

WARM_UP_STEPS = 3  # the first one compiles; where the steady state begins is found in the rounds


class Arms:
    """The arms of a measurement.

    Args:
        configs: what each arm's workers need, by the arm's name. Bridging arms are added when it is known that they
            are needed.
        baseline: name of the arm that the others are compared with.
        profile: the timing protocol.
        measurement: to which what is measured is added.
        serve: what a worker process runs.
        trains: whether training is measured, and so must be the same in all arms.

    Attributes:
        turns: the turns of the processes that run.
        start_s: seconds from the first fork of a repeat until its processes were ready, without imports.
        drained_batches: batches that are used up before the first turn of a process.
        on_gpu: whether the arms compute on a GPU.
    """

    def __init__(
        self,
        configs: Mapping[str, ArmConfig],
        baseline: str,
        profile: ProfileParams,
        measurement: Measurement,
        serve: Serve,
        *,
        trains: bool = True,
    ) -> None:
        self._configs, self._baseline, self._profile, self._serve = dict(configs), baseline, profile, serve
        self._trains = trains
        self._records, self._repeat = measurement.records, 0
        self._stack = ExitStack()
        self._workers: list[WorkerProcess] = []
        self.turns = Turns(measurement, profile.order_seed, profile.rounds)
        self.start_s = 0.0
        self.drained_batches = 0
        self.on_gpu = False

    @property
    def names(self) -> list[str]:
        """The arms without bridging ones."""
        return [name for name in self._configs if not name.startswith(files.BRIDGE_PREFIX)]

    def measures(self, name: str) -> list[str]:
        """What is measured of an arm; everything of the baseline and of what is compared without one."""
        entry = self._configs[name].variant
        before = self._configs.get(self._baseline)
        sizes = self._profile.inference_batch_sizes
        return measures_of(entry, before.variant if before else entry, sizes, trains=self._trains)

    @property
    def workers(self) -> list[WorkerProcess]:
        """The processes that run."""
        return [worker for worker in self._workers if worker.is_alive]

    def import_tensorflow(self) -> None:
        """Starts an interpreter for each set of environment variables; they import at the same time."""
        for config in self._configs.values():
            start_server(config.variant.variables, python=config.variant.python)

    def device(self) -> str:
        """`CPU` or `GPU`, as a process of the first arm finds it."""
        name, config = next(iter(self._configs.items()))
        with closing(WorkerProcess(name, config, self._serve)) as worker:
            return str(worker.call("settings").configuration.device)

    @contextmanager
    def repeat(self, number: int) -> Iterator[None]:
        """The processes that are started in the block belong to this repeat, and end with the block."""
        self._repeat, self._workers, self.start_s = number, [], 0.0
        with ExitStack() as self._stack:
            try:
                yield
            finally:
                self.turns.end()

    def start(self, measures: Mapping[str, set[str]]) -> None:
        """Starts a process of each of these arms, ready for the first turn, beside those that run.

        Args:
            measures: what each arm is measured at.

        Raises:
            ProfileError: a worker failed, or the arms differ in more than their entries of `variants`.
        """
        started_s = time.monotonic()
        configs = {name: self._config(name) for name in measures}
        new = [
            self._stack.enter_context(
                closing(WorkerProcess(name, configs[name], self._serve, frozenset(measures[name])))
            )
            for name in measures
        ]
        self._workers += new
        for name, settings in together(new, "settings").items():
            self._records.setdefault(name, ArmRecord(configs[name].variant, settings)).settings = settings
        if self._trains:
            check_configurations(self._baseline, self._records)
        began_s = min(together(new, "began_s").values(), default=started_s)  # after the imports
        self._warm_up(new)
        seconds = time.monotonic() - max(started_s, began_s)
        self.start_s += seconds
        self.turns.begin(self._repeat, self._workers, new, seconds)

    def _config(self, name: str) -> ArmConfig:
        if name not in self._configs:
            self._configs |= bridging_arms(self._configs, self._records, self._baseline)
        return self._configs[name]

    def _warm_up(self, workers: Sequence[WorkerProcess]) -> None:
        """Compiles what the turns run, in all workers at the same time; each stands still when it is ready."""
        for worker in workers:
            worker.send("prepare_inference", sizes_of(worker.measures))
        answers(workers)
        training = [worker for worker in workers if TRAIN in worker.measures]
        for worker in training:
            worker.send("warm_up", self._profile.warmup_steps or WARM_UP_STEPS, self.drained_batches)
        answers(training, then=WorkerProcess.stand_still if len(self._workers) > 1 else None)

    def calibrate(self) -> None:
        """Measures what each arm that runs costs alone, unless that is known."""
        for worker in self._workers:
            record = self._records[worker.name]
            if record.calibration is None and (TRAIN in worker.measures or not self._trains):
                record.calibration = self.turns.call(worker, "calibrate", sizes_of(worker.measures))

    def settling_steps(self) -> int:
        """As `Turns.settling_steps`, of the first arm that waits for its input."""
        for worker in self._workers:
            cost = self._records[worker.name].calibration
            if cost and cost.step_time_ms and cost.input_time_ms > BUFFER_SHARE * cost.step_time_ms:
                return self.turns.settling_steps(worker, cost.input_time_ms)
        return 0


def sizes_of(measures: Collection[str]) -> tuple[int, ...]:
    """The batch sizes of inference among these measures."""
    return tuple(sorted(size for measure in measures if (size := batch_size_of(measure)) is not None))


def together(workers: Sequence[WorkerProcess], method: str, *arguments: Any) -> dict[str, Any]:
    """Calls a method of several workers at the same time, and returns the results by arm."""
    for worker in workers:
        worker.send(method, *arguments)
    return answers(workers)


def answers(workers: Sequence[WorkerProcess], then: Callable[[WorkerProcess], None] | None = None) -> dict[str, Any]:
    """The answers of several workers by arm; `then` is called with each worker as soon as it has answered."""
    answers_by_arm: dict[str, Any] = {}
    waiting: dict[Any, WorkerProcess] = {worker.connection: worker for worker in workers}
    while waiting:
        for connection in wait(list(waiting)):
            worker = waiting.pop(connection)
            answers_by_arm[worker.name] = worker.receive()
            if then is not None:
                then(worker)
    return {worker.name: answers_by_arm[worker.name] for worker in workers}
