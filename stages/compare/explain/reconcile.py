"""Holds the operations of the traces against the timing: measured = operations + unexplained.

The timing has no profiler attached and says what changed. The traces say where, but a trace is one short piece of one
process, the profiler makes each operation longer, and operations that run at the same time count twice. So the times of
both traces are multiplied by one factor: timed / traced step of the baseline's two copies, or timed step / sum of the
operations where that is longer, because they overlap; 1 at most. One factor for both sides leaves the sign of their
difference as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from stages.compare.explain.layer_diff import op_changes
from stages.compare.explain.limit import compute_operations
from stages.results.comparison import OpChange, Reconciliation
from stages.results.profile import Profile
from stages.stats.speedup import Speedup


def reconcile(
    baseline: Profile,
    candidate: Profile,
    control: Profile | None,
    speedup: Speedup,
    changes: Iterable[OpChange],
) -> Reconciliation | None:
    """Reconciles the `changes` between two traces with the speed-up of training.

    Returns:
        None if one of the three traces shows no operations that compute: with XLA on a CPU, or without a control.
    """
    if control is None or not all(compute_operations(profile) for profile in (baseline, candidate, control)):
        return None
    traced_ms = (_traced_ms(baseline) + _traced_ms(control)) / 2
    scale = min(1.0, speedup.baseline_time_ms / traced_ms) if traced_ms else 1.0
    noise = [change.delta_ms for change in op_changes(baseline, control)]
    operations_ms = scale * math.fsum(change.delta_ms for change in changes)
    low_ms, measured_ms, high_ms = (
        speedup.candidate_time_ms * (1 - ratio) for ratio in (speedup.high, speedup.ratio, speedup.low)
    )
    return Reconciliation(
        measured_ms=measured_ms,
        low_ms=low_ms,
        high_ms=high_ms,
        operations_ms=operations_ms,
        unexplained_ms=measured_ms - operations_ms,
        floor_ms=scale * max(abs(math.fsum(noise)), math.hypot(*noise)),
        scale=scale,
    )


def _traced_ms(profile: Profile) -> float:
    sum_ms = math.fsum(operation.self_time_ms_per_step for operation in compute_operations(profile))
    return max(profile.metrics.get("profiler/step_time_ms", 0.0), sum_ms)
