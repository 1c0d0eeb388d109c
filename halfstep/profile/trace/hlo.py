"""What XLA compiled: the data types and the operations of its instructions, from the programs (HLO) stored in a trace.

XLA names kernels of a GPU after an instruction of the program, `loop_multiply_fusion.3` for `loop_multiply_fusion_3`,
and the name shows no type. In a trace their TensorFlow operation is the call of the whole program; the program has for
most instructions the operation that they were made from. The schema is `xla/service/hlo.proto`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

from google.protobuf import message

from halfstep.profile.trace.messages import Fields, message_class

_FIELDS: Fields = {
    "HloProto": [("hlo_module", 1, "Module")],
    "Module": [("name", 1, "bytes"), ("computations", 3, "*Computation")],
    "Computation": [("instructions", 2, "*Instruction"), ("id", 5, "int64")],
    "Instruction": [
        ("name", 1, "bytes"),
        ("opcode", 2, "bytes"),
        ("shape", 3, "Shape"),
        ("metadata", 7, "OpMetadata"),
        ("id", 35, "int64"),
        ("operand_ids", 36, "*int64"),
        ("called_computation_ids", 38, "*int64"),
    ],
    "OpMetadata": [("op_type", 1, "bytes"), ("op_name", 2, "bytes")],
    "Shape": [("element_type", 2, "int32"), ("dimensions", 3, "*int64"), ("tuple_shapes", 4, "*Shape")],
}
_HLO = message_class("HloProto", "halfstep.hlo", _FIELDS)
# Numbers of PrimitiveType in xla_data.proto.
_TYPES = {10: "float16", 16: "bfloat16", 11: "float32", 12: "float64"}
_TYPES |= dict.fromkeys((19, 20, 23, 24, 25, 28, 29), "float8")
_TUPLE = 13
_NUMBER = re.compile(r"_\d+$")
_CONFIGURATION = re.compile(r"__XlaMustCompile_.*(?=\.\d+$)|__XlaMustCompile_.*$")
_PRODUCTS = {b"dot", b"convolution", b"scaled-dot", b"ragged-dot"}
_CONTROL = {"while", "conditional", "call"}


class Instruction(NamedTuple):
    """An instruction of a program.

    Attributes:
        operation, type: name and type of the operation of the graph that it was made from, of a fusion that of its
            result; empty for those that XLA added itself, such as copies.
        dtype: the type that it computes in, as of `fusion_dtypes`, also if it is not a fusion; a product of float32
            factors is one in float32, as there is no TF32 on a CPU.
        opcode: such as `fusion`.
        is_product: whether it multiplies, or a fusion with something that does.
    """

    operation: str = ""
    type: str = ""
    dtype: str | None = None
    opcode: str = ""
    is_product: bool = False

    @property
    def is_control(self) -> bool:
        """Whether it only runs other instructions, such as a loop."""
        return self.opcode in _CONTROL


def fusion_dtypes(programs: Iterable[bytes]) -> dict[str, str]:
    """The type that each fusion of some programs computes in, by the name of its kernel.

    It is that of the largest tensor that it reads or writes, of which integers and booleans (masks) only count where
    they are much larger than the others; of a matrix product it is that of the factors. A product of float32 factors is
    left out, because it may be computed in TF32, and so are names with different types in different programs. A program
    that cannot be read has no fusions.
    """
    dtypes_by_name: dict[str, set[str | None]] = {}
    for program in programs:
        for (_, name), one in _instructions(program).items():
            if one.opcode == "fusion":
                dtype = None if one.is_product and one.dtype == "float32" else one.dtype
                dtypes_by_name.setdefault(re.sub(r"\W", "_", name), set()).add(dtype)
    single = {name: next(iter(dtypes)) for name, dtypes in dtypes_by_name.items() if len(dtypes) == 1}
    return {name: dtype for name, dtype in single.items() if dtype is not None}


def instructions(programs: Iterable[bytes]) -> dict[tuple[str, str], Instruction]:
    """The instructions of some programs, by the names of the program, as `program_name` gives it, and of their own."""
    return {key: instruction for program in programs for key, instruction in _instructions(program).items()}


def program_name(module: str) -> str:
    """The name of a program as its kernels have it: without what TensorFlow writes between two underlines into it."""
    return _CONFIGURATION.sub("__", module)


_remembered = functools.lru_cache(maxsize=64)  # each short trace of a worker has the same programs


@_remembered
def _instructions(program: bytes) -> dict[tuple[str, str], Instruction]:
    module = _module(program)
    name, by_id = program_name(_text(module.name)), {computation.id: computation for computation in module.computations}
    by_name = {}
    for computation in module.computations:
        shapes = {instruction.id: instruction.shape for instruction in computation.instructions}
        for instruction in computation.instructions:
            operation = _text(instruction.metadata.op_name)
            op_type = _text(instruction.metadata.op_type) or _NUMBER.sub("", operation.rpartition("/")[2])
            body = list(_body(instruction, by_id)) if instruction.opcode == b"fusion" else []
            factors = _own_factors(instruction, shapes) or [dtype for part in body for dtype in _factors(part)]
            if factors:
                dtype = factors[0] if len(set(factors)) == 1 else None
            else:
                dtype = _dtype_of_largest(instruction, body, shapes)
            opcode = _text(instruction.opcode)
            by_name[name, _text(instruction.name)] = Instruction(operation, op_type, dtype, opcode, bool(factors))
    return by_name


@_remembered
def _module(program: bytes) -> Any:
    try:
        return _HLO.FromString(program).hlo_module
    except message.DecodeError:
        return _HLO().hlo_module


def _dtype_of_largest(instruction: Any, body: list[Any], shapes: dict[int, Any]) -> str | None:
    """The type of the largest tensor that an instruction reads or writes.

    Args:
        instruction: no product.
        body: the computations of a fusion; empty for others.
        shapes: of its own computation, by the instructions' numbers.
    """
    read = [one.shape for part in body[:1] for one in part.instructions if one.opcode == b"parameter"]
    read = read or [shapes[number] for number in instruction.operand_ids if number in shapes]
    tensors = [tensor for shape in (*read, instruction.shape) for tensor in _tensors(shape)]
    sizes = [(prod(tensor.dimensions), _name(tensor)) for tensor in tensors]
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


def _factors(computation: Any) -> list[str]:
    """The types of both factors of each product."""
    shapes = {instruction.id: instruction.shape for instruction in computation.instructions}
    return [dtype for instruction in computation.instructions for dtype in _own_factors(instruction, shapes)]


def _own_factors(instruction: Any, shapes: dict[int, Any]) -> list[str]:
    """The types of both factors of an instruction; none if it is not a product."""
    numbers = instruction.operand_ids[:2] if instruction.opcode in _PRODUCTS else ()
    return [_name(shapes[number]) for number in numbers if number in shapes]


def _tensors(shape: Any) -> Iterator[Any]:
    if shape.element_type == _TUPLE:
        for part in shape.tuple_shapes:
            yield from _tensors(part)
    else:
        yield shape


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


def _name(shape: Any) -> str:
    return _TYPES.get(shape.element_type, "other")
