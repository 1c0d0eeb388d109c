"""Measures all arms in repeats, each of which starts a process of every arm that it needs, until the rule ends it.

On a CPU the arms of a repeat take turns. On a GPU one arm is measured at a time: there, arms that live together would
share its memory, its power and the autotuner's scratch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from halfstep.machine.gpus import visible
from halfstep.params.schema import ProfileParams
from halfstep.profile.arms import Arms, order_of_arms
from halfstep.profile.extras import Extras
from halfstep.profile.gpu_conditions import GpuMonitor
from halfstep.profile.machine_load import OtherLoad
from halfstep.profile.plan import Costs, Plan, make_plan
from halfstep.profile.progress import Progress
from halfstep.profile.protocol import protocol_of
from halfstep.profile.records import Measurement
from halfstep.profile.repeats import Repeats, asks_for_more
from halfstep.profile.schedule import Schedule
from halfstep.profile.steady_state import mark_counted
from halfstep.profile.stopping_rule import StoppingRule, Target
from halfstep.profile.worker_process import Serve, serve_worker
from halfstep.results.profile import Protocol, Step
from halfstep.system import files
from halfstep.system.fork_server import stop_servers
from halfstep.system.telling import progress
from halfstep.tasks.trial import Trial
from halfstep.words.text import TRAIN


def _process_began_s() -> float:
    """When this process began, by the monotonic clock: the wall clock may be set meanwhile."""
    after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    began_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), since boot
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


@dataclass(frozen=True)
class MeasurementContext:
    """What a measurement needs beside its arms.

    Attributes:
        traces, trained: as of `Extras`.
        trainings_s: seconds that all compared trainings took together; 0 if nothing was trained.
        min_speedup: smallest speed-up worth having.
        trains: whether training is measured, and not inference alone.
        stage: which measures, for what is printed.
        began_s: when the stage began, by the monotonic clock; by default when this process did.
        keeps_servers: whether the interpreters that processes are forked from stay for another measurement.
    """

    traces: bool = True
    trained: Mapping[int, Path] = field(default_factory=dict)
    trainings_s: float = 0.0
    min_speedup: float = 1.05
    trains: bool = True
    stage: str = "profile"
    began_s: float = field(default_factory=_process_began_s)
    keeps_servers: bool = False


def measure(
    trials: Mapping[str, Trial],
    baseline: str,
    profile: ProfileParams,
    context: MeasurementContext,
    repeats: Repeats,
    serve: Serve = serve_worker,
) -> Measurement:
    """Measures all arms, and a bridging arm where settings other than the policy differ and it may matter.

    Args:
        trials: what each arm's workers need, by the arm's name.
        baseline: name of the arm that the others are compared with.
        profile: the timing protocol.
        context: what else is needed.
        repeats: where the times are kept; it may have those of an earlier session.
        serve: what a worker process runs.

    Raises:
        ProfileError: a worker failed, or the arms differ in more than their entries of `variants`.
    """
    visible_gpus = visible()  # with several GPUs, asking takes seconds
    gpus = GpuMonitor(visible_gpus)
    with ExitStack() as stack:
        if not context.keeps_servers:
            stack.callback(stop_servers)
        stack.enter_context(gpus.opened())
        runner = _Runner(trials, baseline, profile, context, repeats, serve, gpus)
        if visible_gpus.gpus and runner.arms.device() == "GPU":
            runner.arms.on_gpu, runner.arms.is_throttled = True, gpus.round_ended
        runner.interleaved = not runner.arms.on_gpu if profile.interleave is None else profile.interleave
        return runner.run()


class _Runner:
    """A measurement that runs. `interleaved` says whether the arms take turns."""

    def __init__(
        self,
        trials: Mapping[str, Trial],
        baseline: str,
        profile: ProfileParams,
        context: MeasurementContext,
        repeats: Repeats,
        serve: Serve,
        gpus: GpuMonitor,
    ) -> None:
        self._baseline, self._profile, self._context, self._repeats = baseline, profile, context, repeats
        self._measurement = repeats.measurement
        self._records = self._measurement.records
        self.arms = Arms(trials, baseline, profile, self._measurement, serve, trains=context.trains)
        self._extras = Extras(self.arms, repeats, traces=context.traces, trained=context.trained)
        self._gpus = gpus
        self._load = OtherLoad(context.stage, (self._measurement.counted_s, self._measurement.other_busy_s))
        self._measurement.resumed, self._earlier_s = self._measurement.repeats, self._measurement.stage_s
        self.interleaved = True

    def run(self) -> Measurement:
        """Measures until every measure has ended, and then what is missing beside the timing."""
        self.arms.import_tensorflow()
        self._resume()
        while self._goes_on():
            self._run_repeat()
        if self._rule.has_open:  # there are as many repeats as are asked for now, and none was run
            self._rule.look(self._schedule.out_of())
        self._finish()
        self._measurement.ended = self._protocol()
        return self._measurement

    def _resume(self) -> None:
        """Takes over what an earlier session measured."""
        measurement = self._measurement
        if measurement.plan is None:
            return
        if measurement.finished or asks_for_more(self._repeats.asked, measurement.asked):
            measurement.reopen()
        measurement.finished, measurement.asked = False, self._repeats.asked
        self._adopt_plan(measurement.plan)
        print(
            f"{self._context.stage}: goes on after {measurement.resumed} repeats of an earlier measurement", flush=True
        )
        self._schedule.learn(self._rule.speedups().values())

    def _goes_on(self) -> bool:
        return self._measurement.plan is None or (self._rule.has_open and self._schedule.out_of() is None)

    def _adopt_plan(self, plan: Plan) -> None:
        """Makes the schedule and the rule for a plan."""
        sizes = self._profile.inference_batch_sizes
        self.arms.drained_batches = plan.drained_batches
        self._schedule = Schedule(self._measurement, self._profile, self._spent_s)
        candidates = [name for name in self.arms.names if files.is_variant(name) and name != self._baseline]
        target = Target(
            precision=self._profile.target_precision,
            min_speedup=self._context.min_speedup,
            verdicts=max(1, sum(len(self.arms.measures(name)) for name in candidates)),
            interleaved=plan.interleaved,
            trains=self._context.trains,
        )
        self._rule = StoppingRule(self._measurement, self._baseline, sizes, target)
        self._progress = Progress(
            self._measurement, self._schedule, self.arms.names, self._baseline, self._context.stage
        )

    def _run_repeat(self) -> None:
        """Measures all arms that are needed: together in turns, or each in a process that has the machine for itself.

        Of those that are measured one at a time, all run as many rounds.
        """
        number = self._measurement.repeats
        progress(self._context.stage, f"repeat {number + 1} starts its processes")
        done, rounds, start_s = set[str](), None, 0.0
        self._gpus.between_processes()
        while self._measurement.repeats == number:
            needed = self._needed()
            left = [name for name in self._order([*needed]) if name not in done][: None if self.interleaved else 1]
            with self.arms.repeat(number):
                self.arms.start({name: needed[name] for name in left})
                start_s += self.arms.next_start_s
                if self._measurement.plan is None:
                    self._plan()
                if not self.interleaved:
                    self.arms.calibrate()
                    rounds = rounds or self._schedule.fixed_rounds()
                with self._load.counted(), self._gpus.measuring():
                    self._rounds(*rounds or (None, None))
                progress(self._context.stage, f"repeat {number + 1}: short traces")
                left_s = self._schedule.most_account_s - self._measurement.account_s
                self._extras.beside(self._schedule.plan, number, left_s)
                done |= {*left}
                if self.interleaved or done >= self._needed().keys():
                    self._schedule.learn_start(start_s)
                    self._end_repeat(number)
                self._extras.run(self._schedule.plan)
        self._save()

    def _order(self, names: list[str]) -> Sequence[str]:
        """The arms of a repeat; the first one begins with the baseline, by which it is planned, and is reversed next.

        A bridging arm follows when it is known that it is needed.
        """
        number = self._measurement.repeats
        names.sort(key=lambda name: name.startswith(files.BRIDGE_PREFIX))
        if number > 1 or self._baseline not in names:
            return order_of_arms(names, number, self._profile.order_seed)
        others = [name for name in names if name != self._baseline]
        return [self._baseline, *others][:: -1 if number else 1]

    def _needed(self) -> dict[str, set[str]]:
        """The measures by arm; before all arms are known, all measures of all arms but bridging ones."""
        if self._measurement.plan is None or not self._records.keys() >= set(self.arms.names):
            return {name: set(self.arms.measures(name)) for name in self.arms.names}
        control_s = self._measurement.seconds.get(files.CONTROL, 0.0)
        takes_control = self._schedule.takes_control(control_s, self._schedule.spent_s + self._earlier_s)
        return self._rule.needed(with_control=takes_control)

    @property
    def _spent_s(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self._context.began_s

    def _plan(self) -> None:
        """Makes the plan from what the arms that run cost alone, and starts the bridging arms that they need."""
        self.arms.calibrate()
        calibrations = {name: item.calibration for name, item in self._records.items() if item.calibration is not None}
        sizes = self._profile.inference_batch_sizes
        costs = Costs(
            start_s=self.arms.next_start_s,
            step_time_ms={name: cost.step_time_ms for name, cost in calibrations.items() if cost.step_time_ms},
            batch_size={name: self._records[name].settings.in_force.batch_size for name in calibrations},
            input_time_ms=max(cost.input_time_ms for cost in calibrations.values()),
            latency_ms={
                size: {name: cost.latency_ms[size] for name, cost in calibrations.items() if size in cost.latency_ms}
                for size in sizes
            },
            cold_calls={size: max(cost.cold_calls.get(size, 0) for cost in calibrations.values()) for size in sizes},
            buffered_batches=max(cost.buffered_batches for cost in calibrations.values()),
            trainings_s=self._context.trainings_s,
            arms=len(self.arms.names),
            settling_steps=self.arms.settling_steps(),
            spent_s=self._spent_s,
        )
        plan = make_plan(self._profile, costs, interleaved=self.interleaved)
        self._measurement.plan = plan
        self._adopt_plan(plan)
        self._progress.begin()
        if self.interleaved:
            needed, running = self._rule.needed(with_control=True), {worker.name for worker in self.arms.workers}
            self.arms.start({name: needed[name] for name in needed if name not in running})

    def _rounds(self, training: int | None = None, inference: int | None = None) -> None:
        """The rounds of the processes that live: training first, then inference; of a given number, or of a time."""
        plan = self._schedule.plan
        measures = {measure for worker in self.arms.workers for measure in worker.measures}
        training_s, inference_s = self._schedule.seconds(training=TRAIN in measures, inference=measures != {TRAIN})
        if TRAIN in measures:
            for number in self._schedule.rounds_until(training_s, training):
                self.arms.train(number, plan)
                self._progress.tick()
            if max(plan.steps_by_batch.values()) > 1:
                self.arms.train_single_steps(plan)
        if measures != {TRAIN}:
            for number in self._schedule.rounds_until(inference_s, inference):
                self.arms.infer(number, plan)
                self._progress.tick()

    def _end_repeat(self, number: int) -> None:
        """Counts the repeat, looks at the intervals, and writes it.

        If the time is up and some measures may still be settled, it is lengthened.
        """
        self._measurement.repeats = number + 1
        self._measurement.counted_s, self._measurement.other_busy_s = self._load.seconds
        mark_counted(self._records)
        out_of = self._schedule.out_of()
        self._rule.look(out_of, self._schedule.narrowing(out_of))
        is_over = out_of is not None and self._rule.has_open
        if is_over:
            self._schedule.go_on()
        self._schedule.learn(self._rule.speedups().values())
        self._measurement.stage_s = self._schedule.spent_s + self._earlier_s
        self._repeats.add(number)
        self._progress.after_repeat(self._rule, goes_on=self._goes_on(), beyond_plan=is_over)

    def _save(self) -> None:
        self._measurement.stage_s = self._schedule.spent_s + self._earlier_s
        self._repeats.save()

    def _finish(self) -> None:
        """Starts the arms once more that lack a trace, or the evaluation of the baseline's weights."""
        missing = self._extras.missing()
        for names in [[*missing]] if self.interleaved and missing else [[name] for name in missing]:
            with self.arms.repeat(self._measurement.repeats):
                self.arms.start({name: missing[name] for name in names})
                progress(self._context.stage, "traces, memory and accuracy of each variant")
                self._extras.run(self._schedule.plan)
        self._save()

    def _protocol(self) -> Protocol:
        for times in (record.times for record in self._records.values()):
            single = [row for row in times.rounds if row.counted and row.steps == 1]  # each is synchronised and timed
            times.steps = [Step(row.process, row.round, 0, row.round_time_ms) for row in single] or times.steps
        return protocol_of(
            self._measurement,
            self._baseline,
            drifting=mark_counted(self._records),
            load=self._load,
            gpus=self._gpus.conditions(),
            repeated=tuple(self.arms.warnings()),
        )
