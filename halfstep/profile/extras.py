"""What is measured beside the timing: in every repeat steps on a cached batch and short traces, and once a trace and
the baseline's weights.

A failure of one of these is a warning: it is absent from the results, and the timing counts.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from halfstep import files
from halfstep.errors import HalfstepError, ProfileError
from halfstep.params.measures import measures_of
from halfstep.profile.arms import Arms
from halfstep.profile.plan import Plan
from halfstep.profile.records import ArmRecord, TracedStretch
from halfstep.profile.repeats import Repeats
from halfstep.profile.worker_process import WorkerProcess
from halfstep.results.profile import AccountRow
from halfstep.stats.calm import calm_weights
from halfstep.text import TRAIN

CACHED, TRACE, SAME_WEIGHTS = "a step on a cached batch", "trace", "same weights"
MEMORY, LARGEST_BATCH, ACCOUNT, AUDIT = "peak memory", "largest batch", "account", "audit"


@dataclass(frozen=True)
class Wanted:
    """What is measured beside the timing.

    Attributes:
        traces: whether the arms are traced, and timed on a cached batch.
        trained: by seed, the folder of the baseline's training, whose weights are evaluated in each candidate.
    """

    traces: bool = True
    trained: Mapping[int, Path] | None = None


class Extras:
    """Runs what is still missing, in the worker processes that run.

    Args:
        baseline: name of the baseline's arm.
        wanted: what is measured.
        repeats: the measurement, and where traces and arrays are kept.
    """

    def __init__(self, baseline: str, wanted: Wanted, repeats: Repeats) -> None:
        self._baseline, self._wanted, self._repeats = baseline, wanted, repeats
        self._measurement, self._records = repeats.measurement, repeats.measurement.records

    def missing(self) -> dict[str, set[str]]:
        """The arms that lack something that has not failed, each with the measures that its process must have."""
        measures_by_arm: dict[str, set[str]] = {}
        for name in self._records:
            if self._lacks(name, TRACE):
                measures_by_arm[name] = {TRAIN}
            elif self._lacks(name, SAME_WEIGHTS):
                measures_by_arm[name] = set()
        return measures_by_arm

    def separate_input(self, arms: Arms, plan: Plan) -> None:
        """Times steps on the input pipeline and on one batch, in turns, of the variants that train in this repeat."""
        workers = [
            worker
            for worker in arms.workers
            if TRAIN in worker.measures and files.is_variant(worker.name) and plan.input_rounds and self._wanted.traces
        ]

        def attempt(worker: WorkerProcess, run: Callable[[], object]) -> None:
            record = self._records[worker.name]
            if CACHED not in record.failed and not self._attempt(worker, CACHED, run):
                record.times.input_rounds.clear()

        for worker in workers:
            attempt(worker, partial(arms.turns.call, worker, "prepare_cached"))
        for number in range(plan.input_rounds):
            for worker in arms.turns.in_order(number, CACHED, workers):
                attempt(worker, partial(arms.turns.separate_input, worker, number, plan))

    def account(self, arms: Arms, plan: Plan, repeat: int, left_s: float) -> None:
        """Runs short traces of the arms that train in this repeat, in turns, as many as fit into so many seconds.

        An arm whose trace fails has none.
        """
        workers = [worker for worker in arms.workers if TRAIN in worker.measures and self._is_accounted(worker.name)]
        stretches_by_arm: dict[str, list[TracedStretch]] = {worker.name: [] for worker in workers}

        def trace(worker: WorkerProcess) -> None:
            stretches_by_arm[worker.name] += arms.turns.account(worker, plan)

        turn_s = plan.account_turn_s
        for turn in range(plan.account_turns_in(repeat) if self._wanted.traces else 0):
            if left_s < turn_s:
                break
            before_s = self._measurement.account_s
            for worker in arms.turns.in_order(turn, ACCOUNT, workers):
                if ACCOUNT not in self._records[worker.name].failed:
                    self._attempt(worker, ACCOUNT, partial(trace, worker))
            turn_s = self._measurement.account_s - before_s
            left_s -= turn_s
        for name, stretches in stretches_by_arm.items():
            times = self._records[name].times
            if ACCOUNT in self._records[name].failed:
                times.account.clear()
            elif stretches:
                times.account += account_rows(repeat, stretches)

    def _is_accounted(self, name: str) -> bool:
        """Whether an arm has short traces; a step of another batch has other work."""
        sizes = {
            self._records[arm].settings.in_force.batch_size for arm in (name, self._baseline) if arm in self._records
        }
        is_comparable = not name.startswith(files.BRIDGE_PREFIX) and len(sizes) == 1
        return is_comparable and ACCOUNT not in self._records[name].failed

    def run(self, arms: Arms, plan: Plan) -> None:
        """Runs the missing extras in the processes that run."""
        for worker in arms.workers:
            record = self._records[worker.name]
            if record.calibration and record.calibration.peak_memory_bytes is None and MEMORY not in record.failed:
                failed(record, worker.name, MEMORY, ProfileError("TensorFlow reports none"))
        arms.turns.end()
        for worker in arms.workers:
            if TRAIN in worker.measures and self._lacks(worker.name, TRACE):
                self._attempt(worker, TRACE, partial(self._trace, worker, plan.trace_steps))
        for worker in arms.workers:
            if self._lacks(worker.name, AUDIT):
                self._attempt(worker, AUDIT, partial(self._audit, worker))
        for worker in arms.workers:
            if self._lacks(worker.name, SAME_WEIGHTS):
                self._attempt(worker, SAME_WEIGHTS, partial(self._evaluate, worker))

    def _lacks(self, name: str, what: str) -> bool:
        record, is_variant = self._records[name], files.is_variant(name)
        if what in record.failed or name.startswith(files.BRIDGE_PREFIX):
            return False
        if what == AUDIT:
            return self._wanted.traces and is_variant and record.audit is None
        if what == TRACE:
            return self._wanted.traces and record.trace is None
        missing = (self._wanted.trained or {}).keys() - record.same_weights.keys()
        return is_variant and name != self._baseline and bool(missing) and self._infers(record)

    def _infers(self, record: ArmRecord) -> bool:
        """Whether inference is measured of an arm; one that differs in training alone gives what the baseline gives."""
        before = self._records.get(self._baseline, record)
        return len(measures_of(record.entry, before.entry, (1,))) > 1

    def _trace(self, worker: WorkerProcess, steps: int) -> None:
        directory = self._repeats.traces / worker.name
        shutil.rmtree(directory, ignore_errors=True)  # of a trace that was interrupted
        try:
            record = worker.call("trace", directory, steps)
            find_trace(directory)
        except HalfstepError:
            shutil.rmtree(directory, ignore_errors=True)  # it may fill the disk
            raise
        self._records[worker.name].trace = record

    def _audit(self, worker: WorkerProcess) -> None:
        self._records[worker.name].audit = worker.call("audit")

    def _evaluate(self, worker: WorkerProcess) -> None:
        for seed, folder in (self._wanted.trained or {}).items():
            outputs = worker.call("same_weights", folder)
            self._records[worker.name].same_weights[seed] = self._repeats.keep_array(worker.name, seed, outputs)

    def _attempt(self, worker: WorkerProcess, what: str, run: Callable[[], object]) -> bool:
        """Runs it; an error is a warning, and is not tried again."""
        try:
            run()
        except HalfstepError as error:
            failed(self._records[worker.name], worker.name, what, error)
            return False
        return True


def account_rows(repeat: int, stretches: Sequence[TracedStretch]) -> list[AccountRow]:
    """What the calm stretches of an arm's traced steps were spent on in a repeat: their weighted mean."""
    times_ms: dict[AccountRow, float] = defaultdict(float)
    for stretch, weight in zip(stretches, calm_weights([one.step_ms for one in stretches]), strict=True):
        for row in stretch.rows if weight else ():
            times_ms[replace(row, process=repeat, time_ms=0.0)] += float(weight) * row.time_ms
    return [replace(row, time_ms=time_ms) for row, time_ms in times_ms.items()]


