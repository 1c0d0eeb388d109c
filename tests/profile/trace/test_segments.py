"""Operations with their times, from a trace's threads and streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from halfstep.profile.trace import Operation, read_trace
from halfstep.profile.trace.hlo import _HLO
from halfstep.profile.trace.segments import computing_gpus, gpu_streams, host_threads, totals
from halfstep.profile.trace.xspace import parse

Save = Callable[..., Path]
_BF16 = 16  # of PrimitiveType


def test_time_of_operations_inside_of_another_is_theirs(xspaces: ModuleType, save: Save) -> None:
    """A loop of 100 us runs two products of 30 us, on a thread on which other functions run, too."""
    space = xspaces.Space()
    for name, start, duration in (
        ("model/lstm/while:While", 0, 100),
        ("ExecutorState::Process", 5, 90),
        ("while/MatMul:MatMul", 10, 30),
        ("while/MatMul:MatMul", 60, 30),
    ):
        space.event(xspaces.HOST, "tf_Compute", name, start, duration)
    space.event(xspaces.HOST, "tf_data_private_threadpool", "decode:DecodeJpeg", 0, 70)
    operations = totals(host_threads(parse(save(space)).planes))
    assert {(one.name, one.occurrences, one.self_time_us, one.is_input) for one in operations} == {
        ("model/lstm/while", 1, 40.0, False),
        ("while/MatMul", 2, 60.0, False),
        ("decode", 1, 70.0, True),
    }


@pytest.mark.parametrize(
    ("stats", "operation"),
    [
        ({"tf_op": "net/dense/MatMul:MatMul"}, ("net/dense/MatMul", "MatMul", None)),
        ({"level 0": "net/dense/MatMul:MatMul"}, ("net/dense/MatMul", "MatMul", None)),
        (
            {"annotation": "net/dense/MatMul:MatMul#id=7,shape=(bfloat16[8,8];float[8])#"},
            ("net/dense/MatMul", "MatMul", "bfloat16"),
        ),
        ({"tensor_shapes": "(half[8,8])"}, ("", "", "float16")),
        ({}, ("", "", None)),
    ],
)
def test_operation_and_type_of_a_kernel(
    xspaces: ModuleType, save: Save, stats: dict[str, str], operation: tuple[str, str, str | None]
) -> None:
    """Its name, `fused_kernel`, does not show the data type."""
    space = xspaces.Space()
    space.event("/device:GPU:0", "Stream #1(Compute)", "fused_kernel", 0, 10, **stats)
    space.event("/device:GPU:0", "TensorFlow Ops", "net/dense/MatMul", 0, 10)  # derived from the kernels
    space.event("/device:GPU:1", "Stream #1(MemcpyH2D)", "MemcpyH2D", 0, 5)
    planes = parse(save(space)).planes
    kernel, copy = totals(gpu_streams(planes))
    assert (kernel.name, kernel.type, kernel.dtype) == operation
    assert (kernel.kernel, kernel.occurrences, kernel.self_time_us) == ("fused_kernel", 1, 10.0)
    assert copy == Operation("", "", "Device", 1, 5.0, kernel="MemcpyH2D")
    assert computing_gpus(planes) == 1


def compiled() -> bytes:
    """A program with a convolution, a loop and a conversion; the latter two name no operation."""
    program = _HLO()
    program.hlo_module.name = b"step.1"
    entry = program.hlo_module.computations.add(id=1)
    for name, opcode in (("convolution.2", "convolution"), ("while.1", "while"), ("wrapped_convert.3", "fusion")):
        instruction = entry.instructions.add(name=name.encode(), opcode=opcode.encode(), id=len(entry.instructions))
        instruction.shape.element_type = _BF16
        instruction.shape.dimensions.append(8)
    entry.instructions[0].metadata.op_name = b"net/conv/convolution"
    entry.instructions[0].metadata.op_type = b"Conv2D"
    return bytes(program.SerializeToString())


def test_data_types_without_a_graph_are_those_of_xla(xspaces: ModuleType, save: Save) -> None:
    space = xspaces.cpu_space([xspaces.HostOperation("dense/MatMul:MatMul", 300)], steps=1)
    xspaces.add_program(space, "step", compiled())
    space.event(xspaces.HOST, "Eigen", "convolution.2", 400, 100, hlo_op="convolution.2", hlo_module="step.1")
    trace = read_trace(save(space))
    assert trace.metrics()["profiler/compute_16bit_percent"] == 100
    assert any("only what XLA compiled has data types, 25.0 %" in warning for warning in trace.warnings)


def test_instructions_of_xla_last_until_their_last_thread_is_done(xspaces: ModuleType, save: Save) -> None:
    """A loop of 100 us runs a convolution, which a pool goes on with after 5 us, and a conversion beside it."""
    space = xspaces.Space()
    xspaces.add_program(space, "step", compiled())
    of_one = {"hlo_module": "step.1"}
    space.event(xspaces.HOST, "tf_Compute", "CpuExecutable::ExecuteAsyncOnStream", 0, 100)
    space.event(xspaces.HOST, "tf_Compute", "while.1", 0, 100, hlo_op="while.1", _p=1, **of_one)
    space.event(xspaces.HOST, "tf_Compute", "convolution.2", 10, 5, hlo_op="convolution.2", _p=2, **of_one)
    space.event(xspaces.HOST, "tf_Compute", "wrapped_convert.3", 20, 8, hlo_op="wrapped_convert.3", _p=3, **of_one)
    space.event(xspaces.HOST, "Eigen", "end: convolution.2", 69, 1, _c=2)
    space.event(xspaces.HOST, "Eigen", "unknown.4", 80, 9, hlo_op="unknown.4", _p=4, **of_one)
    space.event(xspaces.HOST, "tf_Compute", "step:XlaLaunch", 0, 100)
    operations = totals(host_threads(parse(save(space)).planes))
    assert {(one.type, one.name, one.dtype, one.self_time_us) for one in operations} == {
        ("Conv2D", "net/conv/convolution", "bfloat16", 60.0),
        ("Cast", "wrapped_convert.3", "bfloat16", 8.0),
        ("unknown", "unknown.4", None, 9.0),
    }
