"""Times of the operations in the baseline and in a candidate, paired by layer and op type
(`stages.operations.op_pairing`).

A change counts only beyond the operation's floor: what two traces of the same code differ by, those of the baseline and
of its second copy, the A/A control. One pair of traces says little about one operation, whose two times may agree by
chance. So the floor is the larger of its own difference and of what is usual for operations of similar time: the 95 %
quantile of the relative differences of the 20 operations whose times are nearest, times its own time. Where the two
traces differ by more than a quarter of the operation's time they disagree, and its change does not count at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.compare.explain.limit import compute_operations
from stages.operations.op_pairing import Key, PairedTime, paired_times
from stages.results.comparison import OpChange
from stages.results.profile import Profile

_SIMILAR = 20  # operations of similar time
_USUAL_SHARE = 0.95
_AGREE = 0.25  # of the mean time: largest difference of two traces of the same code that agree


def op_changes(baseline: Profile, candidate: Profile, control: Profile | None = None) -> tuple[OpChange, ...]:
    """All operations of both profiles, paired by layer and op type, the largest gain first.

    Args:
        baseline, candidate: profiles with a trace.
        control: the second copy of the baseline; its trace gives the floors.
    """
    before, after = compute_operations(baseline), compute_operations(candidate)
    again = compute_operations(control) if control else []
    times_before, times_after, times_again = paired_times(before, after, again)
    noise = _Noise.of(times_before, times_again) if before and again else None
    changes = [_change(key, times_before.get(key), times_after.get(key), noise) for key in times_before | times_after]
    return tuple(sorted(changes, key=lambda change: (change.delta_ms, change.layer, change.operation)))


def gained(changes: Iterable[OpChange], count: int = 10) -> tuple[OpChange, ...]:
    """The operations that became faster beyond their floors, the largest gain first."""
    faster = [change for change in changes if change.beyond_floor and change.delta_ms < 0]
    return tuple(sorted(faster, key=lambda change: change.delta_ms)[:count])


def lost(changes: Iterable[OpChange], count: int = 10) -> tuple[OpChange, ...]:
    """The operations that became slower or are new, beyond their floors, the largest loss first."""
    slower = [change for change in changes if change.beyond_floor and change.delta_ms > 0]
    return tuple(sorted(slower, key=lambda change: -change.delta_ms)[:count])


@dataclass(frozen=True)
class _Noise:
    """How much the operations of two traces of the same code differ.

    Attributes:
        own_ms: absolute difference of each operation.
        unclear: operations for which the two traces disagree.
        logs, relative: logarithm of each operation's mean time, and its difference relative to that time.
    """

    own_ms: dict[Key, float]
    unclear: frozenset[Key]
    logs: NDArray[np.float64]
    relative: NDArray[np.float64]

    @classmethod
    def of(cls, before: dict[Key, PairedTime], again: dict[Key, PairedTime]) -> _Noise:
        pairs = {key: (_total_ms(before.get(key)), _total_ms(again.get(key))) for key in before | again}
        own_ms = {key: abs(one - other) for key, (one, other) in pairs.items()}
        means = {key: sum(pair) / 2 for key, pair in pairs.items() if sum(pair) > 0}
        relative = [own_ms[key] / mean for key, mean in means.items()]
        unclear = frozenset(key for key, mean in means.items() if own_ms[key] > _AGREE * mean)
        return cls(own_ms, unclear, np.log(list(means.values())), np.array(relative))

    def floor_ms(self, key: Key, time_ms: float) -> float:
        """The floor of an operation that takes `time_ms` on its longer side; infinite where the two traces disagree."""
        if key in self.unclear:
            return math.inf
        if not self.relative.size or time_ms <= 0:
            return self.own_ms.get(key, 0.0)
        nearest = np.argsort(np.abs(self.logs - math.log(time_ms)), kind="stable")[:_SIMILAR]
        usual = float(np.quantile(self.relative[nearest], _USUAL_SHARE))
        return max(self.own_ms.get(key, 0.0), usual * time_ms)


def _total_ms(time: PairedTime | None) -> float:
    return time.total_ms if time else 0.0


def _change(key: Key, before: PairedTime | None, after: PairedTime | None, noise: _Noise | None) -> OpChange:
    layer, operation = key
    return OpChange(
        layer=layer,
        operation=operation,
        baseline_ms=before.total_ms if before else None,
        candidate_ms=after.total_ms if after else None,
        baseline_dtype=before.dtype if before else None,
        candidate_dtype=after.dtype if after else None,
        delta_ms=_total_ms(after) - _total_ms(before),
        floor_ms=noise.floor_ms(key, max(_total_ms(before), _total_ms(after))) if noise else None,
    )
