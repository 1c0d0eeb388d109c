"""Times of the operations in the baseline and in a candidate, paired by layer and op type.

Kernels do not pair: a float32 and a float16 kernel of one layer have different names. The operations of one layer do
pair. Between precisions their names differ only in what the runtime adds: inlined functions
(`StatefulPartitionedCall/cond/then/_52/cond/adam/Mul_27`, with loss scaling), numbers (`AddN_5`), fusions
(`logits/BiasAdd` of type `_MklNativeFusedMatMul` instead of `logits/MatMul`). So operations of one type in one layer
are summed, and those of its gradient separately.

A change counts only beyond the operation's floor: what two traces of the same code differ by, those of the baseline and
of its second copy, the A/A control. One pair of traces says little about one operation, whose two times may agree by
chance. So the floor is the larger of its own difference and of what is usual for operations of similar time: the 95 %
quantile of the relative differences of the 20 operations whose times are nearest, times its own time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stages.compare.explain.limit import compute_operations
from stages.op_types import plain_type, unversioned
from stages.results.profile import OperationTime, Profile

_INLINED = re.compile(r"^(?:.*/)?(?:StatefulPartitionedCall|PartitionedCall|(?:then|else|body|cond)/_\d+)/")
_ADDED = re.compile(r"cond(?:_\d+)?|ArithmeticOptimizer")
_GRADIENT = "gradient_tape"
_NUMBER = re.compile(r"_\d+$")
# Scopes inside a layer: those of tf.nn, and those that are named after an operation, such as `Cast_5` and `MatMul`.
_INNER_SCOPES = {"convolution", "depthwise", "separable_conv2d", "moments", "batchnorm", "stateless_dropout"}
_INNER_SCOPES |= {"truediv", "div_no_nan", "MatMul", "BiasAdd"}
_SIMILAR = 20  # operations of similar time
_USUAL_SHARE = 0.95


@dataclass(frozen=True)
class OpChange:
    """The operations of one type in one layer, in milliseconds a step; None for a side without them.

    Attributes:
        layer: path of the layer, such as `cnn/conv2d`; empty for operations outside layers.
        operation: op type, such as `Conv2D` or `Mul (gradient)`.
        baseline_dtype, candidate_dtype: the data type with the most time.
        floor_ms: the change that noise alone may make; None without a trace of the control.
    """

    layer: str
    operation: str
    baseline_ms: float | None
    candidate_ms: float | None
    baseline_dtype: str | None
    candidate_dtype: str | None
    floor_ms: float | None = None

    @property
    def delta_ms(self) -> float:
        """Candidate − baseline: negative if the step gained. A side without the operations counts as 0."""
        return (self.candidate_ms or 0.0) - (self.baseline_ms or 0.0)

    @property
    def beyond_floor(self) -> bool:
        """Whether the change is larger than its floor; false if the floor is unknown."""
        return self.floor_ms is not None and abs(self.delta_ms) > self.floor_ms


def op_changes(baseline: Profile, candidate: Profile, control: Profile | None = None) -> tuple[OpChange, ...]:
    """All operations of both profiles, paired by layer and op type, the largest gain first.

    Args:
        baseline, candidate: profiles with a trace.
        control: the second copy of the baseline; its trace gives the floors.
    """
    before, after = compute_operations(baseline), compute_operations(candidate)
    again = compute_operations(control) if control else []
    names = _Names.of([*before, *after, *again])
    times_before, times_after = _times(before, names), _times(after, names)
    noise = _Noise.of(times_before, _times(again, names)) if before and again else None
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


@dataclass
class _Time:
    """Time of one op type in one layer, by data type."""

    by_dtype_ms: dict[str | None, float] = field(default_factory=dict)

    def add(self, operation: OperationTime) -> None:
        time_ms = self.by_dtype_ms.get(operation.dtype, 0.0) + operation.self_time_ms_per_step
        self.by_dtype_ms[operation.dtype] = time_ms

    @property
    def total_ms(self) -> float:
        return sum(self.by_dtype_ms.values())

    @property
    def dtype(self) -> str | None:
        return max(self.by_dtype_ms, key=self.by_dtype_ms.__getitem__)


@dataclass(frozen=True)
class _Names:
    """The names that show where in a path the layer ends: all op types, and the paths of forward nodes."""

    types: frozenset[str]
    forward: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, operations: Iterable[OperationTime]) -> _Names:
        rows = [(_op_type(operation), *_path(operation.name)) for operation in operations]
        types = frozenset(unversioned(op_type) for op_type, _, _ in rows)
        return cls(types, frozenset(path for _, path, is_gradient in rows if not is_gradient))

    def key(self, operation: OperationTime) -> tuple[str, str]:
        """Layer and type of an operation. The node of a gradient is below the forward node that it belongs to."""
        path, is_gradient = _path(operation.name)
        op_type = _op_type(operation)
        inner = next((depth for depth, scope in enumerate(path[:-1]) if self._is_inner(scope)), len(path) - 1)
        layer = path[:inner]
        if is_gradient and layer in self.forward:
            layer = layer[:-1]
        named_gradient = "Grad" in op_type or "Backprop" in op_type
        return "/".join(layer), f"{op_type} (gradient)" if is_gradient and not named_gradient else op_type

    def _is_inner(self, scope: str) -> bool:
        stem = _NUMBER.sub("", scope)
        return stem in _INNER_SCOPES or stem in self.types


_Key = tuple[str, str]  # layer and operation


@dataclass(frozen=True)
class _Noise:
    """How much the operations of two traces of the same code differ.

    Attributes:
        own_ms: absolute difference of each operation.
        logs, relative: logarithm of each operation's mean time, and its difference relative to that time.
    """

    own_ms: dict[_Key, float]
    logs: NDArray[np.float64]
    relative: NDArray[np.float64]

    @classmethod
    def of(cls, before: dict[_Key, _Time], again: dict[_Key, _Time]) -> _Noise:
        pairs = {key: (_total_ms(before.get(key)), _total_ms(again.get(key))) for key in before | again}
        own_ms = {key: abs(one - other) for key, (one, other) in pairs.items()}
        means = {key: sum(pair) / 2 for key, pair in pairs.items() if sum(pair) > 0}
        relative = [own_ms[key] / mean for key, mean in means.items()]
        return cls(own_ms, np.log(list(means.values())), np.array(relative))

    def floor_ms(self, key: _Key, time_ms: float) -> float:
        """The floor of an operation that takes `time_ms` on its longer side."""
        if not self.relative.size or time_ms <= 0:
            return self.own_ms.get(key, 0.0)
        nearest = np.argsort(np.abs(self.logs - math.log(time_ms)), kind="stable")[:_SIMILAR]
        usual = float(np.quantile(self.relative[nearest], _USUAL_SHARE))
        return max(self.own_ms.get(key, 0.0), usual * time_ms)


def _times(operations: Iterable[OperationTime], names: _Names) -> dict[_Key, _Time]:
    times: dict[_Key, _Time] = {}
    for operation in operations:
        times.setdefault(names.key(operation), _Time()).add(operation)
    return times


def _total_ms(time: _Time | None) -> float:
    return time.total_ms if time else 0.0


def _change(key: _Key, before: _Time | None, after: _Time | None, noise: _Noise | None) -> OpChange:
    return OpChange(
        *key,
        baseline_ms=before.total_ms if before else None,
        candidate_ms=after.total_ms if after else None,
        baseline_dtype=before.dtype if before else None,
        candidate_dtype=after.dtype if after else None,
        floor_ms=noise.floor_ms(key, max(_total_ms(before), _total_ms(after))) if noise else None,
    )


def _op_type(operation: OperationTime) -> str:
    """Op type without library prefixes; the node's name for rows without a type."""
    return plain_type(operation.type) or _NUMBER.sub("", _path(operation.name)[0][-1])


def _path(name: str) -> tuple[tuple[str, ...], bool]:
    """Scopes and node of an operation without what the runtime adds, and whether it belongs to a gradient."""
    parts = [part for part in _INLINED.sub("", name).split("/") if not _ADDED.fullmatch(part)]
    return tuple(part for part in parts if part != _GRADIENT) or (name,), _GRADIENT in parts
