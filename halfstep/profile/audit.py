"""Looks at a model without training it: the layers with their types and sizes, and the work of a forward pass.

The work is counted in the graph of a forward pass in training mode, on one example, so that layers inside layers and
layers that are used several times count as they run.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from halfstep.operations.layer_scopes import innermost_layer
from halfstep.results.audit import Finding, LayerAudit, ModelAudit, Totals
from halfstep.tasks.float32_layers import changes_bits
from halfstep.tasks.layers import layer_paths, recorded_scopes, with_model
from halfstep.tasks.traced_types import EXACT_WHOLE_NUMBERS, NAMES_OF_16_BITS, SIXTEEN_BITS
from halfstep.tasks.variables import random_state_kept
from halfstep.tensorflow_import import keras, tf

# Smaller numbers are nearer to 0 than to the smallest of the type, 2⁻²⁴.
SMALLEST_FLOAT16 = 2.0**-25
_MULTIPLE = 8
_WEIGHTS_READ = frozenset({"ReadVariableOp", "Const", "VarHandleOp", "Placeholder", "ResourceGather"})
_LOOPS = ("While", "StatelessWhile")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_EINSUM = re.compile(r"([a-zA-Z.]*),([a-zA-Z.]*)->([a-zA-Z.]*)")


def audit(model: keras.Model, inputs: Any, float32: Iterable[str] = ()) -> ModelAudit:
    """Looks at a built model.

    Args:
        model: of a task, under the variant's policy.
        inputs: for the forward pass, with one row; the values do not matter.
        float32: paths of the layers that `float32_layers` keeps in float32.
    """
    layers = layer_paths(model)
    root = model.path or model.name
    graph = _forward(model, inputs, with_model(model))
    own_work = graph is not None and any(map(_multiply_adds, graph.by_layer.get(root, ())))
    if own_work or any(_own_weights(model)):
        layers = with_model(model)
    last = [path for path, layer in layers.items() if getattr(layer, "kernel", None) is not None]
    audits = [_layer(path, layer, graph, last, set(float32)) for path, layer in layers.items()]
    if graph is not None and graph.output_layer in layers:
        audits = [_with_output(item, graph) if item.path == graph.output_layer else item for item in audits]
    return ModelAudit(layers=tuple(audits), totals=_totals(audits, graph))


@dataclass(frozen=True)
class _Graph:
    """A traced forward pass.

    Attributes:
        operations: with the path of the innermost layer of each, empty outside layers.
        layers: by path, the model itself included.
    """

    operations: Mapping[str, tuple[Any, str]]
    outputs: tuple[Any, ...]
    layers: Mapping[str, keras.layers.Layer]

    @cached_property
    def by_layer(self) -> dict[str, list[Any]]:
        """The operations of each layer."""
        by_path: dict[str, list[Any]] = defaultdict(list)
        for operation, path in self.operations.values():
            by_path[path].append(operation)
        return by_path

    @cached_property
    def casts(self) -> dict[str, int]:
        """Casts of activations between float32 and 16 bits, by the layer for which they are made."""
        counts: dict[str, int] = defaultdict(int)
        for operation, path in self.operations.values():
            if operation.type == "Cast" and changes_bits(operation) and not _is_weight(operation.inputs[0].op):
                readers = [self.place(reader) for reader in operation.outputs[0].consumers()]
                counts[next((reader for reader in readers if reader != path), path)] += 1
        return counts

    @property
    def output_layer(self) -> str:
        """The layer that gives the first output in 16 bits; empty without one."""
        for tensor in self.outputs:
            if tensor.dtype in SIXTEEN_BITS:
                operation = tensor.op
                while not self.place(operation) and operation.inputs:  # such as Identity
                    operation = operation.inputs[0].op
                return self.place(operation)
        return ""

    def place(self, operation: Any) -> str:
        """The path of the layer that an operation is in."""
        return self.operations[operation.name][1] if operation.name in self.operations else ""


def _forward(model: keras.Model, inputs: Any, layers: Mapping[str, keras.layers.Layer]) -> _Graph | None:
    """The graph of a forward pass; None if the model has none of its own, or it cannot be traced."""

    def of_one(array: Any) -> tf.TensorSpec:
        values = np.asarray(array)
        return tf.TensorSpec((1, *values.shape[1:]), values.dtype)

    specs = keras.tree.map_structure(of_one, inputs)
    with random_state_kept(), suppress(Exception):  # of the user's own model; `fit` says what is wrong
        with recorded_scopes(model) as scopes:
            traced = tf.function(lambda x: model(x, training=True), autograph=False).get_concrete_function(specs)
        operations = {
            operation.name: (operation, innermost_layer(operation.name, scopes))
            for operation in traced.graph.get_operations()
        }
        return _Graph(operations, tuple(traced.outputs), layers)
    return None


def _layer(
    path: str, layer: keras.layers.Layer, graph: _Graph | None, with_kernel: list[str], float32: set[str]
) -> LayerAudit:
    weights = list(_own_weights(layer))
    return LayerAudit(
        path=path,
        type=type(layer).__name__,
        compute_dtype=str(layer.compute_dtype),
        variable_dtype=str(layer.variable_dtype),
        parameters=sum(math.prod(weight.shape) for weight in weights),
        flops=None if graph is None else _flops(path, layer, graph),
        bytes=None if graph is None else _bytes(path, weights, layer, graph),
        findings=tuple(_findings(path, layer, graph, with_kernel, float32)),
    )


def _own_weights(layer: keras.layers.Layer) -> Iterator[Any]:
    """The weights of a layer without those of the layers inside it."""
    inner = {id(weight) for child in layer._layers for weight in child.weights}
    yield from (weight for weight in layer.weights if id(weight) not in inner)


def _flops(path: str, layer: keras.layers.Layer, graph: _Graph) -> int | None:
    if isinstance(layer, keras.layers.RNN) and any(node.type in _LOOPS for node in _below(path, graph)):
        return _of_recurrence(layer, path, graph)
    if any(isinstance(graph.layers[above], keras.layers.RNN) for above in _above(path, graph.layers)):
        return 0  # counts with the layer that repeats it
    counts = [_multiply_adds(operation) for operation in graph.by_layer.get(path, ())]
    return None if None in counts else 2 * sum(filter(None, counts))


def _above(path: str, layers: Mapping[str, Any]) -> list[str]:
    parts = path.split("/")
    return [above for count in range(1, len(parts)) if (above := "/".join(parts[:count])) in layers]


def _below(path: str, graph: _Graph) -> Iterator[Any]:
    for inner, operations in graph.by_layer.items():
        if inner == path or inner.startswith(f"{path}/"):
            yield from operations


def _of_recurrence(layer: keras.layers.RNN, path: str, graph: _Graph) -> int | None:
    """Each matrix of the cell is multiplied once in each step of the sequence."""
    loops = [operation for operation in _below(path, graph) if operation.type in _LOOPS]
    lengths = {int(size) for loop in loops if (size := _rounds(loop)) is not None}
    kernels = [weight.shape for weight in layer.weights if "kernel" in weight.name]
    if len(lengths) != 1 or any(len(shape) != 2 for shape in kernels):
        return None
    return 2 * lengths.pop() * sum(map(math.prod, kernels))


def _rounds(loop: Any) -> int | None:
    """How often a loop of a recurrent layer runs: once for each entry of the list that it reads."""
    lists = [tensor.op.inputs[0] for tensor in loop.inputs if tensor.op.type == "TensorListFromTensor"]
    return next((size for tensor in lists if (size := tensor.shape.as_list()[0]) is not None), None)


def _multiply_adds(operation: Any) -> int | None:
    """Of one operation; 0 if it is neither a matrix product nor a convolution, None if a size is not known."""
    if operation.type in _CALLS:  # of a function, such as a convolution in groups
        called = operation.graph._get_function(operation.get_attr("f").name).graph
        counts = list(map(_multiply_adds, called.get_operations()))
        return None if None in counts else sum(filter(None, counts))
    count = _COUNTS.get(operation.type)
    if count is None:
        return 0
    with suppress(TypeError, ValueError):  # of a size that is not known
        return int(count(operation))
    return None


def _size(tensor: Any) -> int:
    return math.prod(tensor.shape.as_list())


def _of_convolution(operation: Any) -> int:
    return _size(operation.outputs[0]) * math.prod(operation.inputs[1].shape.as_list()[:-1])


def _of_depthwise(operation: Any) -> int:
    return _size(operation.outputs[0]) * math.prod(operation.inputs[1].shape.as_list()[:-2])


def _of_transposed(operation: Any) -> int:
    return _size(operation.inputs[2]) * math.prod(operation.inputs[1].shape.as_list()[:-1])


def _of_product(transposed: str) -> Callable[[Any], int]:
    def count(operation: Any) -> int:
        shape = operation.inputs[0].shape.as_list()
        return _size(operation.outputs[0]) * int(shape[-2] if operation.get_attr(transposed) else shape[-1])

    return count


def _of_einsum(operation: Any) -> int:
    match = _EINSUM.fullmatch(operation.get_attr("equation").decode())
    if match is None or "." in match[0]:
        return 0 if match is None else _unknown()
    sizes: dict[str, int] = {}
    for labels, tensor in zip(match.groups()[:2], operation.inputs, strict=True):
        sizes |= dict(zip(labels, tensor.shape.as_list(), strict=True))
    return math.prod(sizes.values())


def _unknown() -> int:
    raise ValueError("the sizes are not known")


_COUNTS: dict[str, Callable[[Any], int]] = {
    "Conv2D": _of_convolution,
    "Conv3D": _of_convolution,
    "DepthwiseConv2dNative": _of_depthwise,
    "Conv2DBackpropInput": _of_transposed,
    "Conv3DBackpropInputV2": _of_transposed,
    "MatMul": _of_product("transpose_a"),
    "BatchMatMul": _of_product("adj_x"),
    "BatchMatMulV2": _of_product("adj_x"),
    "BatchMatMulV3": _of_product("adj_x"),
    "Einsum": _of_einsum,
}


def _bytes(path: str, weights: list[Any], layer: keras.layers.Layer, graph: _Graph) -> int | None:
    """The tensors that enter and leave a layer, and its weights in the type that it computes in."""
    itemsize = tf.as_dtype(layer.compute_dtype).size
    own = {operation.name for operation in graph.by_layer.get(path, ())}
    tensors: dict[str, Any] = {}
    for operation in graph.by_layer.get(path, ()):
        if _is_weight(operation):
            continue
        entering = [tensor for tensor in operation.inputs if tensor.op.name not in own and not _is_weight(tensor.op)]
        leaving = [
            tensor for tensor in operation.outputs if any(reader.name not in own for reader in tensor.consumers())
        ]
        tensors |= {tensor.name: tensor for tensor in (*entering, *leaving) if tensor.dtype != tf.resource}
    try:
        moved = sum(_size(tensor) * tensor.dtype.size for tensor in tensors.values())
    except (TypeError, ValueError):  # of a size that is not known
        return None
    return moved + itemsize * sum(math.prod(weight.shape) for weight in weights)


def _is_weight(operation: Any) -> bool:
    """Whether an operation gives a weight, perhaps cast."""
    while operation.type in ("Cast", "Identity", "Reshape") and operation.inputs:
        operation = operation.inputs[0].op
    return operation.type in _WEIGHTS_READ and operation.type != "Placeholder"


def _findings(
    path: str, layer: keras.layers.Layer, graph: _Graph | None, with_kernel: list[str], float32: set[str]
) -> Iterator[Finding]:
    in_16_bits = layer.compute_dtype in NAMES_OF_16_BITS
    is_mixed = keras.config.dtype_policy().compute_dtype in NAMES_OF_16_BITS
    if is_mixed and layer.compute_dtype == "float32" and not isinstance(layer, keras.Model):
        why = "because float32_layers says so" if path in float32 else "by its own dtype"
        yield Finding(code="stays_float32", text=f"computes in float32 {why}")
    if in_16_bits and (odd := _odd_sizes(path, layer, with_kernel)):
        yield Finding(
            code="size_not_multiple_of_8",
            text=f"{', '.join(map(str, odd))}: tensor cores are fastest with sizes that are multiples of {_MULTIPLE}",
        )
    if graph is None:
        return
    if count := graph.casts.get(path, 0):
        yield Finding(code="casts", text=f"{count} cast{'s' if count > 1 else ''} between float32 and 16 bits")
    yield from _numeric_findings(layer, graph.by_layer.get(path, ()))


def _numeric_findings(layer: keras.layers.Layer, operations: Iterable[Any]) -> Iterator[Finding]:
    types: set[str] = set()
    longest: dict[str, int] = {}
    for operation in operations:
        dtype = operation.outputs[0].dtype.name if operation.outputs else ""
        if dtype in EXACT_WHOLE_NUMBERS:
            types.add(dtype)
            longest[dtype] = max(longest.get(dtype, 0), _reduced(operation))
    for dtype, count in longest.items():
        if count > EXACT_WHOLE_NUMBERS[dtype]:
            limit = " and overflows past 65,504" if dtype == "float16" else ""
            yield Finding(
                code="long_reduction",
                text=f"reduces {count:,} values in {dtype}, which counts exactly to "
                f"{EXACT_WHOLE_NUMBERS[dtype]:,}{limit}",
            )
    epsilon = getattr(layer, "epsilon", None)
    if "float16" in types and isinstance(epsilon, float) and 0 < epsilon < SMALLEST_FLOAT16:
        yield Finding(code="small_epsilon", text=f"epsilon {epsilon:g} is 0 in float16: the smallest number is 6e-8")


def _reduced(operation: Any) -> int:
    """How many values an operation makes one of; 1 where that is not known."""
    if operation.type in ("Sum", "Mean", "SumV2", "Softmax", "LogSoftmax"):
        with suppress(TypeError, ValueError):
            given = operation.inputs[0]
            if "Softmax" in operation.type:
                return int(given.shape.as_list()[-1])
            return _size(given) // max(1, _size(operation.outputs[0]))
    return 1


def _odd_sizes(path: str, layer: keras.layers.Layer, with_kernel: list[str]) -> list[int]:
    """Channels in and out that are no multiples; those of the data and of the targets cannot be changed."""
    kernel = getattr(layer, "kernel", None)
    if kernel is None or isinstance(layer, keras.layers.EinsumDense):  # its axes may be anything
        return []
    before, after = kernel.shape[-2:]
    sizes = [] if path == with_kernel[0] else [before]
    sizes += [] if path == with_kernel[-1] or isinstance(layer, keras.layers.DepthwiseConv2D) else [after]
    return sorted({int(size) for size in sizes if size % _MULTIPLE})


def _with_output(layer_audit: LayerAudit, graph: _Graph) -> LayerAudit:
    name = layer_audit.path.rpartition("/")[2]
    finding = Finding(
        code="output_in_16_bits",
        text=f"gives the output in {layer_audit.compute_dtype}, in which loss and metrics lose digits: give '{name}' "
        f"dtype='float32', or set float32_layers: [{layer_audit.path}]",
        is_error=True,
    )
    return layer_audit.model_copy(update={"findings": (finding, *layer_audit.findings)})


def _totals(layers: list[LayerAudit], graph: _Graph | None) -> Totals:
    flops: dict[str, int] = defaultdict(int)
    for layer in layers:
        if layer.flops:
            flops[layer.compute_dtype] += layer.flops
    return Totals(
        parameters=sum(layer.parameters for layer in layers),
        flops=None if any(layer.flops is None for layer in layers) else sum(flops.values()),
        bytes=None if any(layer.bytes is None for layer in layers) else sum(filter(None, (x.bytes for x in layers))),
        flops_by_dtype=dict(flops),
        casts=None if graph is None else sum(graph.casts.values()),
    )
