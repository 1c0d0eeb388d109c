"""Before and after by operation: what each layer's operations cost in the baseline and in a candidate.

Kernels do not pair, for a float32 and a float16 kernel of one layer share no name; the operations of one layer do.
Their names in a trace differ between precisions in what the runtime adds: functions that it inlines
(`StatefulPartitionedCall/cond/then/_52/cond/adam/Mul_27`, with loss scaling), numbers (`AddN_5`), fusions
(`logits/BiasAdd` of type `_MklNativeFusedMatMul` instead of `logits/MatMul`). So operations of one type in one layer
are counted together, and those of its gradient beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from stages.compare.arms import Operation, Profile
from stages.compare.limit import compute_operations

_INLINED = re.compile(r"^(?:.*/)?(?:StatefulPartitionedCall|PartitionedCall|(?:then|else|body|cond)/_\d+)/")
_ADDED = re.compile(r"cond(?:_\d+)?|ArithmeticOptimizer")
_GRADIENT = "gradient_tape"
_LIBRARY_PREFIX = re.compile(r"^_*(?:Mkl)?(?:Native)?(?:PadWith)?(?:Fused(?!BatchNorm))?(?=[A-Z])")
_NUMBER = re.compile(r"_\d+$")
_VERSION = re.compile(r"V\d+$")
# Scopes inside of a layer, as tf.nn names them; and those that are named after an operation, as `Cast_5` and `MatMul`.
_INNER_SCOPES = {"convolution", "depthwise", "separable_conv2d", "moments", "batchnorm", "stateless_dropout"}
_INNER_SCOPES |= {"truediv", "div_no_nan", "MatMul", "BiasAdd"}


@dataclass(frozen=True)
class OperationChange:
    """One type of operation of one layer, in milliseconds a step; a side that does not hold it is None.

    Attributes:
        layer: path of the layer, as `cnn/conv2d`; empty for what belongs to none.
        operation: TensorFlow's type without the library's prefixes, as `Conv2D`, `Mul (gradient)`.
        baseline_dtype, candidate_dtype: the type in which it spends most of its time there.
    """

    layer: str
    operation: str
    baseline_ms: float | None
    candidate_ms: float | None
    baseline_dtype: str | None
    candidate_dtype: str | None

    @property
    def delta_ms(self) -> float:
        """What the step gained (negative) or lost (positive); what one side does not hold takes no time there."""
        return (self.candidate_ms or 0.0) - (self.baseline_ms or 0.0)


def operation_changes(baseline: Profile, candidate: Profile) -> tuple[OperationChange, ...]:
    """All operations of both profiles, paired by layer and type, those that gained the most first."""
    before, after = compute_operations(baseline), compute_operations(candidate)
    names = _Names.of([*before, *after])
    times_before, times_after = _times(before, names), _times(after, names)
    changes = [_change(*key, times_before.get(key), times_after.get(key)) for key in times_before | times_after]
    return tuple(sorted(changes, key=lambda change: (change.delta_ms, change.layer, change.operation)))


def gained(changes: Iterable[OperationChange], count: int = 10) -> tuple[OperationChange, ...]:
    """The operations that became faster, those that gained the most first."""
    faster = [change for change in changes if change.delta_ms < 0]
    return tuple(sorted(faster, key=lambda change: change.delta_ms)[:count])


def lost(changes: Iterable[OperationChange], count: int = 10) -> tuple[OperationChange, ...]:
    """The operations that became slower or are new, those that lost the most first."""
    slower = [change for change in changes if change.delta_ms > 0]
    return tuple(sorted(slower, key=lambda change: -change.delta_ms)[:count])


@dataclass
class _Time:
    """Time of one type of operation in one layer, by data type."""

    by_dtype_ms: dict[str | None, float] = field(default_factory=dict)

    def add(self, operation: Operation) -> None:
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
    """What tells where in a name the layer ends: the types of all operations, and the paths of forward nodes."""

    types: frozenset[str]
    forward: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> _Names:
        rows = [(_plain_type(operation), *_path(operation.name)) for operation in operations]
        types = frozenset(_VERSION.sub("", kind) for kind, _, _ in rows)
        return cls(types, frozenset(path for _, path, is_gradient in rows if not is_gradient))

    def key(self, operation: Operation) -> tuple[str, str]:
        """Layer and type of an operation. A gradient's node lies below the forward node that it is the gradient of."""
        path, is_gradient = _path(operation.name)
        kind = _plain_type(operation)
        inner = next((depth for depth, scope in enumerate(path[:-1]) if self._is_inner(scope)), len(path) - 1)
        layer = path[:inner]
        if is_gradient and layer in self.forward:
            layer = layer[:-1]
        told_by_type = "Grad" in kind or "Backprop" in kind
        return "/".join(layer), f"{kind} (gradient)" if is_gradient and not told_by_type else kind

    def _is_inner(self, scope: str) -> bool:
        stem = _NUMBER.sub("", scope)
        return stem in _INNER_SCOPES or stem in self.types


def _times(operations: Iterable[Operation], names: _Names) -> dict[tuple[str, str], _Time]:
    times: dict[tuple[str, str], _Time] = {}
    for operation in operations:
        times.setdefault(names.key(operation), _Time()).add(operation)
    return times


def _change(layer: str, operation: str, before: _Time | None, after: _Time | None) -> OperationChange:
    return OperationChange(
        layer,
        operation,
        baseline_ms=before.total_ms if before else None,
        candidate_ms=after.total_ms if after else None,
        baseline_dtype=before.dtype if before else None,
        candidate_dtype=after.dtype if after else None,
    )


def _plain_type(operation: Operation) -> str:
    """The type whichever library computes it; rows without one are named by their node."""
    return _LIBRARY_PREFIX.sub("", operation.type) or _NUMBER.sub("", _path(operation.name)[0][-1])


def _path(name: str) -> tuple[tuple[str, ...], bool]:
    """Scopes and node of an operation without what the runtime adds, and whether it is one of a gradient."""
    parts = [part for part in _INLINED.sub("", name).split("/") if not _ADDED.fullmatch(part)]
    return tuple(part for part in parts if part != _GRADIENT) or (name,), _GRADIENT in parts
