from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from halfstep.profile.trace import read_trace
from halfstep.profile.trace.hlo import _FIELDS, _HLO, _TUPLE, _TYPES, fusion_dtypes

F16, F32, BF16, PRED = 10, 11, 16, 1
Tensor = tuple[int, tuple[int, ...]]  # type and dimensions


def shaped(message: Any, *tensors: Tensor) -> None:
    """Fills in a shape: of one tensor, or of a tuple of several."""
    if len(tensors) > 1:
        message.element_type = _TUPLE
    for dtype, dimensions in tensors:
        part = message.tuple_shapes.add() if len(tensors) > 1 else message
        part.element_type = dtype
        part.dimensions.extend(dimensions)


def program(name: str, reads: list[Tensor], writes: list[Tensor], product: bool = False) -> bytes:
    """A program with one fusion, which multiplies its first two inputs if it is a product."""
    message = _HLO()
    entry, body = message.hlo_module.computations.add(id=1), message.hlo_module.computations.add(id=2)
    fusion = entry.instructions.add(name=name.encode(), opcode=b"fusion", id=100, called_computation_ids=[2])
    shaped(fusion.shape, *writes)
    for number, tensor in enumerate(reads):
        shaped(body.instructions.add(name=b"p", opcode=b"parameter", id=number).shape, tensor)
    if product:
        shaped(body.instructions.add(name=b"dot.1", opcode=b"dot", id=50, operand_ids=[0, 1]).shape, *writes)
    return bytes(message.SerializeToString())


IMAGES = (32, 16, 16, 8)
CASES = {
    "activation in 16 bit": (program("loop_maximum_fusion.3", [(F16, IMAGES)], [(F16, IMAGES)]), "float16"),
    "normalization": (program("loop_add_fusion", [(BF16, IMAGES), (F32, (8,))], [(BF16, IMAGES)]), "bfloat16"),
    "several outputs": (program("input_reduce_fusion", [(F32, (8,))], [(F32, (8,)), (F16, IMAGES)]), "float16"),
    "conversion counts by what it reads": (program("c_fusion", [(F32, IMAGES)], [(F16, IMAGES)]), "float32"),
    "gradient with a mask": (program("g_fusion", [(PRED, IMAGES), (F16, IMAGES)], [(F16, IMAGES)]), "float16"),
    "booleans and a number": (program("b_fusion", [(PRED, IMAGES), (F32, ())], [(PRED, IMAGES)]), "other"),
    "mask": (program("loop_compare_fusion", [(PRED, IMAGES)], [(PRED, IMAGES)]), "other"),
    "product in bfloat16 into float32": (
        program("gemm_fusion_dot.2", [(BF16, (64, 64)), (BF16, (64, 8))], [(F32, (64, 8))], product=True),
        "bfloat16",
    ),
    "product of float32 may be TF32": (
        program("gemm_fusion_dot.2", [(F32, (64, 64)), (F32, (64, 8))], [(F32, (64, 8))], product=True),
        None,
    ),
    "product of two types": (
        program("gemm_fusion_dot.2", [(F32, (64, 64)), (F16, (64, 8))], [(F32, (64, 8))], product=True),
        None,
    ),
}


@pytest.mark.parametrize(("text", "dtype"), CASES.values(), ids=CASES)
def test_type_of_a_fusion(text: bytes, dtype: str | None) -> None:
    dtypes = fusion_dtypes([text])
    assert list(dtypes.values()) == ([] if dtype is None else [dtype])
    assert not any("." in name for name in dtypes)


def test_name_with_several_types_is_left_out() -> None:
    programs = [program("fusion.1", [(dtype, IMAGES)], [(dtype, IMAGES)]) for dtype in (F16, F32)]
    assert fusion_dtypes(programs[:1] * 2) == {"fusion_1": "float16"}
    assert fusion_dtypes(programs) == {}


def test_types_of_fusions_are_read_from_a_trace(xspaces: ModuleType, save: Callable[..., Path]) -> None:
    kernels = [
        xspaces.Kernel("loop_maximum_fusion_3", 300, ""),
        xspaces.Kernel("gemm_fusion_dot_2", 500, ""),
        xspaces.Kernel("fusion_9", 200, ""),
    ]
    space = xspaces.gpu_space(kernels)
    for name in ("activation in 16 bit", "product in bfloat16 into float32"):
        xspaces.add_program(space, name, CASES[name][0])
    trace = read_trace(save(space))
    assert {kernel.kernel: (kernel.dtype, kernel.tensor_core) for kernel in trace.kernels} == {
        "loop_maximum_fusion_3": ("float16", False),
        "gemm_fusion_dot_2": ("bfloat16", None),  # XLA's own code: it may use tensor cores or not
        "fusion_9": (None, None),
    }
    metrics = trace.metrics()
    assert metrics["profiler/compute_16bit_percent"] == pytest.approx(80)
    assert metrics["profiler/compute_unknown_percent"] == pytest.approx(20)
    assert metrics["profiler/tensor_core_unknown_percent"] == pytest.approx(70)


def test_fields_are_those_of_the_schema_of_xla() -> None:
    """TensorFlow's own descriptors, read as text: importing them takes seconds."""
    schema, data = (_descriptors(path) for path in ("service/hlo_pb2.py", "xla_data_pb2.py"))
    names = {"HloProto": "HloProto", "Shape": "ShapeProto", "OpMetadata": "OpMetadata"}
    messages = {message.name: message for file in (schema, data) for message in file.message_type}
    for name, fields in _FIELDS.items():
        field_numbers = {field.name: field.number for field in messages[names.get(name, f"Hlo{name}Proto")].field}
        assert {field: field_numbers[field] for field, *_ in fields} == {field: number for field, number, _ in fields}
    (types,) = (enum for enum in data.enum_type if enum.name == "PrimitiveType")
    numbers = {value.name: value.number for value in types.value}
    assert {name: _TYPES[numbers[name]] for name in ("F16", "BF16", "F32", "F64", "F8E4M3FN")} == {
        **{"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"},
        "F8E4M3FN": "float8",
    }
    assert numbers["TUPLE"] == _TUPLE
    floats = {number for name, number in numbers.items() if name.startswith("F8") and name != "F8E8M0FNU"}
    assert {number for number, dtype in _TYPES.items() if dtype == "float8"} == floats


def _descriptors(path: str) -> Any:
    package = importlib.util.find_spec("tensorflow")
    assert package is not None
    assert package.origin is not None
    text = (Path(package.origin).parent / "compiler/xla" / path).read_text(encoding="utf-8")
    serialized = re.search(r"AddSerializedFile\((b'.*?')\)\n", text, re.DOTALL)
    assert serialized is not None
    return descriptor_pb2.FileDescriptorProto.FromString(ast.literal_eval(serialized[1]))
