"""Measures all arms: starts their processes, interleaves their turns, and stops when the stopping rule says so.

If the arms do not fit into the memory of a GPU at once, the measurement starts again with fewer of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from stages.gpus import visible
from stages.params import ProfileParams
from stages.profile.arms import Arms
from stages.profile.device_memory import DoesNotFitError, OutOfMemoryError, ReadMemory, device_memory_reader
from stages.profile.fork_server import stop_servers
from stages.profile.gpu_conditions import GpuMonitor
from stages.profile.machine_load import OtherLoad
from stages.profile.plan import Costs, Plan, make_plan
from stages.profile.progress import Progress
from stages.profile.protocol import protocol_of
from stages.profile.records import ArmConfig, Measurement
from stages.profile.steady_state import mark_counted
from stages.profile.stopping_rule import Decision, StoppingRule
from stages.profile.worker_process import Serve, serve_worker
from stages.stats.speedup import ALONE

INPUT_PROCESSES = 3  # in which the input is separated from compute; an interval needs so many


@dataclass(frozen=True)
class Extras:
    """What is done outside the timing, and what the plan needs to know.

    Attributes:
        scratch: a folder for the traces and for what XLA's autotuner chooses; None without these.
        trained: by seed, the folder of the baseline's training, whose weights are evaluated in each candidate.
        trainings_s: seconds that all compared trainings took together.
    """

    scratch: Path | None = None
    trained: Mapping[int, Path] | None = None
    trainings_s: float = 0.0


def measure(
    configs: Mapping[str, ArmConfig],
    baseline: str,
    profile: ProfileParams,
    extras: Extras,
    serve: Serve = serve_worker,
    read_memory: ReadMemory | None = None,
) -> Measurement:
    """Measures all arms in interleaved rounds, and a bridging arm where settings other than the policy differ.

    Every process of an arm is forked from an interpreter that was started for it, and the control from one of its own.

    Args:
        configs: what each arm's workers need, by the arm's name.
        baseline: name of the arm that the others are compared with.
        profile: the timing protocol.
        extras: what is done outside the timing.
        serve: what a worker process runs.
        read_memory: as of `Arms`; the default is what NVML reports of the first visible GPU.

    Raises:
        ProfileError: a worker failed, or the arms differ in more than their entries of `variants`.
    """
    found = visible()  # with several GPUs, asking takes seconds
    read_memory = read_memory or device_memory_reader(found)
    arms = Arms(configs, baseline, profile, serve, read_memory, extras.scratch)
    load, gpus = OtherLoad(), GpuMonitor(found)
    with ExitStack() as stack:
        stack.callback(stop_servers)
        stack.enter_context(gpus.opened())
        while True:
            try:
                return _measure(arms, baseline, profile, extras, load, gpus)
            except DoesNotFitError as error:
                print(f"profile: {error}; what was timed so far does not count", flush=True)
                print(f"profile: {arms.separate()}", flush=True)
                stop_servers()


def _measure(
    arms: Arms,
    baseline: str,
    profile: ProfileParams,
    extras: Extras,
    load: OtherLoad,
    gpus: GpuMonitor,
) -> Measurement:
    """Measures the arms in blocks of those that live at once, until the stopping rule ends it."""
    rule: StoppingRule | None = None
    afterwards = _Afterwards(arms, extras)
    while True:
        for number, names in enumerate(arms.blocks.in_next_order()):
            gpus.between_processes()
            protocol = None
            with arms.started(names, is_next=number == 0 or arms.at_once != ALONE):
                if arms.on_gpu:
                    arms.turns.is_throttled = gpus.round_ended
                if rule is None:
                    plan = _plan(arms, profile, extras.trainings_s)
                    rule = StoppingRule(plan, profile.target_precision, baseline, arms.records)
                    progress = Progress(plan, rule, len(arms.records))
                with load.counted(), gpus.measuring():
                    _run_process(arms, rule, plan, progress)
                rule.end_process()
                decision, drifting = _decide(arms, rule, progress) if rule.is_complete else (None, 0)
                is_over = decision is not None and decision.ended_by is not None
                if is_over or arms.at_once is not None:
                    afterwards.run(plan.trace_steps)
                if decision is not None and is_over:
                    protocol = protocol_of(rule, decision, arms, load, gpus.conditions(), drifting)
            if protocol is not None:
                afterwards.finish(plan.trace_steps)
                return Measurement(arms.records, protocol, plan.trace_steps, arms.same_weights)
            if arms.at_once != ALONE:
                stop_servers()
        stop_servers()


class _Afterwards:
    """What is done once with each arm after its turns: a trace, and the baseline's weights in its precision.

    Several arms do it while they live. Where the memory of the GPU is too short for that, each does it alone in the
    end, so that what was timed counts.
    """

    def __init__(self, arms: Arms, extras: Extras) -> None:
        self._arms, self._extras = arms, extras
        self._only_alone = False

    def run(self, trace_steps: int) -> None:
        """With the arms that live.

        Raises:
            OutOfMemoryError: there is too little memory although no other arm lives.
        """
        if self._only_alone and self._arms.can_be_fewer:
            return
        try:
            if self._extras.scratch:
                self._arms.trace(self._extras.scratch, trace_steps)
            self._arms.evaluate_same_weights(self._extras.trained or {})
        except OutOfMemoryError as error:
            if not self._arms.can_be_fewer:
                raise
            self._only_alone = True
            print(
                f"profile: {error.arm} ran out of memory after its timing ({error.shortage.details}); its trace and "
                "the baseline's weights follow in a process that has the GPU for itself",
                flush=True,
            )

    def finish(self, trace_steps: int) -> None:
        """With the other arms, one after the other."""
        for name in self._arms.unfinished(traced=self._extras.scratch is not None):
            with self._arms.started((name,), is_next=False):
                self.run(trace_steps)


def _decide(arms: Arms, rule: StoppingRule, progress: Progress) -> tuple[Decision, int]:
    """Whether to stop after a process of every arm, and the number of processes that still drift."""
    drifting = mark_counted(arms.records)
    if rule.plan.steps_per_round == 1:
        arms.turns.use_rounds_as_steps()
    decision = rule.decide()
    progress.after_process(decision)
    return decision, drifting


def _plan(arms: Arms, profile: ProfileParams, trainings_s: float) -> Plan:
    calibrations = arms.calibrations
    return make_plan(
        profile,
        Costs(
            startup_s=arms.startup_s,
            step_time_ms={name: found.step_time_ms for name, found in calibrations.items()},
            input_time_ms=max(found.input_time_ms for found in calibrations.values()),
            latency_ms=arms.latency_ms,
            buffered_batches=max(found.buffered_batches for found in calibrations.values()),
            trainings_s=trainings_s,
            blocks=arms.blocks.blocks,
            spent_s=arms.spent_s,
        ),
    )


def _run_process(arms: Arms, rule: StoppingRule, plan: Plan, progress: Progress) -> None:
    """The turns of one process of the arms that live: training first, then inference."""
    for number in rule.training_rounds():
        arms.turns.train(number, plan)
        progress.tick()
    if plan.steps_per_round > 1:
        arms.turns.train_single_steps(plan)
    if plan.input_matters and rule.processes < INPUT_PROCESSES:
        arms.separate_input_from_compute(plan)
    for number in rule.inference_rounds():
        arms.turns.infer(number, plan)
        progress.tick()
