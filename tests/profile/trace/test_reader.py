from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from halfstep.errors import TraceError
from halfstep.profile.trace import Trace, read_trace
from halfstep.profile.trace.xspace import parse, scan

Save = Callable[..., Path]

HALF = "(half[32,128];half[128,10])"
FLOAT = "(float[32,128];float[128,10])"
BFLOAT16 = "(bfloat16[32,128];bfloat16[128,10])"


def shares(trace: Trace) -> dict[str, float]:
    metrics = trace.metrics()
    names = ("compute_16bit_percent", "compute_32bit_percent", "compute_tf32_percent", "tensor_core_percent")
    return {name: round(metrics[f"profiler/{name}"], 9) for name in names}


def expected(bits16: float, bits32: float, tf32: float, tensor_core: float) -> dict[str, float]:
    return {
        "compute_16bit_percent": bits16,
        "compute_32bit_percent": bits32,
        "compute_tf32_percent": tf32,
        "tensor_core_percent": tensor_core,
    }


GPU_CASES: dict[str, tuple[list[tuple[str, int, str]], dict[str, float], float]] = {
    # kernels as (name, microseconds, shapes), their shares, the 16-bit share that xprof reports
    "float32": ([("ampere_sgemm_128x64_tn", 300, FLOAT), ("loop_fusion_1", 100, FLOAT)], expected(0, 100, 0, 0), 0.0),
    "tf32": (
        [("sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n", 300, FLOAT), ("loop_fusion_1", 100, FLOAT)],
        expected(0, 25, 75, 75),
        0.0,
    ),
    "float16 with shapes": (
        [("ampere_h16816gemm_128x128", 300, HALF), ("loop_fusion_1", 100, HALF), ("loop_fusion_2", 100, FLOAT)],
        expected(80, 20, 0, 60),
        80.0,
    ),
    "float16 without shapes": (
        [("ampere_h16816gemm_128x128", 300, ""), ("Relu_GPU_DT_FLOAT_DT_FLOAT_kernel", 100, "")],
        expected(75, 25, 0, 75),
        0.0,
    ),
    "bfloat16": (
        [("ampere_bf16_s16816gemm_bf16_128x64", 300, BFLOAT16), ("loop_fusion_1", 100, BFLOAT16)],
        expected(100, 0, 0, 75),
        0.0,
    ),
    "hopper": (
        [
            ("nvjet_hsh_128x256_64x4_NTT", 200, ""),
            ("nvjet_tst_192x192_64x4_TNN", 200, ""),
            ("nvjet_sss_64_NNT", 100, ""),
        ],
        expected(80, 0, 20, 100),
        0.0,
    ),
}


