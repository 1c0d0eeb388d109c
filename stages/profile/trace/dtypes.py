"""Tells the data type that a GPU kernel computes in, and whether it runs on tensor cores, from its name.

Libraries name their kernels by their own conventions, collected here:

- cuBLAS and cuDNN: `ampere_fp16_s16816gemm_…`, `volta_h884gemm_…`, `sm80_xmma_fprop_implicit_gemm_tf32f32_…`. `884`,
  `1688`, `16816` are shapes of tensor core instructions; the letter before is the accumulator (`h` half, `s` single).
- cuBLAS for Hopper and later: `nvjet_hsh_…`, a letter each for the inputs, the arithmetic and the output
  (`h` float16, `t` bfloat16, `s` float32, which these kernels multiply as TF32, `d` float64, `q` float8).
- CUTLASS: `cutlass_80_tensorop_f16_s16816gemm_…`, `cutlass_80_simt_sgemm_…`.
- Eigen and TensorFlow: C++ templates (`Eigen::half`) or `Mul_GPU_DT_HALF_DT_HALF_kernel`.

XLA's fusions (`loop_multiply_fusion_3`) do not tell: their tensors' shapes may.
"""

from __future__ import annotations

import re
from math import prod

SIXTEEN_BIT = frozenset({"float16", "bfloat16"})
FLOATING = SIXTEEN_BIT | {"float8", "tf32", "float32", "float64"}

_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z])[a-z]+_")
_NVJET_INPUT = {"h": "float16", "t": "bfloat16", "s": "tf32", "d": "float64", "q": "float8", "e": "float8"}

# In order: the first that matches decides. Types that only an input can have come before those of accumulators.
_KERNEL_TYPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (dtype, re.compile(pattern))
    for dtype, pattern in (
        ("float8", r"e4m3|e5m2|fp8"),
        ("bfloat16", r"bfloat16|bf16"),
        ("float16", r"fp16|(?<![bt])f16|__half|4halfe|(?<![a-z0-9])half(?:2|_t)?(?![a-z0-9]|_warp)|float16"),
        ("tf32", r"tf32"),
        ("float64", r"(?<![a-z])d884|(?<![a-z])d(?:gemm|gemv)|(?<![a-z0-9])f64|(?<![a-z])double(?![a-z])"),
        ("float16", r"(?<![a-z])h(?:884|1688|16816|161616)|(?<![a-z])s(?:884|16816|161616)"),
        ("float16", r"turing_s1688|_75_tensorop_s1688|sm75_\w*s1688"),
        ("tf32", r"(?<![a-z])s1688"),  # from Ampere on, single precision in and out of a 16x8x8 instruction is TF32
        ("other", r"(?<![a-z])i(?:8816|16816|16832)"),
        ("float16", r"(?<![a-z])h(?:gemm|gemv|cudnn)"),
        ("float32", r"(?<![a-z])s(?:gemm|gemv|cudnn)|ffma|(?<![a-z0-9])f32|fp32|(?<![a-z])float(?![a-z0-9])"),
        ("other", r"tensor<(?:unsigned )?(?:bool|char|short|int|long)|dt_(?:u?int\d+|bool)"),
    )
)
_CONVERSION = (
    re.compile(r"tensorconversionop<(?:eigen::)?(?P<target>\w+),.*?tensor<(?:eigen::)?(?P<source>\w+)"),
    re.compile(r"cast_gpu_(?P<source>dt_[a-z0-9]+)_(?P<target>dt_[a-z0-9]+)_kernel"),
)
_TENSOR_CORE = re.compile(
    r"nvjet_|(?<![a-z])[hsdi](?:884|1688|16816|161616|16832|8816)|tensorop|_tensor\d+x\d+x\d+|wmma|hmma|gmma|warpgroup"
    r"|flash_(?:fwd|bwd|fprop|bprop)"
)
_XMMA_ON_CUDA_CORES = re.compile(r"ffma|simt")
_UNTOLD_MATRIX_PRODUCT = re.compile(r"(?:gemm|dot|conv).*fusion|fusion.*(?:gemm|dot)|triton_gemm")
_NOT_COMPUTE = re.compile(r"^\[?(?:cuda )?mem(?:cpy|set)|^nccl", re.IGNORECASE)

_TENSOR = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_NAMES = {
    "half": "float16",
    "float16": "float16",
    "f16": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float": "float32",
    "float32": "float32",
    "f32": "float32",
    "double": "float64",
    "float64": "float64",
    "f64": "float64",
}


def is_compute(kernel_name: str) -> bool:
    """False for copies, memory fills and collectives, which move data and compute nothing of the model."""
    return _NOT_COMPUTE.search(kernel_name) is None


def canonical_dtype(name: str) -> str:
    """One name a type: `half` and `DT_HALF` are float16. Integers, booleans and all else are `other`."""
    plain = name.lower().removeprefix("dt_")
    return _NAMES.get(plain, plain if plain in FLOATING else "other")


def kernel_dtype(kernel_name: str) -> str | None:
    """The type that a kernel computes in: one of `FLOATING`, `other`, or None where its name does not tell.

    A kernel that converts counts by what it reads, or, where that is no floating type, by what it writes.
    """
    name = kernel_name.lower()
    conversion = next(filter(None, (pattern.search(name) for pattern in _CONVERSION)), None)
    if conversion:
        source, target = canonical_dtype(conversion["source"]), canonical_dtype(conversion["target"])
        return source if source in FLOATING else target
    nvjet = _NVJET.search(name)
    if nvjet:
        return _NVJET_INPUT.get(nvjet[1])
    return next((dtype for dtype, pattern in _KERNEL_TYPES if pattern.search(name)), None)


def uses_tensor_cores(kernel_name: str, dtype: str | None, flagged: bool) -> bool | None:
    """Whether a kernel runs on tensor cores; None where that cannot be told.

    Args:
        dtype: what the kernel computes in, as far as it is known.
        flagged: what xprof says; its list of names is older than Hopper, so a False says little.
    """
    name = kernel_name.lower()
    if flagged or _TENSOR_CORE.search(name):
        return True
    if "xmma" in name:
        return not _XMMA_ON_CUDA_CORES.search(name) and (dtype in SIXTEEN_BIT or dtype in {"tf32", "float8"})
    if _UNTOLD_MATRIX_PRODUCT.search(name):
        return None
    return False


def shapes_dtype(shapes: str) -> str | None:
    """The type of the largest tensor in a list of shapes such as `(half[32,128];float[128])`; None without tensors."""
    tensors = [(prod(map(int, filter(None, dims.split(",")))), name) for name, dims in _TENSOR.findall(shapes)]
    return canonical_dtype(max(tensors, key=lambda tensor: tensor[0])[1]) if tensors else None
