from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfstep.profile.trace.kernels import (
    is_cast_kernel,
    is_compute,
    is_layout_kernel,
    kernel_category,
    kernel_dtype,
    shapes_dtype,
    uses_tensor_cores,
)

TENSOR_CORES = {"yes": True, "no": False, "?": None}
EIGEN = "void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<Eigen::TensorAssignOp<{}>>>"
INTEGERS = EIGEN.format("Eigen::TensorMap<Eigen::Tensor<int, 1, 1, int>, 16>, scalar_inverse_op<int>")


def public_names() -> Iterator[tuple[str, ...]]:
    """Data type, use of tensor cores, category and name of each kernel in `kernel_names.txt`."""
    for line in Path(__file__).with_name("kernel_names.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield tuple(line.split(" ", 3))


# names that are in no public trace of the table
MORE_NAMES = [
    ("bfloat16", "yes", "matrix", "Cijk_Ailk_Bljk_BBS_BH_MT128x128x64_MI16x16x16x1_SN_1LDSB0"),
    ("float16", "yes", "matrix", "Cijk_Alik_Bljk_HHS_BH_MT64x64x64_MI32x32x8x1_SN.kd"),
    ("float32", "no", "matrix", "Cijk_Ailk_Bjlk_SB_MT64x64x8_SE_K1"),
    ("float16", "yes", "matrix", "cutlass_75_tensorop_s1688gemm_128x128_32x2_nn_align8"),
    ("float16", "no", "memory", "_ZN10tensorflow7functor15RowReduceKernelIPKN5Eigen4halfEPS3_EEvT_"),
    ("float16", "no", "matrix", "void tensorflow::DepthwiseConv2dGPUKernelNHWC<Eigen::half, 3, 3, 1>"),
    ("bfloat16", "no", "memory", "AddV2_GPU_DT_BFLOAT16_DT_BFLOAT16_kernel"),
    ("other", "no", "memory", "LogicalAnd_GPU_DT_BOOL_DT_BOOL_kernel"),
    ("other", "no", "memory", INTEGERS),
    ("float32", "no", "cast", "Cast_GPU_DT_FLOAT_DT_HALF_kernel"),
    ("float32", "no", "cast", "Cast_GPU_DT_UINT8_DT_FLOAT_kernel"),
    ("float16", "no", "cast", "void cudnn::ops::convertTensor_kernel<__half, float, float, (cudnnKernelDataType_t)2>"),
    ("?", "no", "memory", "loop_multiply_fusion_3"),
    ("?", "no", "memory", "input_reduce_fusion"),
    ("?", "?", "memory", "fusion_123"),  # as XLA calls a fusion that it does not rename
    ("?", "?", "memory", "fusion.7"),
    ("?", "no", "cast", "wrapped_convert"),
    ("?", "no", "cast", "loop_convert_fusion_2"),
    ("?", "no", "memory", "loop_add_convert_fusion"),
    ("?", "?", "matrix", "triton_gemm_dot.4"),
    ("?", "?", "matrix", "triton_tem_fused_mm"),
    ("?", "?", "matrix", "my_matmul_kernel"),
    ("?", "yes", "matrix", "persistent_umma_kernel"),
    ("?", "no", "other", "some_library::half_warp_scan"),
]
KERNELS = [*public_names(), *MORE_NAMES]


def test_dtype_tensor_cores_and_category_of_kernels() -> None:
    assert len(KERNELS) > 500
    for dtype, tensor_cores, category, name in KERNELS:
        inferred_dtype = kernel_dtype(name)
        assert (inferred_dtype or "?") == dtype, name
        assert uses_tensor_cores(name, inferred_dtype) is TENSOR_CORES[tensor_cores], name
        assert is_cast_kernel(name) is (category == "cast"), name
        assert kernel_category(name) == category.replace("cast", "memory"), name


LAYOUT_KERNELS = (
    "void nchwToNhwcKernel<__half, __half, float, bool=1>(int, int, int, int, __half const *, __half*, float, float)",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>",
    "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>",
    "void cudnn::engines_precompiled::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float, true, false, "
    "(cudnnKernelDataType_t)0>",
)


def test_layout_changes_around_convolutions() -> None:
    assert [name for name in LAYOUT_KERNELS if not is_layout_kernel(name)] == []
    assert is_layout_kernel(
        "void tensorflow::functor::SwapDimension1And2InTensor3UsingTiles<unsigned int, 1024, 1024>",
        "model/conv/Conv2D-0-TransposeNHWCToNCHW-LayoutOptimizer",
    )
    others = [name for *_, category, name in public_names() if category != "memory" and is_layout_kernel(name)]
    assert others == []  # such as `…_nhwc2nchw_tn_v1`, a convolution that also changes the layout
    assert not is_layout_kernel("loop_transpose_fusion.1")  # of the model itself, or of a convolution


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        ("(half[32,10];half[128,10])", "float16"),
        ("(bfloat16[4,384,1024])", "bfloat16"),
        ("(half[32,16,16,8];float[8];float[8])", "float16"),  # batch normalization: the images are larger
        ("(float[32,10];int32[])", "float32"),
        ("(double[2])", "float64"),
        ("(int32[3])", "other"),
        ("", None),
        ("()", None),
    ],
)
def test_shapes_give_the_type_of_the_largest_tensor(shapes: str, dtype: str | None) -> None:
    assert shapes_dtype(shapes) == dtype


@pytest.mark.parametrize(
    "name", ["MemcpyH2D", "MEMCPYD2D", "Memset", "[CUDA memcpy HtoD]", "ncclDevKernel_AllReduce_Sum_f32"]
)
def test_data_movement_is_not_compute(name: str) -> None:
    assert not is_compute(name)
    assert is_compute("ampere_sgemm_128x64_tn")


def test_suffix_of_rocm_changes_nothing() -> None:
    name = "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_SE"
    assert kernel_dtype(f"{name}.kd") == kernel_dtype(name) == "float16"
    assert kernel_category(f"{name}.kd") == kernel_category(name)


def test_long_names_are_read_in_no_time() -> None:
    """Expressions with repeats would take the square of a name's length."""
    for part in ("gemm_dot_", "fusion", "float", "conv", "<half, "):
        name = part * 20_000
        began_s = time.process_time()
        kernel_dtype(name), kernel_category(name), uses_tensor_cores(name, None), is_layout_kernel(name)
        is_cast_kernel(name)
        assert time.process_time() - began_s < 1, part
