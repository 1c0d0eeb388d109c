"""How the measurement went, for the reader of the results."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil

from stages.profile import gpu_conditions
from stages.profile.arms import Arms
from stages.profile.machine_load import OtherLoad
from stages.profile.stopping_rule import Decision, StoppingRule
from stages.results.profile import GpuConditions, Protocol

BUSY_SHARE = 0.05  # of the machine's cores; if other programs keep more than this busy, the protocol has a warning


def protocol_of(
    rule: StoppingRule,
    decision: Decision,
    arms: Arms,
    load: OtherLoad,
    gpus: tuple[GpuConditions, ...],
    drifting: int,
) -> Protocol:
    """The protocol of the measurement that `decision` ended; `drifting` is the number of processes that still drift."""
    assert decision.ended_by is not None, "the measurement has not ended"
    return Protocol(
        confidence=decision.confidence,
        processes=rule.processes,
        rounds=min(sum(row.counted for row in record.times.rounds) for record in arms.records.values()),
        steps_per_round=rule.plan.steps_per_round,
        timing_seconds=rule.timing_seconds,
        bridge_seconds=arms.turns.bridge_seconds,
        stage_seconds=time.time() - psutil.Process().create_time(),
        arms_at_once=arms.at_once,
        drifting_processes=drifting,
        ended_by=decision.ended_by,
        target_precision=rule.target_precision,
        interim_looks=decision.looks,
        other_load_cores=load.cores(),
        gpus=gpus,
        warnings=(
            *arms.warnings(),
            *load.warnings(BUSY_SHARE),
            *gpu_conditions.warnings(gpus),
            *_drift_warnings(drifting, arms.process + 1),
        ),
    )


def _drift_warnings(drifting: int, processes: int) -> Iterator[str]:
    """Yields a line if the times of several processes were still changing when they were measured."""
    if drifting > 1:
        yield (
            f"the step times of {drifting} of {processes} processes still changed during the counted rounds; raise "
            "profile.max_seconds, or look for a machine whose clock does not change"
        )
