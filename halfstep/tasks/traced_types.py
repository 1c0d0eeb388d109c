"""The types that a model computes in, by the graph of its forward pass: a layer's own dtype says less.

A layer that was loaded from a file keeps the type that it was saved with, whatever the policy says; code may cast by
itself; and some layers compute in 16 bits without having a matrix of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from halfstep.errors import PrecisionError
from halfstep.operations.layer_scopes import innermost_layer
from halfstep.params.schema import Variant
from halfstep.results.training import LARGEST_FLOAT16
from halfstep.tasks.layers import layer_paths, recorded_scopes
from halfstep.tasks.variables import has_step_of_keras, random_state_kept
from halfstep.tensorflow_import import keras, tf
from halfstep.words.text import number_text

SIXTEEN_BITS = frozenset({tf.float16, tf.bfloat16})
NAMES_OF_16_BITS = frozenset(dtype.name for dtype in SIXTEEN_BITS)
# Whole numbers up to here are exact, and adding ones one by one stops here.
EXACT_WHOLE_NUMBERS = {"float16": 2**11, "bfloat16": 2**8}
# These change no value, or are what a cast is. Keras's normalizations of layers and groups give what they have computed
# in float32 in the type of their inputs, and reshape it.
_NO_COMPUTATION = frozenset(
    {"Cast", "Identity", "NoOp", "Shape", "StopGradient", "PreventGradient", "Reshape", "Squeeze", "ExpandDims"}
    | {"Const", "Placeholder"}
)
_CHOICES = frozenset({"StridedSlice", "Slice", "Split", "SplitV", "Unpack", "GatherV2", "Transpose", "ConcatV2"})
_PRODUCTS = frozenset(
    {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "Conv3DBackpropInputV2", "Einsum"}
    | {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"}
)
_FUNCTIONS = ("f", "body", "then_branch", "else_branch")  # attributes of calls, loops and branches
_SHOWN = 5
_CURE = (
    "build the layers without a dtype of their own; those of a model that was loaded from a file keep the type they "
    "were saved with: after loading it, set layer.dtype_policy = keras.config.dtype_policy() for each of "
    "model._flatten_layers(include_self=False) but the last"
)


@dataclass(frozen=True)
class TracedTypes:
    """What the graph of a forward pass shows; of the whole step for a model with a `train_step` of its own.

    Attributes:
        products: by type, the paths of the layers that have matrix products and convolutions in it; empty for those
            outside layers.
        computed: the 16-bit types in which anything is computed.
        cast_inputs: by number of the input, in the order of `keras.tree.flatten`, the 16-bit type that it is cast to
            before anything is computed.
    """

    products: dict[str, list[str]] = field(default_factory=dict)
    computed: frozenset[str] = frozenset()
    cast_inputs: dict[int, str] = field(default_factory=dict)


def traced_types(model: keras.Model, batch: Any) -> TracedTypes | None:
    """Traces a forward pass, which changes no weight and no state of random numbers.

    Args:
        model: built and compiled.
        batch: the specification of a training batch.

    Returns:
        None if the model cannot be traced, such as one that runs eagerly.
    """
    with suppress(Exception):  # of the user's own code; `fit` says what is wrong
        with recorded_scopes(model) as scopes:
            traced = trace(model, batch)
        return _types(traced, scopes, keras.tree.flatten(_arguments(model, batch)))
    return None


def trace(model: keras.Model, batch: Any) -> Any:
    """The traced function of a forward pass, or of the whole step if it is the model's own."""
    arguments = _arguments(model, batch)
    with random_state_kept():
        if not has_step_of_keras(model):
            return tf.function(model.train_step, autograph=False).get_concrete_function(arguments)
        return tf.function(lambda x: model(x, training=True), autograph=False).get_concrete_function(arguments)


def _arguments(model: keras.Model, batch: Any) -> Any:
    return keras.utils.unpack_x_y_sample_weight(batch)[0] if has_step_of_keras(model) else batch


def computes_in_16_bits(operation: Any) -> bool:
    """Whether an operation computes, and gives 16 bits."""
    outputs = operation.outputs
    return operation.type not in _NO_COMPUTATION and any(output.dtype.base_dtype in SIXTEEN_BITS for output in outputs)


def verify(model: keras.Model, variant: Variant, types: TracedTypes) -> None:
    """Checks that a model computes in the type of its variant.

    Some layers may compute in float32, because the user says so. A layer such as Embedding only casts what it gives.

    Raises:
        PrecisionError: nothing is computed in the variant's type, or matrix products are computed in another one of 16
            bits; the message names the layers and what to do.
    """
    expected = variant.dtype_policy.compute.name
    problems = [
        f"layers compute in {dtype}: {_first(paths)}"
        for dtype, paths in types.products.items()
        if dtype in NAMES_OF_16_BITS - {expected}
    ]
    has_layer = any(layer.weights and layer.compute_dtype == expected for layer in layer_paths(model).values())
    if expected in NAMES_OF_16_BITS - types.computed and not has_layer:
        float32_paths = types.products.get("float32", [])
        problems.append(
            f"nothing is computed in {expected}"
            + (f": layers compute in float32: {_first(float32_paths)}" if float32_paths else "")
        )
    if problems:
        raise PrecisionError(f"policy {variant.policy} is not in force: {'; '.join(problems)}; {_CURE}")


