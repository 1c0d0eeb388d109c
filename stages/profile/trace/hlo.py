"""The data types of the kernels that XLA compiled, from the programs (HLO) that the profiler stores in a trace.

XLA names these kernels after an instruction of the program, `loop_multiply_fusion.3` for `loop_multiply_fusion_3`, and
the name shows no type. The schema is `xla/service/hlo.proto`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from google.protobuf import message

from stages.profile.trace.schema import Fields, message_class

_FIELDS: Fields = {
    "HloProto": [("hlo_module", 1, "Module")],
    "Module": [("computations", 3, "*Computation")],
    "Computation": [("instructions", 2, "*Instruction"), ("id", 5, "int64")],
    "Instruction": [
        ("name", 1, "bytes"),
        ("opcode", 2, "bytes"),
        ("shape", 3, "Shape"),
        ("id", 35, "int64"),
        ("operand_ids", 36, "*int64"),
        ("called_computation_ids", 38, "*int64"),
    ],
    "Shape": [("element_type", 2, "int32"), ("dimensions", 3, "*int64"), ("tuple_shapes", 4, "*Shape")],
}
_HLO = message_class("HloProto", "halfstep.hlo", _FIELDS)
# Numbers of PrimitiveType in xla_data.proto.
_TYPES = {10: "float16", 16: "bfloat16", 11: "float32", 12: "float64"}
_TYPES |= dict.fromkeys((19, 20, 23, 24, 25, 28, 29), "float8")
_TUPLE = 13
_PRODUCTS = {b"dot", b"convolution", b"scaled-dot", b"ragged-dot"}


def fusion_dtypes(programs: Iterable[bytes]) -> dict[str, str]:
    """The type that each fusion of some programs computes in, by the name of its kernel.

    It is that of the largest tensor that it reads or writes, of which integers and booleans (masks) only count where
    they are much larger than the others; of a matrix product it is that of the factors. A product of float32 factors is
    left out, because it may be computed in TF32, and so are names with different types in different programs. A program
    that cannot be read has no fusions.
    """
    found: dict[str, set[str | None]] = {}
    for program in programs:
        for name, dtype in _fusions(program):
            found.setdefault(name, set()).add(dtype)
    single = {name: next(iter(dtypes)) for name, dtypes in found.items() if len(dtypes) == 1}
    return {name: dtype for name, dtype in single.items() if dtype is not None}


def _fusions(program: bytes) -> Iterator[tuple[str, str | None]]:
    try:
        computations = _HLO.FromString(program).hlo_module.computations
    except message.DecodeError:
        return
    by_id = {computation.id: computation for computation in computations}
    for computation in computations:
        for instruction in computation.instructions:
            if instruction.opcode == b"fusion":
                name = re.sub(r"\W", "_", instruction.name.decode("utf-8", errors="replace"))
                yield name, _dtype(instruction, by_id)


def _dtype(fusion: Any, computations: dict[int, Any]) -> str | None:
    body = list(_body(fusion, computations))
    factors = [dtype for computation in body for dtype in _factors(computation)]
    if factors:
        return factors[0] if len(set(factors)) == 1 and factors[0] != "float32" else None
    read = [instruction.shape for part in body[:1] for instruction in part.instructions if _is_input(instruction)]
    sizes = [(prod(tensor.dimensions), _name(tensor)) for shape in (*read, fusion.shape) for tensor in _tensors(shape)]
    largest = max((size for size, _ in sizes), default=0)
    floating = [(size, dtype) for size, dtype in sizes if dtype != "other" and 2 * size >= largest]
    return max(floating or sizes, key=lambda item: item[0])[1] if sizes else None


def _body(instruction: Any, computations: dict[int, Any]) -> Iterator[Any]:
    """The computation that a fusion calls, and those that it calls in turn."""
    for number in instruction.called_computation_ids:
        if number in computations:
            yield computations[number]
            for inner in computations[number].instructions:
                yield from _body(inner, computations)


def _factors(computation: Any) -> Iterator[str]:
    """The types of both factors of each product."""
    shapes = {instruction.id: instruction.shape for instruction in computation.instructions}
    for instruction in computation.instructions:
        if instruction.opcode in _PRODUCTS:
            yield from (_name(shapes[number]) for number in instruction.operand_ids[:2] if number in shapes)


def _is_input(instruction: Any) -> bool:
    return bool(instruction.opcode == b"parameter")


def _tensors(shape: Any) -> Iterator[Any]:
    if shape.element_type == _TUPLE:
        for part in shape.tuple_shapes:
            yield from _tensors(part)
    else:
        yield shape


def _name(shape: Any) -> str:
    return _TYPES.get(shape.element_type, "other")
