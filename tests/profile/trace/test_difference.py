from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from halfstep.profile.trace import Operation, StepBreakdown, Trace, read_trace
from halfstep.profile.trace.difference import NOISE, Difference, difference
from halfstep.profile.trace.table import render

Save = Callable[..., Path]


@pytest.fixture
def compare(save: Save) -> Callable[[Any, Any], Difference]:
    def read(before: Any, after: Any) -> Difference:
        return difference(read_trace(save(before, "before")), read_trace(save(after, "after")))

    return read


def text(comparison: Difference, width: int = 200) -> str:
    stream = StringIO()
    Console(file=stream, width=width, highlight=False).print(render(comparison, ("old", "new")))
    return stream.getvalue()


def test_kernels_of_one_layer_pair_in_two_precisions(
    xspaces: ModuleType, compare: Callable[[Any, Any], Difference]
) -> None:
    before = [
        xspaces.Kernel("ampere_sgemm_128x64_tn", 300, "model/dense/MatMul:MatMul"),
        xspaces.Kernel("Relu_GPU_DT_FLOAT_DT_FLOAT_kernel", 50, "model/relu/Relu:Relu"),
    ]
    after = [
        xspaces.Kernel("ampere_h16816gemm_128x128", 100, "model/dense/MatMul:MatMul"),
        xspaces.Kernel("Cast_GPU_DT_FLOAT_DT_HALF_kernel", 20, "model/dense/Cast:Cast"),
    ]
    comparison = compare(xspaces.gpu_space(before, steps=3), xspaces.gpu_space(after, steps=6))

    changes = [
        (c.layer, c.operation, c.before_ms, c.after_ms, c.before_dtype, c.after_dtype) for c in comparison.operations
    ]
    assert changes == [
        ("model/dense", "MatMul", pytest.approx(0.3), pytest.approx(0.1), "float32", "float16"),
        ("model/relu", "Relu", pytest.approx(0.05), None, "float32", None),
        ("model/dense", "Cast", None, pytest.approx(0.02), None, "float32"),
    ]
    assert [change.operation for change in comparison.gained] == ["MatMul", "Relu"]
    assert [change.operation for change in comparison.lost] == ["Cast"]
    old, new = comparison.metrics
    assert (old["profiler/compute_16bit_percent"], old["profiler/tensor_core_percent"]) == (0, 0)
    assert new["profiler/tensor_core_percent"] == pytest.approx(100 * 100 / 120)
    assert old["profiler/step_time_ms"] == pytest.approx(0.35)
    assert (comparison.per_step, comparison.notes) == (True, (NOISE,))

    shown = " ".join(text(comparison).split())
    assert "│ step time, ms │ 0.35 │ 0.12 │ -0.23 (-66 %) │" in shown
    assert "│ compute 16-bit, % │ 0 │ 83.33 │ +83.33 points │" in shown
    assert "│ model/dense │ MatMul │ 0.3 │ 0.1 │ -0.2 │ float32 to float16 │" in shown
    assert "│ model/relu │ Relu │ 0.05 │ │ -0.05 │ float32 │" in shown
    assert "noise of unknown size" in shown


def test_equal_code_on_more_steps_and_devices_has_no_change(
    xspaces: ModuleType, compare: Callable[[Any, Any], Difference]
) -> None:
    kernels = [xspaces.Kernel("ampere_sgemm_128x64_tn", 300)]
    comparison = compare(xspaces.gpu_space(kernels, steps=3), xspaces.gpu_space(kernels, steps=5, devices=2))
    assert [change.before_ms for change in comparison.operations] == [pytest.approx(0.3)]
    assert (comparison.gained, comparison.lost) == ((), ())
    assert "Operations" not in text(comparison)


def test_operations_are_divided_by_the_markers_also_of_dropped_steps() -> None:
    def trace(marked_steps: int) -> Trace:
        operation = Operation("MatMul", "dense/MatMul", "Host", marked_steps, 1000.0 * marked_steps)
        return Trace(
            "CPU", (StepBreakdown(2.0),) * (marked_steps - 2), (operation,), (), None, marked_steps=marked_steps
        )

    comparison = difference(trace(4), trace(10))
    assert [(change.before_ms, change.after_ms) for change in comparison.operations] == [(1.0, 1.0)]


