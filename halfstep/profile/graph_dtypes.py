"""The data type that each node of a traced training step computes in.

A profiler trace of a CPU has operations without data types; they are read from the graph instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

from halfstep.errors import ProfileError

# A node computes in its attribute T. A Cast has none and counts by the type that it reads. Reads and updates of
# variables count by the type that they copy: in a short trace a single one that had to wait takes several percent.
# `dtype` is the type of random numbers, as in Dropout; `element_dtype` that of the lists in which loops keep values.
_TYPE_ATTRIBUTES = ("T", "SrcT", "dtype", "element_dtype")
_BOOLEAN = re.compile(r"All|Any|Logical(?:And|Or|Not)")  # these have no attribute
_VARIABLE = re.compile(r"(?:Read|Assign|AssignAdd|AssignSub)VariableOp")


def graph_dtypes(train_function: Callable[..., Any], iterator: Any) -> dict[str, str]:
    """Reads the types from the graph of a model's `train_function`, its inner functions included.

    Args:
        train_function: `model.train_function` of a Keras model after its first step: a `tf.function`, or Keras's
            closure around one.
        iterator: the iterator of the steps; the graph that was traced for it is reused.

    Returns:
        Data types by node name, such as `{"functional/dense/MatMul": "bfloat16"}`, without nodes that have no type and
        without names that occur in two functions with different types.

    Raises:
        ProfileError: the function has no graph, as with `run_eagerly=True`.
    """
    graph = _traced_function(train_function).get_concrete_function(iterator).graph.as_graph_def()
    dtypes: dict[str, str] = {}
    ambiguous: set[str] = set()
    for node in chain(graph.node, *(function.node_def for function in graph.library.function)):
        if (dtype := _dtype(node)) and dtypes.setdefault(node.name, dtype) != dtype:
            ambiguous.add(node.name)
    return {name: dtype for name, dtype in dtypes.items() if name not in ambiguous}


def _traced_function(function: Callable[..., Any]) -> Any:
    cells = getattr(function, "__closure__", None) or ()
    for candidate in (function, *(cell.cell_contents for cell in cells)):
        if hasattr(candidate, "get_concrete_function"):
            return candidate
    raise ProfileError("the training step has no graph to read data types from: compile the model without run_eagerly")


def _dtype(node: Any) -> str | None:
    from halfstep.tensorflow_import import tf  # takes seconds

    if _BOOLEAN.fullmatch(node.op):
        return "bool"
    names = ("dtype",) if _VARIABLE.fullmatch(node.op) else _TYPE_ATTRIBUTES
    number = next((node.attr[name].type for name in names if node.attr[name].type), 0)
    return tf.dtypes.as_dtype(number).name if number else None
