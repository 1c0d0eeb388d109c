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
from dataclasses import dataclass

from stages.compare.explain.layer_diff import OpChange, op_changes
from stages.compare.explain.limit import compute_operations
from stages.results.profile import Profile
from stages.stats.speedup import Speedup


@dataclass(frozen=True)
class Reconciliation:
    """The change of a training step, candidate − baseline, in milliseconds.

    Attributes:
        measured_ms, low_ms, high_ms: the timed change, with the interval of the speed-up.
        operations_ms: sum of the changes of all operations, multiplied by `scale`.
        unexplained_ms: measured − operations.
        floor_ms: what `operations_ms` may be by noise alone: the larger of the sum of the changes between the baseline
            and its second copy and of their root sum of squares, multiplied by `scale`.
        scale: time of the timed step for each millisecond of the traces.
    """

    measured_ms: float
    low_ms: float
    high_ms: float
    operations_ms: float
    unexplained_ms: float
    floor_ms: float
    scale: float = 1.0

    @property
    def contradicts(self) -> bool:
        """Whether the operations say faster where the timing says slower, or the other way round."""
        slower, faster = self.low_ms > 0, self.high_ms < 0
        return (slower and self.operations_ms < 0) or (faster and self.operations_ms > 0)

    def holds(self, lost_ms: float, gained_ms: float) -> bool:
        """Whether operations can have lost `lost_ms` of the timed step if the others have gained `gained_ms` of it.

        They cannot have lost more than was measured, what the others gained back, and the floor.
        """
        return not self.contradicts and lost_ms <= self.measured_ms + gained_ms + self.floor_ms


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
