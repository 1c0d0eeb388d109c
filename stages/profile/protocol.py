"""How the measurement went, for the reader of the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stages import files
from stages.profile import extras, gpu_conditions
from stages.profile.machine_load import OtherLoad
from stages.profile.records import ArmRecord
from stages.profile.repeats import State
from stages.profile.steady_state import unsteady_measures
from stages.results.profile import GpuConditions, Protocol

BUSY_SHARE = 0.05  # of the machine's cores; if other programs keep more than this busy, the protocol has a warning


def protocol_of(
    state: State,
    records: Mapping[str, ArmRecord],
    baseline: str,
    *,
    drifting: int,
    load: OtherLoad,
    gpus: tuple[GpuConditions, ...],
    repeated: tuple[str, ...],
) -> Protocol:
    """The protocol of a measurement that has ended.

    Args:
        state: what is known of it.
        records: everything that was measured, by arm.
        baseline: name of the baseline's arm.
        drifting: number of repeats that still drift.
        load: of other programs, in this session.
        gpus: what the GPUs did, in this session.
        repeated: warnings about rounds that were repeated.
    """
    bridges = [seconds for name, seconds in state.seconds.items() if name.startswith(files.BRIDGE_PREFIX)]
    first = records.get(baseline) or next(iter(records.values()))
    return Protocol(
        processes=state.repeats,
        rounds=sum(row.counted for row in first.times.rounds),
        steps_per_round=state.plan.steps_of(first.settings.in_force.batch_size),
        timing_seconds=state.timing_s,
        bridge_seconds=sum(bridges) if bridges else None,
        control_seconds=state.seconds.get(files.CONTROL),
        account_seconds=state.account_s or None,
        stage_seconds=state.stage_s,
        interleaved=state.plan.interleaved,
        endings=state.endings,
        drifting_processes=drifting,
        unsteady=unsteady_measures(records),
        target_precision=state.asked["target_precision"] or 0.0,
        other_load_cores=load.cores(),
        gpus=gpus,
        warnings=(
            *_unused_gpus(records),
            *(line for name, record in records.items() for line in extras.warnings(name, record)),
            *repeated,
            *load.warnings(BUSY_SHARE),
            *gpu_conditions.warnings(gpus),
            *_drift_warnings(drifting, state.repeats),
        ),
    )


def _unused_gpus(records: Mapping[str, ArmRecord]) -> list[str]:
    """What the first arm's worker warned of; the others say the same."""
    found = [record.settings.warning for record in records.values()]
    return [found[0]] if found and found[0] is not None else []


def _drift_warnings(drifting: int, repeats: int) -> Iterator[str]:
    """Yields a line if the times of several repeats were still changing when they were measured."""
    if drifting > 1:
        yield (
            f"the step times of {drifting} of {repeats} repeats still changed during the counted rounds; raise "
            "profile.max_seconds, or look for a machine whose clock does not change"
        )
