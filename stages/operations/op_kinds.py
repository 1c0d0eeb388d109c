"""What an operation of a training step is for: the kinds that a change of the step is accounted by.

The first kind that fits counts. Gradients belong to the kind of their forward operation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from stages.operations.op_pairing import graph_path
from stages.operations.op_types import is_cast, op_category, plain_type, unversioned

OpKind = Literal[
    "input",
    "cast",
    "loss_scaling",
    "optimizer",
    "attention",
    "recurrent",
    "normalization",
    "convolution",
    "matrix_product",
    "memory",
    "other",
]
# By the names of the classes of Keras's layers.
_LAYERS: dict[OpKind, re.Pattern[str]] = {
    "attention": re.compile(r"\w*Attention"),
    "recurrent": re.compile(r"\w*(?:LSTM|GRU|RNN)(?:Cell)?|ConvLSTM\dD|Bidirectional"),
    "normalization": re.compile(r"\w+Normalization"),
}
_INPUT_TYPES = re.compile(r"Optional\w+")  # how a step gets its batch
_FINITE_TYPES = {"IsFinite", "All", "LogicalAnd"}  # of the check before an update
_CONDITION = re.compile(r"/cond(?:_\d+)?/(?:then|else)/_\d+/|^cond(?:_\d+)?/(?:then|else)/_\d+/")
_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True)
class Layers:
    """What the names in a model's graph stand for.

    Attributes:
        classes: names of the layers' classes, by layer path, such as `sequential/conv2d`.
        optimizers: names of the optimizers, such as `adam`.
        scales_loss: whether one of them is a `LossScaleOptimizer`.
    """

    classes: Mapping[str, str] = field(default_factory=dict)
    optimizers: tuple[str, ...] = ()
    scales_loss: bool = False

    def kind(self, name: str, op_type: str, *, is_input: bool = False) -> OpKind:
        """The kind of an operation.

        Args:
            name: in the graph, as a trace shows it.
            op_type: as a trace shows it.
            is_input: whether a thread of the input pipeline ran it.
        """
        plain = unversioned(plain_type(op_type))
        if is_input or op_category(op_type) == "input" or _INPUT_TYPES.fullmatch(plain):
            return "input"
        if is_cast(op_type):
            return "cast"
        path = graph_path(name)[0]
        classes = self._classes_above(path)
        if _NUMBER.sub("", path[0]) in self._optimizers:
            return "optimizer"
        if self.scales_loss and not classes and (plain in _FINITE_TYPES or _CONDITION.search(name)):
            return "loss_scaling"
        for kind, pattern in _LAYERS.items():
            if any(pattern.fullmatch(found) for found in classes):
                return kind
        if op_category(op_type) == "matrix":
            return "convolution" if "Conv" in plain else "matrix_product"
        return "memory" if op_category(op_type) == "memory" else "other"

    @cached_property
    def _optimizers(self) -> frozenset[str]:
        return frozenset(_NUMBER.sub("", name) for name in self.optimizers)

    def _classes_above(self, path: tuple[str, ...]) -> set[str]:
        """The classes of all layers that an operation is in.

        Scopes of models may come before the path of a layer, and a layer that is traced again has a number more.
        """
        parts = [(part, _NUMBER.sub("", part)) for part in path[:-1]]
        found = set()
        for first in range(len(parts)):
            for last in range(first + 1, len(parts) + 1):
                above = "/".join(part for part, _ in parts[first : last - 1])
                for name in parts[last - 1]:
                    layer = self.classes.get(f"{above}/{name}" if above else name)
                    if layer is not None:
                        found.add(layer)
        return found