def find_trace(directory: Path) -> Path:
    """Finds the trace below a folder; the profiler chooses the names.

    Raises:
        ProfileError: the number of traces is not 1.
    """
    paths = list(directory.rglob("*.xplane.pb"))
    if len(paths) != 1:
        raise ProfileError(f"the profiler wrote {len(paths)} traces instead of one")
    return paths[0]


def failed(record: ArmRecord, name: str, what: str, error: HalfstepError) -> None:
    """Notes that an extra of an arm failed, and prints it."""
    record.failed[what] = " ".join(str(error).split()).removeprefix(f"profile: {name}: ")
    print(f"profile: warning: {consequence(name, what)} ({record.failed[what]})", flush=True)


def warnings(name: str, record: ArmRecord) -> Iterator[str]:
    """Yields a line for each extra that failed."""
    for what, reason in record.failed.items():
        yield f"{consequence(name, what)} ({reason})"


def consequence(name: str, what: str) -> str:
    """What an extra that failed leaves out."""
    missing = {
        CACHED: "it is not known what its input pipeline costs",
        TRACE: "it has no trace, and there are no reasons from it",
        SAME_WEIGHTS: "the baseline's weights were not evaluated in its precision, so inference is not adopted",
        MEMORY: "its peak memory is not known",
        LARGEST_BATCH: "its largest batch is not known",
        AUDIT: "its layers are not listed",
        ACCOUNT: "it is not known which operations its steps gain or lose time in",
    }
    return f"{name}: {missing[what]}"
