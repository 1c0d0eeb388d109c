"""Operations with their times, from a trace's threads and streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from halfstep.profile.trace import Operation
from halfstep.profile.trace.segments import computing_gpus, gpu_streams, host_threads, totals
from halfstep.profile.trace.xspace import parse

Save = Callable[..., Path]


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
    found = totals(host_threads(parse(save(space)).planes))
    assert {(one.name, one.occurrences, one.self_time_us, one.is_input) for one in found} == {
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
