from __future__ import annotations

import pytest

from stages.profile.trace.dtypes import is_compute, kernel_dtype, shapes_dtype, uses_tensor_cores

EIGEN = "void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<Eigen::TensorAssignOp<{}>>>"
HALF_SUM = EIGEN.format("Eigen::TensorMap<Eigen::Tensor<Eigen::half, 1, 1, long>>, scalar_sum_op<Eigen::half>")
FLOAT_INVERSE = EIGEN.format("Eigen::TensorMap<Eigen::Tensor<float, 1, 1, int>>, scalar_inverse_op<float>")
TO_HALF = EIGEN.format(
    "Eigen::Tensor<Eigen::half, 1>, Eigen::TensorConversionOp<Eigen::half, Eigen::Tensor<{} const, 1>>"
)
TO_FLOAT = EIGEN.format(
    "Eigen::Tensor<float, 1>, Eigen::TensorConversionOp<float, Eigen::Tensor<Eigen::half const, 1>>"
)


# name of the kernel, type, on tensor cores
KERNELS = [
    # cuBLAS for Hopper and later
    ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "float16", True),
    ("nvjet_hss_64x8_64x16_4x1_v_bz_TNT", "float16", True),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "bfloat16", True),
    ("nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_TNT", "bfloat16", True),
    ("nvjet_sss_128x128_32x6_1x2_h_bz_NNT", "tf32", True),
    ("nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT", "float8", True),
    # cuBLAS and cuDNN, by the generation of the GPU
    ("volta_h884gemm_128x128_ldg8_nn", "float16", True),
    ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", "float16", True),
    ("volta_s884cudnn_256x128_ldg8_relu_exp_medium_nhwc_tn_v1", "float16", True),
    ("volta_sgemm_128x64_nt", "float32", False),
    ("volta_scudnn_128x64_relu_interior_nn_v1", "float32", False),
    ("volta_hcudnn_128x64_relu_small_nn_v1", "float16", False),
    ("turing_h1688gemm_128x128_ldg8_nn", "float16", True),
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_exp_interior_nhwc_tn_v1", "float16", True),
    ("turing_s1688gemm_128x128_ldg8_nn", "float16", True),
    ("ampere_h16816gemm_128x128_ldg8_stages_32x5_nn", "float16", True),
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "float16", True),
    ("ampere_s16816gemm_fp16_128x128_ldg8_stages_64x3_nn", "float16", True),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "bfloat16", True),
    ("ampere_s1688gemm_128x128_nn", "tf32", True),
    ("ampere_sgemm_128x64_tn", "float32", False),
    ("ampere_dgemm_64x64_nn", "float64", False),
    ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1_tensor16x8x16", "float16", True),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", "tf32", True),
    ("sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x32", "bfloat16", True),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4", "float32", False),
    ("sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize128x64x16_stage3_warpsize4x2x1_tensor8x8x4", "float64", True),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1", "bfloat16", True),
    ("sm90_xmma_gemm_e4m3e4m3_e4m3f32_f32_tn_n_tilesize64x128x128_warpgroupsize1x1x1", "float8", True),
    ("cudnn::bn_fw_tr_1C11_kernel_NCHW<__half2, float, 512, true, 1>", "float16", False),
    ("cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>", "float32", False),
    ("void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>", "bfloat16", False),
    ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_6_64x64x64", "float16", True),
    ("void splitKreduce_kernel<32, 16, int, float, __half, float, __half, true>", "float16", False),
    ("void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false>", "float32", False),
    ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16>", "float32", False),
    # CUTLASS
    ("cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x256_32x3_nn_align8", "float16", True),
    ("cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_nn_align8", "bfloat16", True),
    ("cutlass_80_tensorop_s1688gemm_128x128_16x4_tn_align4", "tf32", True),
    ("cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x128_16x4>", "tf32", True),
    ("cutlass_75_tensorop_s1688gemm_f16_128x128_32x2_nn_align8", "float16", True),
    ("cutlass_75_tensorop_s1688gemm_128x128_32x2_nn_align8", "float16", True),
    ("cutlass_80_simt_sgemm_128x64_8x5_nt_align1", "float32", False),
    ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", "float64", True),
    ("cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_nn_align8", "float16", True),
    ("cutlass_80_tensorop_i16832gemm_s8_128x128_64x4_tn_align16", "other", True),
    # Eigen and TensorFlow
    (HALF_SUM, "float16", False),
    (HALF_SUM.replace("half", "bfloat16"), "bfloat16", False),
    (FLOAT_INVERSE, "float32", False),
    (FLOAT_INVERSE.replace("float", "double"), "float64", False),
    (FLOAT_INVERSE.replace("<float", "<int"), "other", False),
    ("Mul_GPU_DT_HALF_DT_HALF_kernel", "float16", False),
    ("AddV2_GPU_DT_BFLOAT16_DT_BFLOAT16_kernel", "bfloat16", False),
    ("Relu_GPU_DT_FLOAT_DT_FLOAT_kernel", "float32", False),
    ("LogicalAnd_GPU_DT_BOOL_DT_BOOL_kernel", "other", False),
    ("_ZN10tensorflow7functor15RowReduceKernelIPKN5Eigen4halfEPS3_EEvT_", "float16", False),
    # a conversion counts by what it reads, unless that is no floating type
    (TO_HALF.format("float"), "float32", False),
    (TO_HALF.format("bool"), "float16", False),
    (TO_FLOAT, "float16", False),
    ("Cast_GPU_DT_FLOAT_DT_HALF_kernel", "float32", False),
    ("Cast_GPU_DT_UINT8_DT_FLOAT_kernel", "float32", False),
    # XLA's own names do not tell
    ("loop_multiply_fusion_3", None, False),
    ("input_reduce_fusion", None, False),
    ("wrapped_convert", None, False),
    ("gemm_fusion_dot_12", None, None),
    ("some_library::half_warp_scan", None, False),
]


@pytest.mark.parametrize(("name", "dtype", "tensor_core"), KERNELS, ids=[name[:60] for name, _, _ in KERNELS])
def test_a_kernel_is_told_by_its_name(name: str, dtype: str | None, tensor_core: bool | None) -> None:
    assert kernel_dtype(name) == dtype
    assert uses_tensor_cores(name, dtype, flagged=False) == tensor_core


def test_what_xprof_knows_of_tensor_cores_is_believed() -> None:
    assert uses_tensor_cores("loop_multiply_fusion_3", None, flagged=True) is True


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        ("(half[32,128];half[128,10])", "float16"),
        ("(bfloat16[4,384,1024])", "bfloat16"),
        ("(half[32,16,16,8];float[8];float[8])", "float16"),  # batch normalization: the images weigh more
        ("(float[32,10];int32[])", "float32"),
        ("(double[2])", "float64"),
        ("(int32[3])", "other"),
        ("", None),
        ("()", None),
    ],
)
def test_shapes_tell_the_type_of_the_largest_tensor(shapes: str, dtype: str | None) -> None:
    assert shapes_dtype(shapes) == dtype


@pytest.mark.parametrize(
    "name", ["MemcpyH2D", "MEMCPYD2D", "Memset", "[CUDA memcpy HtoD]", "ncclDevKernel_AllReduce_Sum_f32"]
)
def test_data_movement_is_no_compute(name: str) -> None:
    assert not is_compute(name)
    assert is_compute("ampere_sgemm_128x64_tn")
