"""Names of operations in traces: without what the runtime adds to those of the graph.

It inlines functions (`StatefulPartitionedCall/cond/then/_52/cond/adam/Mul_27`, with loss scaling) and adds scopes of
its own; `MirroredStrategy` adds one for each replica but the first. In the gradient of a loop, `lstm/while/gradients/`
comes before the path of the forward node, which ends in `_grad`: `lstm/while/cell/MatMul_1_grad/MatMul`.
"""

from __future__ import annotations

import re

INLINED = re.compile(r"^(?:.*/)?(?:StatefulPartitionedCall|PartitionedCall|(?:then|else|body|cond)/_\d+)/")
_ADDED = re.compile(r"cond(?:_\d+)?|ArithmeticOptimizer|replica_\d+")
_GRADIENT, _LOOP_GRADIENT = "gradient_tape", "gradients"


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
