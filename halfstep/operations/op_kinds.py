"""What an operation of a training step is for: the kinds that a change of the step is accounted by.

The first kind that fits counts. Gradients belong to the kind of their forward operation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from halfstep.operations.graph_names import graph_path
from halfstep.operations.layer_scopes import layers_above
from halfstep.operations.op_types import is_cast, op_category, plain_type, unversioned

OpKind = Literal[
    "input",
    "cast",
    "random",
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
StepKind = Literal[OpKind, "host"]  # an instant without an operation
# By the names of the classes of Keras's layers.
_LAYERS: dict[OpKind, re.Pattern[str]] = {
    "attention": re.compile(r"\w*Attention"),
    "recurrent": re.compile(r"\w*(?:LSTM|GRU|RNN)(?:Cell)?|ConvLSTM\dD|Bidirectional"),
    "normalization": re.compile(r"\w+Normalization"),
}
_RANDOM_TYPES = re.compile(r"\w*(?:Random|TruncatedNormal|StandardNormal|Multinomial|RngSkip|RngRead)\w*")
_INPUT_TYPES = re.compile(r"Optional\w+")  # how a step gets its batch
_GUARD_TYPES = {"IsFinite", "All", "LogicalAnd", "If"}  # of the check before an update, which XLA runs as one branch
_NUMBER = re.compile(r"_\d+$")
_CONDITION = re.compile(r"/cond(?:_\d+)?/(?:then|else)/_\d+/|^cond(?:_\d+)?/(?:then|else)/_\d+/")


class Place(NamedTuple):
    """Where an operation belongs: its kind, the layer that it is in with its class, and its type.

    The layer is empty for operations outside layers; the type is such as `Conv2D` or `Mul (gradient)`.
    """

    kind: OpKind
    layer: str
    layer_class: str
    operation: str


@dataclass(frozen=True)
class Layers:
    """What the names in a model's graph stand for.

    Attributes:
        classes: names of the layers' classes, by layer path, such as `sequential/conv2d`.
        scopes: the layers' paths by their scopes in the graph, as `layers_above` takes them.
        optimizers: names of the optimizers, such as `adam`.
        scales_loss: whether one of them is a `LossScaleOptimizer`.
    """

    classes: Mapping[str, str] = field(default_factory=dict)
    scopes: Mapping[str, str] = field(default_factory=dict)
    optimizers: tuple[str, ...] = ()
    scales_loss: bool = False

    def place(self, name: str, op_type: str, *, is_input: bool = False) -> Place:
        """Kind, layer and type of an operation.

        Args:
            name: in the graph, as a trace shows it.
            op_type: as a trace shows it.
            is_input: whether a thread of the input pipeline ran it.
        """
        path, is_gradient = graph_path(name)
        layers = {layer: self.classes[layer] for layer in layers_above(path[:-1], self.scopes)}
        plain = plain_type(op_type) or _NUMBER.sub("", path[-1])
        is_named = not is_gradient or "Grad" in plain or "Backprop" in plain
        layer, layer_class = list(layers.items())[-1] if layers else ("", "")
        return Place(
            kind=self._kind(name, path, op_type, set(layers.values()), is_input=is_input),
            layer=layer,
            layer_class=layer_class,
            operation=plain if is_named else f"{plain} (gradient)",
        )

    def _kind(self, name: str, path: tuple[str, ...], op_type: str, classes: set[str], *, is_input: bool) -> OpKind:
        plain = unversioned(plain_type(op_type))
        if is_input or op_category(op_type) == "input" or _INPUT_TYPES.fullmatch(plain):
            return "input"
        if is_cast(op_type):
            return "cast"
        if _RANDOM_TYPES.fullmatch(plain):
            return "random"
        if _NUMBER.sub("", path[0]) in self._optimizers:
            return "optimizer"
        if self.scales_loss and not classes and (plain in _GUARD_TYPES or _CONDITION.search(name)):
            return "loss_scaling"
        for kind, pattern in _LAYERS.items():
            if any(pattern.fullmatch(class_name) for class_name in classes):
                return kind
        if op_category(op_type) == "matrix":
            return "convolution" if "Conv" in plain else "matrix_product"
        return "memory" if op_category(op_type) == "memory" else "other"

    @cached_property
    def _optimizers(self) -> frozenset[str]:
        return frozenset(_NUMBER.sub("", name) for name in self.optimizers)