def _first(paths: Sequence[str]) -> str:
    named = [path or "code outside layers" for path in paths]
    return ", ".join(named[:_SHOWN]) + (f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else "")


def lost_inputs(types: TracedTypes, batches: Iterable[Any], model: keras.Model) -> Iterator[str]:
    """Says which inputs 16 bits cannot hold: whole numbers that are rounded, such as ids, and too large values.

    Args:
        types: of the model.
        batches: of training data.
        model: the model.

    Yields:
        A line for each input, or each column of a table; of many, the first ones.
    """
    ranges: dict[str, _Range] = {}
    for batch in batches if types.cast_inputs else ():
        inputs = keras.tree.flatten_with_path(_arguments(model, batch))
        for number, dtype in types.cast_inputs.items():
            path, values = inputs[number]
            name = f"the input {'/'.join(map(str, path))}" if path else "the input"
            for part, column in _columns(np.asarray(values)):
                ranges.setdefault(name + part, _Range(dtype)).add(column)
    lines = [line for name, values in ranges.items() if (line := values.line(name))]
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"so do {len(lines) - _SHOWN} more inputs or columns"


@dataclass
class _Range:
    """The values of an input, or of a column of it, that is cast to 16 bits."""

    dtype: str
    largest: float = 0.0
    is_whole: bool = True

    def add(self, values: np.ndarray) -> None:
        finite = np.asarray(values, np.float64)
        finite = finite[np.isfinite(finite)]
        self.largest = max(self.largest, float(np.abs(finite).max(initial=0.0)))
        self.is_whole = self.is_whole and bool(np.all(finite == np.rint(finite)))

    def line(self, name: str) -> str | None:
        """What is lost; None if nothing is."""
        exact = EXACT_WHOLE_NUMBERS[self.dtype]
        if self.dtype == "float16" and self.largest > LARGEST_FLOAT16:
            return (
                f"{name} reaches {number_text(self.largest)} and is cast to float16, which ends at 65,504: scale it "
                "before the model, as by a keras.layers.Normalization(dtype='float32') over the data"
            )
        if self.is_whole and self.largest > exact:
            return (
                f"{name} has whole numbers up to {number_text(self.largest)} and is cast to {self.dtype}, which rounds "
                f"those above {exact:,}: if they are ids, give them as integers; else scale them before the model"
            )
        return None


def _columns(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The columns of a table; other arrays as they are. Integers are not cast."""
    if not np.issubdtype(values.dtype, np.floating):
        return
    if values.ndim == 2 and values.shape[1] > 1:
        yield from ((f", column {number}", values[:, number]) for number in range(values.shape[1]))
    else:
        yield "", values


def _types(traced: Any, scopes: dict[str, str], specs: Sequence[Any]) -> TracedTypes:
    products: dict[str, dict[str, None]] = {}
    computed: set[str] = set()
    for name, operation in _operations(traced.graph):
        dtype = operation.outputs[0].dtype.base_dtype.name if operation.outputs else ""
        if operation.type in _PRODUCTS:
            products.setdefault(dtype, {})[innermost_layer(name, scopes)] = None
        if computes_in_16_bits(operation):
            computed |= {output.dtype.base_dtype.name for output in operation.outputs} & NAMES_OF_16_BITS
    given = traced.inputs[: len(specs)]
    if not all(isinstance(spec, tf.TensorSpec) for spec in specs):  # a ragged or sparse input is several tensors
        given = []
    casts = {number: cast_type for number, tensor in enumerate(given) if (cast_type := _cast_of(tensor)) is not None}
    return TracedTypes({dtype: list(paths) for dtype, paths in products.items()}, frozenset(computed), casts)


def _operations(graph: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The operations of a graph and of the functions that it calls, which stand where they are called."""
    for operation in graph.get_operations():
        name = above or operation.name
        yield name, operation
        for attribute in _FUNCTIONS:
            with suppress(ValueError):  # it has no such attribute
                function = graph._get_function(operation.get_attr(attribute).name)
                if function is not None:
                    yield from _operations(function.graph, name)


def _cast_of(tensor: Any) -> str | None:
    """The 16-bit type that a float tensor is cast to before anything is computed of it."""
    for reader in tensor.consumers():
        if reader.type == "Cast" and reader.outputs[0].dtype in SIXTEEN_BITS and tensor.dtype.is_floating:
            return str(reader.outputs[0].dtype.name)
        if reader.type in _NO_COMPUTATION | _CHOICES and reader.type != "Cast":
            for output in reader.outputs:
                if (dtype := _cast_of(output)) is not None:
                    return dtype
    return None
