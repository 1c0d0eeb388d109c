"""The rules about tensor cores on traces of kernels with real names, for each generation of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from halfstep.compare.explain.hardware import peak_ratios
from halfstep.compare.explain.limit import compute_operations, train_limit
from halfstep.compare.rules.explain import explain
from halfstep.profile.trace import Operation as TracedOperation
from halfstep.profile.trace import Trace
from halfstep.profile.trace.kernels import kernel_dtype, uses_tensor_cores
from halfstep.results.comparison import Reason
from halfstep.results.profile import AccountRow, Profile
from halfstep.words.policies import FLOAT16
from tests.small_study import case_of, environment, measured_speedup, operation, profile

NAMES = Path(__file__).parents[2] / "profile/trace/kernel_names.txt"  # with their sources
MEMORY = "Mul_GPU_DT_HALF_DT_HALF_kernel"
UNKNOWN = ("gemm_fusion_dot_general_1", "gemm_fusion_dot_265")  # of XLA


@dataclass(frozen=True)
class Generation:
    """A GPU, and names of matrix kernels that run on it, by type and by whether they are on tensor cores.

    Ada runs the libraries' kernels for Ampere, as the names of its 16-bit kernels show.
    """

    gpu: str
    capability: str
    float16: tuple[str, ...]
    float32: tuple[str, ...]
    bfloat16: tuple[str, ...] = ()
    tf32: tuple[str, ...] = ()
    float16_on_cuda_cores: tuple[str, ...] = ()


AMPERE_TF32 = (
    "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1_g1_"
    "tensor16x8x8_execute_kernel_cudnn_infer",
    "ampere_s1688gemm_128x128_nn",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align1>",
)
AMPERE_FLOAT32 = (
    "cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
    "ampere_sgemm_128x128_tn",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4_execute_kernel__"
    "5x_cublas",
)
GENERATIONS = {
    "Volta": Generation(
        "Tesla V100-SXM2-16GB",
        "7.0",
        float16=(
            "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1",
            "volta_h884gemm_128x128_ldg8_nn",
        ),
        float32=("volta_scudnn_128x64_stridedB_interior_nn_v1", "volta_sgemm_128x128_nn"),
        float16_on_cuda_cores=(
            "volta_fp16_scudnn_fp16_128x64_relu_interior_nn_v1",
            "volta_hcudnn_128x64_relu_small_nn_v1",
        ),
    ),
    "Turing": Generation(
        "Tesla T4",
        "7.5",
        float16=(
            "turing_fp16_s1688cudnn_fp16_256x128_ldg8_relu_filter1x1_stg8_interior_nchw_nn_v1",
            "turing_h1688gemm_128x128_ldg8_nn",
        ),
        float32=(
            "void cudnn::detail::implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, true, false, true>",
            "turing_scudnn_128x32_stridedB_splitK_small_nn_v1",
        ),
    ),
    "Ampere": Generation(
        "NVIDIA A100-SXM4-40GB",
        "8.0",
        float16=(
            "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize256x64x32_stage3_warpsize4x1x1_g1_"
            "tensor16x8x16_kernel",
            "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_nn",
        ),
        bfloat16=(
            "sm86_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32",
            "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn",
        ),
        tf32=AMPERE_TF32,
        float32=AMPERE_FLOAT32,
        float16_on_cuda_cores=(
            "sm80_xmma_depthwise_convolution_dgrad_tiling_f16f16_f32f32_f32_nhwckrsc_nhwc_tilesize1x8x8_1x5x5_1x1x1_"
            "1x1x1_stage2_warpsize4x1x1_g64_betaFalse_execute_kernel__5x_cudnn",
            "void conv2d_c1_k1_nhwc_kernel_specialized<__half, __half, __half, float, float, 5, 1, 8, 3, true>",
        ),
    ),
    "Ada": Generation(
        "NVIDIA GeForce RTX 4090",
        "8.9",
        float16=(
            "sm86_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwc",
            "cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_tn_align8",
        ),
        bfloat16=(
            "sm89_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32",
            "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
        ),
        tf32=AMPERE_TF32,
        float32=AMPERE_FLOAT32,
    ),
    "Hopper": Generation(
        "NVIDIA H100 80GB HBM3",
        "9.0",
        float16=(
            "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN",
            "cutlass3x_sm90_tensorop_h64x128x16gemm_f16_f16_f16_void_f16_128x128x64_1x1x1_0_nnn_align8",
        ),
        bfloat16=(
            "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_"
            "execute_segment_k_off_kernel__5x_cudnn",
            "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN",
        ),
        tf32=(
            "sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_warpgroupsize1x1x1_g1_"
            "execute_segment_k_on_kernel__5x_cudnn",
            "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x256x32_warpgroupsize2x1x1_execute_segment_k_off_kernel__"
            "5x_cublas",
        ),
        float32=("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>",),
    ),
    "Blackwell": Generation(
        "NVIDIA B200",
        "10.0",
        float16=(
            "nvjet_sm100_hsh_128x256_64x6_2x1_2cta_v_bz_TNT",
            "cutlass3x_sm100_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_64x128x64_1x1x1_0_nnn_align8_1sm",
        ),
        bfloat16=("nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_TNT",),
        tf32=(
            "cutlass3x_sm100_tensorop_gemm_f32_f32_f32_void_f32_128x128x32_1x1x1_0_tnt_align4_1sm_stage6",
            "cutlass3x_sm100_tensorop_s128x128x8tf32gemm",
        ),
        float32=("cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x64x16_1x1x1_3_tnn_align1_bias_f32_relu",),
    ),
    "Blackwell, GeForce": Generation(
        "NVIDIA GeForce RTX 5090",
        "12.0",
        float16=("nvjet_sm120_hhh_mma_64x64x128_tmaAB_bz_NNNN", "cutlass_80_tensorop_h16816gemm_64x64_64x6_nn_align8"),
        bfloat16=("nvjet_sm120_tst_mma_16x64x64_9_16x16x64_tmaAB_alignCD4_splitK_NTNN",),
        float32=(),
    ),
}
EACH = pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS)


def kernels_ms(*names: str, other_ms: float = 5.0) -> dict[str, float]:
    """10 ms of each kernel, and elementwise work beside them."""
    return {**dict.fromkeys(names, 10.0), MEMORY: other_ms}


def traced(
    times_ms: Mapping[str, float], *, policy: str, by_operation: bool, gpu_entry: dict[str, Any] | None = None
) -> Profile:
    """The profile of a step with these kernels, as the reader of traces sees them."""
    kernels = [_kernel(name, time_ms) for name, time_ms in times_ms.items()]
    trace = Trace("GPU", (), (), tuple(kernels), None, device_count=1, marked_steps=1)
    operations = [_operation(number, kernel) for number, kernel in enumerate(kernels)] if by_operation else []
    return profile(trace.metrics(), operations, policy=policy, device="GPU", entry=gpu_entry)


def _kernel(name: str, time_ms: float) -> TracedOperation:
    dtype = kernel_dtype(name)
    used = uses_tensor_cores(name, dtype)
    return TracedOperation("", "", "Device", 1, 1e3 * time_ms, dtype, used, name)


def _operation(number: int, kernel: TracedOperation) -> AccountRow:
    return operation(
        "Conv2D" if kernel.category == "matrix" else "Mul",
        kernel.self_time_us / 1e3,
        kernel.dtype or "",
        name=f"model/layer_{number}/op",
        tensor_core=kernel.tensor_core,
    )


def reasons(generation: Generation, candidate: Profile, baseline: Profile) -> dict[str, Reason]:
    """The reasons of a candidate on this GPU, by code."""
    gpu = {"name": generation.gpu, "compute_capability": generation.capability}
    case = case_of(baseline, candidate, measured_speedup(2.0, 0.0005, -0.0005), environment(gpu=gpu))
    return {reason.code: reason for reason in explain(case)}


def of_candidate(
    generation: Generation, names: tuple[str, ...], *, by_operation: bool, other_ms: float = 5.0
) -> dict[str, Reason]:
    """The reasons of a float16 candidate with these matrix kernels."""
    baseline = traced(kernels_ms(*generation.float32), policy="float32", by_operation=by_operation)
    candidate = traced(kernels_ms(*names, other_ms=other_ms), policy="mixed_float16", by_operation=by_operation)
    return reasons(generation, candidate, baseline)


def test_all_names_are_from_public_traces() -> None:
    known = NAMES.read_text(encoding="utf-8")
    used = [
        name
        for item in GENERATIONS.values()
        for names in (item.float16, item.bfloat16, item.tf32, item.float32, item.float16_on_cuda_cores, UNKNOWN)
        for name in names
    ]
    assert [name for name in used if f" {name}\n" not in known] == []


@EACH
@pytest.mark.parametrize("by_operation", [False, True])
def test_16_bit_kernels_leave_no_tensor_cores_idle(generation: Generation, by_operation: bool) -> None:
    for names, policy in ((generation.float16, "mixed_float16"), (generation.bfloat16, "mixed_bfloat16")):
        if names:
            candidate = traced(kernels_ms(*names), policy=policy, by_operation=by_operation)
            assert candidate.metrics["profiler/matrix_tensor_core_percent"] == 100
            assert candidate.metrics["profiler/compute_unknown_percent"] == 0
            baseline = traced(kernels_ms(*generation.float32), policy="float32", by_operation=by_operation)
            assert not {"tensor_cores_idle", "no_16bit_ops"} & set(reasons(generation, candidate, baseline))


@EACH
@pytest.mark.parametrize("by_operation", [False, True])
def test_float32_kernels_in_a_16_bit_variant_are_named(generation: Generation, by_operation: bool) -> None:
    if not generation.float32:
        pytest.skip("no public name of a float32 kernel of this generation")
    reasons_by_code = of_candidate(generation, (*generation.float32, generation.float16[0]), by_operation=by_operation)
    assert "tensor_cores_idle" in reasons_by_code
    if by_operation:
        idle_ms = 10.0 * len(generation.float32)
        assert (
            reasons_by_code["tensor_cores_idle"].evidence["float32_ms"]
            == reasons_by_code["tensor_cores_idle"].time_ms
            == idle_ms
        )
        assert "Remove dtypes that are set on single layers" in reasons_by_code["tensor_cores_idle"].advice
        assert "multiples of 8" not in reasons_by_code["tensor_cores_idle"].advice
    if len(generation.float32) > 1:  # more than half of the time
        assert "mostly_32bit_ops" in reasons_by_code
    only_float32 = of_candidate(generation, generation.float32, by_operation=by_operation, other_ms=0.0)
    assert {"tensor_cores_idle", "no_16bit_ops"} <= set(only_float32)


@EACH
def test_16_bit_kernels_on_cuda_cores_are_named(generation: Generation) -> None:
    if not generation.float16_on_cuda_cores:
        pytest.skip("no public name of such a kernel of this generation")
    reason = of_candidate(generation, generation.float16_on_cuda_cores, by_operation=True)["tensor_cores_idle"]
    assert "Make channels and train.batch_size multiples of 8." in reason.advice
    assert "float32" not in reason.advice


@EACH
@pytest.mark.parametrize("by_operation", [False, True])
def test_kernels_of_xla_are_not_called_idle(generation: Generation, by_operation: bool) -> None:
    reasons_by_code = of_candidate(generation, UNKNOWN, by_operation=by_operation)
    assert not {"tensor_cores_idle", "no_16bit_ops"} & set(reasons_by_code)


@EACH
@pytest.mark.parametrize("by_operation", [False, True])
def test_idle_is_said_with_what_is_unknown(generation: Generation, by_operation: bool) -> None:
    if not generation.float32:
        pytest.skip("no public name of a float32 kernel of this generation")
    names = (generation.float32[0], UNKNOWN[0])
    reason = of_candidate(generation, names, by_operation=by_operation)["tensor_cores_idle"]
    assert "unknown" in reason.text
    assert reason.time_ms == 10.0 if by_operation else reason.evidence["profiler/tensor_core_unknown_percent"] == 40.0


@EACH
def test_tf32_baseline_is_named_and_true_float32_is_not(generation: Generation) -> None:
    candidate = traced(kernels_ms(*generation.float16), policy="mixed_float16", by_operation=True)
    if generation.tf32:
        baseline = traced(kernels_ms(*generation.tf32, other_ms=0.0), policy="float32", by_operation=True)
        assert baseline.metrics["profiler/compute_tf32_percent"] == 100
        assert baseline.metrics["profiler/matrix_tensor_core_percent"] == 100
        reason = reasons(generation, candidate, baseline)["baseline_is_tf32"]
        assert "float32 here means TF32 on tensor cores" in reason.text
        assert "tf32: false" in reason.advice
    if generation.float32:
        baseline = traced(kernels_ms(*generation.float32), policy="float32", by_operation=True)
        assert baseline.metrics["profiler/tensor_core_percent"] == 0
        assert "baseline_is_tf32" not in reasons(generation, candidate, baseline)


@EACH
def test_unknown_kernels_may_be_tf32_only_where_the_gpu_has_it(generation: Generation) -> None:
    candidate = traced(kernels_ms(*generation.float16), policy="mixed_float16", by_operation=True)
    for tf32 in (True, False):
        entry = {"tf32": tf32}
        baseline = traced(kernels_ms(*UNKNOWN), policy="float32", by_operation=True, gpu_entry=entry)
        reasons_by_code = reasons(generation, candidate, baseline)
        may_be = tf32 and float(generation.capability) >= 8
        assert ("baseline_is_tf32" in reasons_by_code) is may_be
        if may_be:
            assert "may mean TF32" in reasons_by_code["baseline_is_tf32"].text


def test_layout_changes_of_the_baseline_are_named() -> None:
    ampere = GENERATIONS["Ampere"]
    change = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>"
    before = traced(kernels_ms(*AMPERE_TF32, change), policy="float32", by_operation=True)
    after = traced(kernels_ms(*ampere.float16), policy="mixed_float16", by_operation=True)
    reason = reasons(ampere, after, before)["layout_changes"]
    assert reason.evidence == {"baseline_layout_percent": pytest.approx(100 * 10 / 45), "candidate_layout_percent": 0}
    assert "22 % of the compute time in the baseline, and 0 % here" in reason.text


@EACH
def test_limit_takes_tf32_work_for_what_it_is(generation: Generation) -> None:
    """By Amdahl's law: the matrix kernels become faster by the ratio of the peak rates, the memory-bound one by 2."""
    gpu = environment(gpu={"name": generation.gpu, "compute_capability": generation.capability})
    ratios = peak_ratios(FLOAT16, gpu, on_gpu=True)
    assert ratios is not None
    for names, ratio in ((generation.tf32, ratios.matrix_from_tf32), (generation.float32, ratios.matrix)):
        if names:
            times_ms = kernels_ms(*names)
            step_ms = sum(times_ms.values())
            step = {"profiler/step_time_ms": step_ms, "profiler/device_compute_ms": step_ms}
            traced_profile = traced(times_ms, policy="float32", by_operation=True)
            before = profile(traced_profile.metrics | step, compute_operations(traced_profile), device="GPU")
            limit = train_limit(before, profile(policy="mixed_float16", device="GPU"), gpu)
            assert limit == pytest.approx(step_ms / ((step_ms - 5.0) / ratio + 5.0 / 2))
