"""Pairs the operations of traces by layer and op type.

Kernels do not pair: a float32 and a float16 kernel of one layer have different names. The operations of one layer do
pair. Between precisions their names differ only in what the runtime adds: inlined functions
(`StatefulPartitionedCall/cond/then/_52/cond/adam/Mul_27`, with loss scaling), numbers (`AddN_5`), fusions
(`logits/BiasAdd` of type `_MklNativeFusedMatMul` instead of `logits/MatMul`). So operations of one type in one layer
are summed, and those of its gradient separately. In the gradient of a loop, `lstm/while/gradients/` comes before the
path of the forward node, which ends in `_grad`: `lstm/while/cell/MatMul_1_grad/MatMul`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stages.operations.op_types import plain_type, unversioned

INLINED = re.compile(r"^(?:.*/)?(?:StatefulPartitionedCall|PartitionedCall|(?:then|else|body|cond)/_\d+)/")
_ADDED = re.compile(r"cond(?:_\d+)?|ArithmeticOptimizer")
_GRADIENT, _LOOP_GRADIENT = "gradient_tape", "gradients"
_NUMBER = re.compile(r"_\d+$")
# Scopes inside a layer: those of tf.nn, and those that are named after an operation, such as `Cast_5` and `MatMul`.
_INNER_SCOPES = {"convolution", "depthwise", "separable_conv2d", "moments", "batchnorm", "stateless_dropout"}
_INNER_SCOPES |= {"truediv", "div_no_nan", "MatMul", "BiasAdd"}

Key = tuple[str, str]  # layer, such as `cnn/conv2d` (empty outside layers), and op type, such as `Mul (gradient)`


class TimedOperation(NamedTuple):
    """An operation of a trace: its op type, its name in the graph, its time in milliseconds and its data type."""

    type: str
    name: str
    time_ms: float
    dtype: str | None = None


def paired_times(*traces: Sequence[TimedOperation]) -> list[dict[Key, dict[str | None, float]]]:
    """Milliseconds of the operations of each trace by layer and op type, and then by data type."""
    names = _Names.of([operation for trace in traces for operation in trace])
    return [_times(trace, names) for trace in traces]


@dataclass(frozen=True)
class _Names:
    """The names that show where in a path the layer ends: all op types, and the paths of forward nodes."""

    types: frozenset[str]
    forward: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, operations: Iterable[TimedOperation]) -> _Names:
        rows = [(_op_type(operation), *graph_path(operation.name)) for operation in operations]
        types = frozenset(unversioned(op_type) for op_type, _, _ in rows)
        return cls(types, frozenset(path for _, path, is_gradient in rows if not is_gradient))

    def key(self, operation: TimedOperation) -> Key:
        """Layer and type of an operation. The node of a gradient is below the forward node that it belongs to."""
        path, is_gradient = graph_path(operation.name)
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


def _times(operations: Iterable[TimedOperation], names: _Names) -> dict[Key, dict[str | None, float]]:
    times: dict[Key, dict[str | None, float]] = {}
    for operation in operations:
        by_dtype = times.setdefault(names.key(operation), {})
        by_dtype[operation.dtype] = by_dtype.get(operation.dtype, 0.0) + operation.time_ms
    return times


def _op_type(operation: TimedOperation) -> str:
    """Op type without library prefixes; the node's name for rows without a type."""
    return plain_type(operation.type) or _NUMBER.sub("", graph_path(operation.name)[0][-1])


def node_name(operation: str) -> str:
    """The name in the graph of an operation of a trace.

    `StatefulPartitionedCall/cond/then/_52/cond/adam/Mul_27` is node `cond/adam/Mul_27` of the branch's function.
    """
    return INLINED.sub("", operation)


def graph_path(name: str) -> tuple[tuple[str, ...], bool]:
    """Scopes and node of an operation without what the runtime adds, and whether it belongs to a gradient."""
    parts = [part for part in INLINED.sub("", name).split("/") if not _ADDED.fullmatch(part)]
    is_gradient = _GRADIENT in parts
    parts = [part for part in parts if part != _GRADIENT]
    if is_gradient and _LOOP_GRADIENT in parts:
        start = len(parts) - parts[::-1].index(_LOOP_GRADIENT)
        node = [part.removesuffix("_grad") for part in parts[start:]]
        parts = node if len(node) > 1 else parts[: start - 1] + node  # sums of gradients are in no scope of their own
    return tuple(parts) or (name,), is_gradient