def test_trace_of_a_cpu_has_no_numbers_of_a_gpu(xspaces: ModuleType, compare: Callable[[Any, Any], Difference]) -> None:
    before = xspaces.cpu_space([xspaces.HostOperation("f/dense/MatMul:MatMul", 300)])
    after = xspaces.cpu_space(
        [xspaces.HostOperation("f/dense/MatMul:_MklMatMul", 200), xspaces.HostOperation("Iterator::Root", 500)]
    )
    comparison = compare(before, after)
    names = {name for metrics in comparison.metrics for name in metrics}
    assert not {name for name in names if "16bit" in name or "tensor_core" in name or "device" in name}
    assert [(c.operation, c.before_ms, c.after_ms) for c in comparison.operations] == [("MatMul", 0.3, 0.2)]
    shown = text(comparison)
    assert "16-bit, %" not in shown
    assert "BEFORE: without the traced graph a CPU's operations have no data types" in shown


def test_without_step_markers_times_are_of_the_whole_trace(
    xspaces: ModuleType, compare: Callable[[Any, Any], Difference]
) -> None:
    kernels = [xspaces.Kernel("ampere_sgemm_128x64_tn", 300)]
    comparison = compare(xspaces.gpu_space(kernels, steps=2), xspaces.gpu_space(kernels, steps=3, markers=False))
    assert comparison.after.marked_steps == 0
    assert [(change.before_ms, change.after_ms) for change in comparison.operations] == [(0.6, 0.9)]
    assert "of the whole traces, because not both have step markers" in comparison.notes[1]
    assert "ms in the whole trace" in text(comparison)
    assert "profiler/step_time_ms" not in comparison.metrics[1]


def test_kernels_without_an_operation_pair_by_what_they_compute(
    xspaces: ModuleType, compare: Callable[[Any, Any], Difference]
) -> None:
    comparison = compare(
        xspaces.gpu_space([xspaces.Kernel("ampere_sgemm_128x64_tn", 300, operation="")]),
        xspaces.gpu_space([xspaces.Kernel("ampere_h16816gemm_128x128", 100, operation="")]),
    )
    (change,) = comparison.operations
    assert (change.layer, change.operation) == ("", "matrix kernels without an operation")
    assert (change.before_dtype, change.after_dtype) == ("float32", "float16")
    assert "assigns to no operation are paired by what they compute only" in comparison.notes[-1]


def test_devices_that_differ_are_noted(xspaces: ModuleType, compare: Callable[[Any, Any], Difference]) -> None:
    comparison = compare(
        xspaces.cpu_space([xspaces.HostOperation("dense/MatMul:MatMul", 300)]),
        xspaces.gpu_space([xspaces.Kernel("ampere_sgemm_128x64_tn", 100)]),
    )
    assert "BEFORE is a trace of a CPU and AFTER one of a GPU: the device differs." in comparison.notes


@pytest.mark.parametrize("hidden", ["\x1b[2J", "\x9b2J", "a\nb", "\u202eabc", "\u2028", "[bold]x[/bold]", "\ud800"])
def test_names_in_a_table_are_shown_as_text(hidden: str) -> None:
    kernel = Operation(hidden, f"{hidden}/{hidden}/MatMul", "Device", 1, 1000.0, hidden, kernel="k")
    empty = Trace("GPU", (), (), (), None, warnings=(hidden,))
    shown = text(difference(empty, Trace(hidden, (), (), (kernel,), None)))
    assert [line for line in shown.splitlines() if not line.isprintable()] == []
    assert "\n" not in hidden or "a\\nb" in shown
    assert "[bold]" not in hidden or "[bold]x[/bold]" in shown


def test_long_tables_are_cut() -> None:
    kernels = tuple(Operation("MatMul", f"layer_{n}/MatMul", "Device", 1, 1000.0, kernel="k") for n in range(30))
    shown = text(difference(Trace("GPU", (), (), kernels, None), Trace("GPU", (), (), (), None)))
    assert shown.count("layer_") == 10
    assert "and 20 more" in shown
