"""Pairs the operations of traces by layer and op type.

Kernels do not pair: a float32 and a float16 kernel of one layer have different names. The operations of one layer do
pair. Between precisions their names differ only in what the runtime adds (`operations/graph_names.py`), in numbers
(`AddN_5`) and in fusions (`logits/BiasAdd` of type `_MklNativeFusedMatMul` instead of `logits/MatMul`). So operations
of one type in one layer are summed, and those of its gradient separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from halfstep.operations.graph_names import graph_path
from halfstep.operations.op_types import plain_type, unversioned
from halfstep.profile.trace.model import Operation

_NUMBER = re.compile(r"_\d+$")
# Scopes inside a layer: those of tf.nn, and those that are named after an operation, such as `Cast_5` and `MatMul`.
_INNER_SCOPES = {"convolution", "depthwise", "separable_conv2d", "moments", "batchnorm", "stateless_dropout"}
_INNER_SCOPES |= {"truediv", "div_no_nan", "MatMul", "BiasAdd"}

Key = tuple[str, str]  # layer, such as `cnn/conv2d` (empty outside layers), and op type, such as `Mul (gradient)`
Timed = tuple[Operation, float]  # with milliseconds


def paired_times(*traces: Sequence[Timed]) -> list[dict[Key, dict[str | None, float]]]:
    """Milliseconds of the operations of each trace by layer and op type, and then by data type.

    Args:
        traces: the operations of each, with the milliseconds that count.
    """
    names = _Names.of([operation for trace in traces for operation, _ in trace])
    return [_times(trace, names) for trace in traces]


@dataclass(frozen=True)
class _Names:
    """The names that show where in a path the layer ends: all op types, and the paths of forward nodes."""

    types: frozenset[str]
    forward: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> _Names:
        rows = [(_op_type(operation), *graph_path(operation.name)) for operation in operations]
        types = frozenset(unversioned(op_type) for op_type, _, _ in rows)
        return cls(types, frozenset(path for _, path, is_gradient in rows if not is_gradient))

    def key(self, operation: Operation) -> Key:
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


def _times(operations: Iterable[Timed], names: _Names) -> dict[Key, dict[str | None, float]]:
    times: dict[Key, dict[str | None, float]] = {}
    for operation, time_ms in operations:
        by_dtype = times.setdefault(names.key(operation), {})
        by_dtype[operation.dtype] = by_dtype.get(operation.dtype, 0.0) + time_ms
    return times


def _op_type(operation: Operation) -> str:
    """Op type without library prefixes; the node's name for rows without a type."""
    return plain_type(operation.type) or _NUMBER.sub("", graph_path(operation.name)[0][-1])