LAYOUTS: dict[str, dict[str, Any]] = {
    "one device": {},
    "two devices": {"devices": 2},
    "no step markers": {"markers": False},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", GPU_CASES)
def test_shares_of_a_gpu_come_from_its_kernels(case: str, layout: str, xspaces: ModuleType, save: Save) -> None:
    kernels, ours, xprofs = GPU_CASES[case]
    named = [
        xspaces.Kernel(name, duration, f"layer_{number}/Op:Op", shapes)
        for number, (name, duration, shapes) in enumerate(kernels)
    ]
    trace = read_trace(save(xspaces.gpu_space(named, **LAYOUTS[layout])))

    assert trace.device_type == "GPU"
    assert shares(trace) == ours
    assert sum(share for name, share in shares(trace).items() if name.startswith("compute")) == pytest.approx(100)
    assert len(trace.steps) == (0 if layout == "no step markers" else 4)
    assert trace.matched_percent == 100
    claims = {name: share for name, share in trace.metrics().items() if name.endswith("_xprof")}
    if layout == "no step markers":  # xprof reports 0 of both
        assert claims == {}
    else:
        assert claims["profiler/compute_16bit_percent_xprof"] == xprofs
        assert claims["profiler/compute_32bit_percent_xprof"] == 100 - xprofs
    disagrees = abs(ours["compute_16bit_percent"] - xprofs) > 5
    assert any("xprof claims" in warning for warning in trace.warnings) == (disagrees and bool(claims))


def test_gpu_trace_is_read_completely(xspaces: ModuleType, save: Save) -> None:
    kernels = [
        xspaces.Kernel("ampere_h16816gemm_128x128", 300, "dense/MatMul:MatMul", HALF),
        xspaces.Kernel("loop_fusion_1", 100, "relu/Relu:Relu"),
        xspaces.Kernel("gemm_fusion_dot_2", 50, "dense_1/MatMul:MatMul"),
        xspaces.Kernel("MemcpyH2D", 30, "", has_details=False),
    ]
    space = xspaces.gpu_space(kernels, steps=3, gap_us=20)
    xspaces.add_allocation(space, "GPU_0_bfc", 3 << 20)
    xspaces.add_allocation(space, "gpu_host_bfc", 64 << 20)
    space.message.warnings.append("12 activity events dropped")
    trace = read_trace(save(space), {"relu/Relu": "half"})

    # 300 + 100 + 50 + 30 us of work and three gaps of 20 us between them
    assert [step.step_time_ms for step in trace.steps] == [0.54] * 3
    metrics = trace.metrics()
    assert metrics["profiler/step_time_ms"] == pytest.approx(0.54)
    assert metrics["profiler/device_compute_ms"] == pytest.approx(0.48)
    assert metrics["profiler/other_ms"] == pytest.approx(0.06)
    assert metrics["profiler/device_to_device_ms"] == 0  # measured
    assert metrics["profiler/kernel_launch_ms"] > 0  # from the launches: xprof looks at no host where there is a GPU
    assert metrics["profiler/step_time_ms_median"] == pytest.approx(0.54)
    assert metrics["profiler/step_time_ms_sd"] == pytest.approx(0)
    assert metrics["memory/peak_mib"] == 3

    rows = [(kernel.kernel, kernel.name, kernel.occurrences, kernel.self_time_us) for kernel in trace.kernels]
    assert rows == [
        ("ampere_h16816gemm_128x128", "dense/MatMul", 3, 900),
        ("loop_fusion_1", "relu/Relu", 3, 300),
        ("gemm_fusion_dot_2", "dense_1/MatMul", 3, 150),
    ]
    # the type of the fusion is in the graph; the last kernel's type is unknown: it stays in the denominator
    assert shares(trace) == expected(round(400 / 4.5, 9), 0, 0, round(300 / 4.5, 9))
    operations = {operation.name: operation for operation in trace.operations}
    assert operations["dense/MatMul"].host_or_device == "Device"
    assert (operations["dense/MatMul"].self_time_us, operations["dense/MatMul"].tensor_core) == (900, True)
    assert (operations["relu/Relu"].dtype, operations["dense_1/MatMul"].dtype) == ("float16", None)
    text = "\n".join(trace.warnings)
    assert "data type of 11.1 % of the kernels' time is unknown" in text
    assert "tensor core use is unknown for 11.1 % of the kernels' time" in text
    assert metrics["profiler/tensor_core_unknown_percent"] == pytest.approx(100 / 9)
    assert metrics["profiler/matrix_tensor_core_percent"] == pytest.approx(100 * 300 / 350)
    assert text.count("12 activity events dropped") == 1
    assert "the profiler keeps about two million events and dropped some" in text


def test_product_in_float32_may_be_one_in_tf32(xspaces: ModuleType, save: Save) -> None:
    """The graph has the type of a kernel whose name shows none, but not that of such a product."""
    kernels = [
        xspaces.Kernel("gemm_fusion_dot_2", 300, "dense/MatMul:MatMul"),
        xspaces.Kernel("loop_fusion_1", 100, "relu/Relu:Relu"),
    ]
    space = xspaces.gpu_space(kernels)
    for dtype, expected in (("float", None), ("half", "float16")):
        trace = read_trace(save(space), {"dense/MatMul": dtype, "relu/Relu": "float"})
        assert [(kernel.kernel, kernel.dtype) for kernel in trace.kernels] == [
            ("gemm_fusion_dot_2", expected),
            ("loop_fusion_1", "float32"),
        ]


def test_an_operation_computes_in_its_matrix_kernel_and_not_in_what_prepares_its_tensors(
    xspaces: ModuleType, save: Save
) -> None:
    """A layout change may take longer than the convolution."""
    layout = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>"
    convolution = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_stage5"
    kernels = [
        xspaces.Kernel(layout, 300, "conv/Conv2D:Conv2D"),
        xspaces.Kernel(convolution, 100, "conv/Conv2D:Conv2D"),
    ]
    trace = read_trace(save(xspaces.gpu_space(kernels)))
    (operation,) = (row for row in trace.operations if row.name == "conv/Conv2D" and row.host_or_device == "Device")
    assert (operation.dtype, operation.tensor_core) == ("tf32", True)
    metrics = trace.metrics()
    assert metrics["profiler/layout_percent"] == pytest.approx(75)
    assert metrics["profiler/matrix_tensor_core_percent"] == pytest.approx(100)
    assert metrics["profiler/tensor_core_percent"] == pytest.approx(25)


def test_kernels_that_xprof_leaves_out_count(xspaces: ModuleType, save: Save) -> None:
    """It keeps 1,000 rows, the longest: here the share of 16 bit would be 100 %."""
    half = [xspaces.Kernel("ampere_h16816gemm_128x128", 21, f"half_{n}/MatMul:MatMul") for n in range(1000)]
    full = [xspaces.Kernel("ampere_sgemm_128x64_tn", 20, f"full_{n}/MatMul:MatMul") for n in range(1500)]
    trace = read_trace(save(xspaces.gpu_space([*half, *full], steps=2)))
    assert len(trace.kernels) == 2500
    assert trace.metrics()["profiler/compute_16bit_percent"] == pytest.approx(100 * 21 / (21 + 30))
    assert {kernel.occurrences for kernel in trace.kernels} == {2}


@pytest.mark.parametrize("slow", [0, 1])
def test_a_step_of_two_devices_ends_with_the_slower(slow: int, xspaces: ModuleType, save: Save) -> None:
    fast_kernels = [xspaces.Kernel("ampere_h16816gemm_128x128", 300), xspaces.Kernel("Relu_GPU_DT_HALF_kernel", 100)]
    slow_kernels = [xspaces.Kernel("ampere_sgemm_128x64_tn", 500), xspaces.Kernel("Relu_GPU_DT_FLOAT_kernel", 100)]
    space = xspaces.gpu_space(fast_kernels, devices=2, gap_us=20, on_device={slow: slow_kernels})
    trace = read_trace(save(space))
    for step in trace.steps:
        assert step.step_time_ms == pytest.approx(0.62)
        assert step.device_compute_ms == pytest.approx(0.6)
        assert step.other_ms == pytest.approx(0.02)
        assert math.fsum(step.parts().values()) == pytest.approx(step.step_time_ms)
    assert len(trace.steps) == 4
    assert shares(trace) == expected(40, 60, 0, 30)  # 400 of 1000 us, and 300 of them in the float16 product


@pytest.mark.parametrize("durations", [(300, 100), (100, 300)])
def test_hosts_of_one_run_are_read_together(durations: tuple[int, int], xspaces: ModuleType, save: Save) -> None:
    for number, duration in enumerate(durations):
        kernels = [xspaces.Kernel("ampere_sgemm_128x64_tn", duration), xspaces.Kernel("nvjet_hsh_128x256_NTT", 100)]
        space = xspaces.gpu_space(kernels, steps=3, gap_us=10, devices=2)
        xspaces.add_allocation(space, "GPU_0_bfc", (number + 1) << 20)
        path = save(space, f"worker{number}")
    trace = read_trace(path.parent)
    assert trace.device_count == 4
    assert sum(kernel.self_time_us for kernel in trace.kernels) == 2 * 3 * (300 + 100 + 100 + 100)
    assert shares(trace) == expected(*(round(share, 9) for share in (100 / 3, 200 / 3, 0, 100 / 3)))
    assert trace.metrics()["memory/peak_mib"] == 2
    # xprof itself gives the steps of the host whose file comes first
    assert [step.step_time_ms for step in trace.steps] == [pytest.approx(0.41)] * 3
    assert "slowest of 2 hosts" in trace.warnings[0]


def test_shares_of_casts_matrix_and_memory_bound_work(xspaces: ModuleType, save: Save) -> None:
    kernels = [
        xspaces.Kernel("ampere_h16816gemm_128x128", 300, "conv/convolution:Conv2D"),
        xspaces.Kernel("cudnn_helper", 100, "conv/convolution:Conv2D"),  # known by its operation
        xspaces.Kernel("wrapped_convert", 50, ""),  # known by its name
        xspaces.Kernel("loop_multiply_fusion", 150, "conv/Cast:Cast"),
        xspaces.Kernel("loop_add_fusion", 200, "relu/Relu:Relu"),
        xspaces.Kernel("FillPhiloxRandomKernelLaunch", 200, "dropout/Random:StatelessRandomUniformV2"),
    ]
    trace = read_trace(save(xspaces.gpu_space(kernels, steps=3)))
    metrics = trace.metrics()
    assert metrics["profiler/cast_percent"] == pytest.approx(20)
    assert metrics["profiler/matrix_percent"] == pytest.approx(40)
    assert metrics["profiler/memory_bound_percent"] == pytest.approx(40)
    assert trace.cast_ms(steps=3) == pytest.approx(0.2)


def test_gpu_without_a_plane_is_not_a_cpu(xspaces: ModuleType, save: Save) -> None:
    space = xspaces.cpu_space([xspaces.HostOperation("dense/MatMul:MatMul", 300)])
    xspaces.add_allocation(space, "GPU_0_bfc", 1 << 20)
    space.message.errors.append("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")
    trace = read_trace(save(space), {"dense/MatMul": "float32"})
    assert trace.device_type == "GPU"
    metrics = trace.metrics()
    assert "profiler/step_time_ms" in metrics
    assert not {"profiler/device_compute_ms", "profiler/kernel_launch_ms", "profiler/tensor_core_percent"} & set(
        metrics
    )
    assert not any("16bit" in name for name in metrics)
    text = "\n".join(trace.warnings)
    assert "a GPU was used but the trace has no kernels (device planes: none)" in text
    assert "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in text


CPU_OPERATIONS = [
    ("StatefulPartitionedCall/model/conv/convolution:_MklNativeConv2D", 300),
    ("StatefulPartitionedCall/cond/then/_52/cond/adam/Mul_27:Mul", 100),
    ("StatefulPartitionedCall/model/step/LogicalAnd:LogicalAnd", 100),
    ("Iterator::Root::Prefetch::BatchV2", 200),
]
CAST = "StatefulPartitionedCall/model/conv/Cast"
CPU_GRAPH = {"model/conv/convolution": "bfloat16", "cond/adam/Mul_27": "float32", "model/step/LogicalAnd": "bool"}


@pytest.fixture
def cpu_space(xspaces: ModuleType) -> Any:
    operations = [xspaces.HostOperation(name, duration) for name, duration in CPU_OPERATIONS]
    space = xspaces.cpu_space(operations, input_us=90)
    xspaces.add_allocation(space, "mklcpu", 5 << 20)
    return space


def test_shares_of_a_cpu_come_from_its_graph(cpu_space: Any, save: Save) -> None:
    trace = read_trace(save(cpu_space), CPU_GRAPH)
    metrics = trace.metrics()
    assert trace.device_type == "CPU"
    assert metrics["profiler/compute_16bit_percent"] == pytest.approx(60)
    assert metrics["profiler/compute_32bit_percent"] == pytest.approx(20)
    assert metrics["profiler/matrix_percent"] == pytest.approx(60)
    assert metrics["profiler/memory_bound_percent"] == pytest.approx(40)
    assert (metrics["profiler/cast_percent"], trace.cast_ms(steps=4)) == (0, 0)
    assert trace.matched_percent == 100
    assert metrics["memory/peak_mib"] == 5
    assert trace.warnings == ()


def test_step_of_a_cpu_has_no_device_parts(cpu_space: Any, save: Save) -> None:
    trace = read_trace(save(cpu_space), CPU_GRAPH)
    assert len(trace.steps) == 4
    for step in trace.steps:
        assert set(step.parts()) == {"host_compute_ms", "input_ms", "output_ms", "compilation_ms", "other_ms"}
        assert math.fsum(step.parts().values()) == pytest.approx(step.step_time_ms)
    metrics = trace.metrics()
    assert metrics["profiler/step_time_ms"] == pytest.approx(1)
    assert metrics["profiler/input_ms"] == pytest.approx(0.09)
    assert metrics["profiler/host_compute_ms"] == pytest.approx(0.81)
    assert metrics["profiler/other_ms"] == pytest.approx(0.1)
    assert not {"profiler/tensor_core_percent", "profiler/compute_16bit_percent_xprof"} & set(metrics)
    assert not any("tf32" in name or "device" in name for name in metrics)


def test_casts_of_a_cpu_come_from_its_graph(xspaces: ModuleType, save: Save) -> None:
    operations = [*CPU_OPERATIONS, (f"{CAST}:Cast", 125), (f"{CAST}_of_the_optimizer:Cast", 25)]
    space = xspaces.cpu_space([xspaces.HostOperation(name, duration) for name, duration in operations])
    trace = read_trace(save(space), {**CPU_GRAPH, "model/conv/Cast": "float32"})
    # of the operations in the graph: 300 + 100 + 100 + 125, without the input pipeline and the unknown cast
    assert trace.metrics()["profiler/cast_percent"] == pytest.approx(20)
    assert trace.cast_ms(steps=4) == pytest.approx(0.15)


def test_share_of_a_cpu_without_a_graph_is_absent(cpu_space: Any, save: Save) -> None:
    trace = read_trace(save(cpu_space))
    assert not any("bit" in name for name in trace.metrics())
    assert any("without the traced graph" in warning for warning in trace.warnings)


def test_share_of_a_cpu_under_xla_is_absent(xspaces: ModuleType, save: Save) -> None:
    space = xspaces.cpu_space([xspaces.HostOperation("Iterator::Root::Prefetch::BatchV2", 200)])
    trace = read_trace(save(space), CPU_GRAPH)
    assert not any("bit" in name or "percent" in name for name in trace.metrics())
    assert trace.cast_ms(steps=4) is None
    assert any("XLA" in warning for warning in trace.warnings)


def test_newest_of_several_runs_is_read(xspaces: ModuleType, tmp_path: Path) -> None:
    for age, (run, duration) in enumerate((("newer", 100), ("older", 300))):
        path = tmp_path / "plugins" / "profile" / run / "host.xplane.pb"
        xspaces.gpu_space([xspaces.Kernel("ampere_sgemm_128x64_tn", duration)]).save(path)
        os.utime(path, (1e9 - age, 1e9 - age))
    trace = read_trace(tmp_path)
    assert trace.kernels[0].self_time_us == 400
    assert trace.warnings[0].startswith("the folder holds 2 runs")
    assert "profile/newer" in trace.warnings[0]


def test_reading_writes_no_files_next_to_the_trace(xspaces: ModuleType, save: Save) -> None:
    path = save(xspaces.gpu_space([xspaces.Kernel("ampere_sgemm_128x64_tn", 300)]))
    read_trace(path)
    assert list(path.parent.iterdir()) == [path]


def test_file_truncated_at_any_byte_is_detected(xspaces: ModuleType, tmp_path: Path) -> None:
    """Between two planes only the host's name is missing, which comes last."""
    complete = xspaces.gpu_space([xspaces.Kernel("ampere_sgemm_128x64_tn", 300)], devices=2)
    content = complete.save(tmp_path / "complete.xplane.pb").read_bytes()
    path = tmp_path / "truncated.xplane.pb"
    boundaries = []
    for length in range(len(content)):
        path.write_bytes(content[:length])
        error = _scan_error(path)
        if error is None:
            assert scan({path.name: parse(path)}).nameless == (path.name,)
            boundaries.append(length)
        else:
            assert error.startswith(str(path))
            assert "\n" not in error
    assert len(boundaries) == 3  # after each plane: of the host and of two devices
    path.write_bytes(content[: boundaries[1]])
    assert [warning for warning in read_trace(path).warnings if "truncated, devices may be missing" in warning]


def _scan_error(path: Path) -> str | None:
    try:
        scan({path.name: parse(path)})
    except TraceError as error:
        return str(error)
    return None


def _truncated(space: Any, path: Path) -> None:
    path.write_bytes(space.message.SerializeToString()[:-7])


def _viewers_folder(_: Any, path: Path) -> None:
    path.mkdir()
    (path / "host.trace.json.gz").write_bytes(b"")


BAD_FILES: dict[str, tuple[Callable[[Any, Path], Any], str]] = {
    "truncated": (_truncated, "truncated or not a profiler trace"),
    "empty": (lambda _, path: path.write_bytes(b""), "is empty or not a profiler trace"),
    "text": (lambda _, path: path.write_text("step,time\n1,2\n"), "not a profiler trace"),
    "missing": (lambda *_: None, "does not exist"),
    "folder of a trace viewer": (_viewers_folder, r"\.json\.gz is for trace viewers.* pass the \.xplane"),
    "folder without trace": (lambda _, path: path.mkdir(), "holds no trace"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_file_that_is_not_a_trace_is_rejected_in_one_line(case: str, xspaces: ModuleType, tmp_path: Path) -> None:
    make, words = BAD_FILES[case]
    path = tmp_path / "host.xplane.pb"
    make(xspaces.gpu_space([xspaces.Kernel("ampere_sgemm_128x64_tn", 300)]), path)
    with pytest.raises(TraceError, match=words) as raised:
        read_trace(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_conversion_has_a_time_limit(xspaces: ModuleType, save: Save) -> None:
    with pytest.raises(TraceError, match=r"took over 0\.01 s"):
        read_trace(save(xspaces.gpu_space([xspaces.Kernel("ampere_sgemm_128x64_tn", 300)])), timeout_s=0.01)


def test_copies_of_rocm_are_no_compute(xspaces: ModuleType, save: Save) -> None:
    names = ("nvjet_hsh_128x128_64x4_1x2_h_bz_TNT", "__amd_rocclr_copyBuffer.kd", "__amd_rocclr_fillBufferAligned.kd")
    trace = read_trace(save(xspaces.gpu_space([xspaces.Kernel(name, 100) for name in names])))
    assert [kernel.kernel for kernel in trace.kernels] == [names[0]]


def test_dropped_traces_are_reported(xspaces: ModuleType, save: Save) -> None:
    space = xspaces.gpu_space([xspaces.Kernel("ampere_sgemm_128x64_tn", 300)])
    space.stat("/device:GPU:0", "dropped_traces", 7)
    assert [warning for warning in read_trace(save(space)).warnings if "dropped 7 traces" in warning]


def test_operations_outside_the_graph_are_not_in_the_denominator(cpu_space: Any, save: Save) -> None:
    graph = {name: dtype for name, dtype in CPU_GRAPH.items() if name != "model/step/LogicalAnd"}
    trace = read_trace(save(cpu_space), graph)
    assert trace.metrics()["profiler/compute_16bit_percent"] == pytest.approx(75)
    assert trace.matched_percent == pytest.approx(80)
    assert any("only 80.0 %" in warning for warning in trace.warnings)
