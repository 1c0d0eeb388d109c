"""The data type that each node of a traced training step computes in.

A profiler trace of a CPU names operations and no types; the graph that was run knows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stages.errors import ProfileError

# What a node computes in is its attribute T; a Cast has none and is counted by what it reads. Reads and updates of
# variables are counted by what they move: left out, a single one that had to wait would be percents of a short trace.
_TYPE_ATTRIBUTES = ("T", "SrcT", "dtype")  # the last of what is drawn at random, as in Dropout
_VARIABLE = re.compile(r"(?:Read|Assign|AssignAdd|AssignSub)VariableOp")


def graph_dtypes(train_function: Callable[..., Any], iterator: Any) -> dict[str, str]:
    """Reads the types from the graph of a model's `train_function`, its inner functions included.

    Args:
        train_function: `model.train_function` of a Keras model, after a step was run: a `tf.function`, or Keras's
            closure around one.
        iterator: the iterator that the steps are given; the graph traced for it is found again, not traced anew.

    Returns:
        Type by name of node, such as `{"functional/dense/MatMul": "bfloat16"}`. Left out are nodes without a type, and
        names that two functions give to nodes of different types.

    Raises:
        ProfileError: no graph is behind the function, as with `run_eagerly=True`.
    """
    graph = _traced_function(train_function).get_concrete_function(iterator).graph.as_graph_def()
    found: dict[str, str] = {}
    ambiguous: set[str] = set()
    for name, dtype in _typed_nodes(graph):
        if found.setdefault(name, dtype) != dtype:
            ambiguous.add(name)
    return {name: dtype for name, dtype in found.items() if name not in ambiguous}


def _traced_function(function: Callable[..., Any]) -> Any:
    cells = getattr(function, "__closure__", None) or ()
    for candidate in (function, *(cell.cell_contents for cell in cells)):
        if hasattr(candidate, "get_concrete_function"):
            return candidate
    raise ProfileError("the training step has no graph to read data types from: compile the model without run_eagerly")


def _typed_nodes(graph: Any) -> Iterator[tuple[str, str]]:
    bodies: Iterable[Any] = (graph.node, *(function.node_def for function in graph.library.function))
    for nodes in bodies:
        for node in nodes:
            dtype = _dtype(node)
            if dtype:
                yield node.name, dtype


def _dtype(node: Any) -> str | None:
    import tensorflow as tf  # here, for it takes seconds

    names = ("dtype",) if _VARIABLE.fullmatch(node.op) else _TYPE_ATTRIBUTES
    number = next((node.attr[name].type for name in names if node.attr[name].type), 0)
    return tf.dtypes.as_dtype(number).name if number else None
