"""Reads the data type, the use of tensor cores and the category of a GPU kernel from its name.

Each library has its naming conventions:

- cuBLAS and cuDNN: `ampere_fp16_s16816gemm_…`, `volta_h884gemm_…`, `sm80_xmma_fprop_implicit_gemm_tf32f32_…`. `884`,
  `1688`, `16816` are shapes of tensor core instructions; the letter before is the accumulator (`h` half, `s` single).
  `hmma` is a 16-bit instruction: `Ampere_hmma_fp32_traits` multiplies float16 and accumulates in float32.
- cuBLAS since Hopper: `nvjet_hsh_…`, one letter each for the inputs, the arithmetic and the output.
- CUTLASS: `cutlass_80_tensorop_f16_s16816gemm_…`, `cutlass_80_simt_sgemm_…`.
- Eigen and TensorFlow: C++ templates (`Eigen::half`) or `Mul_GPU_DT_HALF_DT_HALF_kernel`.
- XLA: `loop_multiply_fusion_3`, `input_reduce_fusion`, `gemm_fusion_dot_2` (compiled by Triton), without a type, which
  `hlo` reads from the program. XLA calls cuBLAS, cuBLASLt and cuDNN for the other products and convolutions: those
  kernels have the libraries' names.
- PyTorch's Triton: `triton_poi_fused_…` (pointwise), `triton_mm`.
- hipBLASLt and Tensile, for AMD: `Cijk_Ailk_Bljk_BBS_BH_MT…_MI16x16x16x1_…`, the types of the inputs, of the output and
  of the arithmetic (`B` bfloat16, `H` half, `S` single, `D` double), and the shape of a matrix instruction.

What a name does not show is unknown (None), and never "not on tensor cores".
"""

from __future__ import annotations

import functools
import re
from math import prod

from halfstep.operations.op_types import OpCategory
from halfstep.words.policies import SIXTEEN_BIT

FLOATING = SIXTEEN_BIT | {"float8", "tf32", "float32", "float64"}

_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z])[a-z]+(?:_|$)")
_NVJET_INPUT = {"h": "float16", "t": "bfloat16", "s": "tf32", "d": "float64", "q": "float8", "o": "other", "b": "other"}

_TENSILE = re.compile(r"^cijk_[a-z]+_[a-z]+_(f8|b8|i8|[bhsd])")
_TENSILE_INPUT = {
    "b": "bfloat16",
    "h": "float16",
    "s": "float32",
    "d": "float64",
    "f8": "float8",
    "b8": "float8",
    "i8": "other",
}

# In order: the first that matches decides. Types of inputs come before those that can also be an accumulator's.
_DTYPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (dtype, re.compile(pattern))
    for dtype, pattern in (
        ("float8", r"e4m3|e5m2|fp8"),
        ("other", r"e2m1|fp4|imma|(?<![a-z])i(?:8816|16816|16832|161616)|i8i8|gemm_int8"),
        ("bfloat16", r"bfloat16|bf16"),
        ("float16", r"fp16|(?<![bt])f16|__half|4halfe|half_t|(?<![a-z0-9])half2?(?![a-z0-9]|_warp)|float16"),
        ("tf32", r"tf32|tfloat32|(?<![a-z])c1688|tensorop_\w*gemm_f32_f32"),
        ("float64", r"(?<![a-z])[dz](?:884|gemm|gemv)|(?<![a-z0-9])f64|^(?:(?!(?<![a-z])float).)*(?<![a-z])double2?\b"),
        ("float16", r"hmma|(?<![a-z])h(?:884|1688|16816|161616)|(?<![a-z])s(?:884|16816|161616)"),
        ("float16", r"turing_s1688|_75_tensorop_s1688|sm75_\w*s1688"),
        ("tf32", r"(?<![a-z])s1688"),  # since Ampere, a 16x8x8 instruction with single-precision inputs is TF32
        ("float16", r"(?<![a-z])h(?:gemm|gemv|cudnn)"),
        ("float32", r"(?<![a-z])(?:s|g?c)gemm|(?<![a-z])s(?:gemv|cudnn)|ffma"),
        ("float32", r"(?<![a-z0-9])f32|fp32|(?<![a-z])float[24]?(?![a-z0-9])"),
        ("other", r"tensor<(?:unsigned )?(?:bool|char|short|int|long)|dt_(?:u?int|bool)"),
        ("other", r"^(?!.*opaque).*<(?:bool|int|long)[ ,>]"),
    )
)
_CONVERSION = (
    re.compile(r"tensorconversionop<(?P<target>\w+),.*?tensor<(?P<source>\w+)"),
    re.compile(r"cast_gpu_(?P<source>dt_[a-z0-9]+)_(?P<target>dt_[a-z0-9]+)_kernel"),
)
# In Eigen's expressions a conversion is often one term of many, as in the gradient of Relu: here it is the only one.
_CAST = re.compile(
    r"tensorassignop<tensormap<[^<>]*<[^<>]*>[^<>]*>, tensorconversionop<[^<>,]+, tensormap<|(?<![a-z])cast_gpu_dt"
    r"|^(?:loop_|input_|wrapped_)?convert(?:_fusion)?(?:[._]\d+)*$"
    r"|float16_copy_kernel|direct_copy_kernel.*withcast|converttensor_kernel<(?P<type>\w+), (?!(?P=type))"
)

_TENSOR_CORES = re.compile(
    r"nvjet_|(?<![a-z])[hsdzci](?:884|1688|16816|161616|16832|8816)|tensorop|tensor\d+x\d+x\d+"
    r"|^cijk_\w*_mi\d+x\d+|wmma|[hiqg]mma|umma(?!ry)|tcgen05|e2m1|warpgroup|flash_(?:fwd|bwd|fprop|bprop)|flashattn|fmha(?:_v2|sm\d|_cutlass\w*(?:sm[89]|f16\w*sm7))"
    r"|conv1x1|dgrad_1x1_stride_2x2|direct_group|first_layer_wgrad_kernel"  # cuDNN's, by xprof's list
)
_CUDA_CORES = re.compile(r"ffma|simt|(?<!t)f32f32_f32(?![a-z0-9])")
# The compiler or the library chooses the kernel behind these names.
_ANY_CORES = re.compile(
    r"(?:gemm|dot|conv(?!ert))\w*fusion|fusion\w*(?:gemm|dot)|triton_(?:gemm|tem|b?mm)|__cu(?:dnn|blas)\$|custom-call"
    r"|fmha|flash_attn"
)
# XLA's pass RenameFusions names loops and reductions after what they compute; other fusions may be any of its kernels.
_ANY_FUSION = re.compile(r"^fusion(?:[._]\d+)*$")
# A change between NCHW and NHWC around a convolution: by cuDNN, or by TensorFlow's layout optimizer.
_LAYOUT = re.compile(r"n[chw]{3}to(?:folded)?n[chw]{3}(?!\w*(?:gemm|fprop|dgrad|wgrad))|foldednhwc")
_LAYOUT_OPTIMIZER = "LayoutOptimizer"

_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|\w+)::")
_ARGUMENTS = re.compile(r"[<(]|(?<=kernel)2?i(?=[a-z]*\d)")  # of a template or a function, also where names are mangled
# Layout changes, conversions, reductions and set-up: also inside a convolution (`reduce_wgrad_nchw_helper`).
_AUXILIARY = re.compile(
    r"n[chw]{3}to(?:folded)?n[chw]{3}|foldednhwc|addpadding|transpose|swapdimension|tensortransform|im2col|convert"
    r"|reduc|offsets|pointers|redzone|triton_(?:poi|red|per)|combine|dot_do_o|gemmk1"
)
_MATRIX = re.compile(
    r"(?<!fb)gemm|nvjet|xmma|(?:[hsd]|\d)cudnn_|conv(?!ers|ert)|wgrad|dgrad|fprop|winograd|fft\d?d|contraction|sdpa|fmha"
    r"|flash_?(?:attn|fwd|bwd|fprop|bprop)|[whigq]mma|umma(?!ry)|tcgen05|dot\w*fusion|fusion\w*dot|triton_tem|blockpersist"
    r"|^cijk_|matmul|mul_mat(?!_vec)|tensorop|(?<![a-z])(?:add|b)?mm(?![a-z])"
)
# A product of a matrix and a vector (gemv) reads each number once: memory bounds it.
_MEMORY = re.compile(
    r"eigenmetakernel|_gpu_dt_|gemv|reduc|elem(?:ent)?wise|fusion|wrapped_|transpose|shuffle|(?<![a-z])(?:bn|ln)_"
    r"|norm(?!al(?:$|[^i]))|bias|relu|gelu|silu|swiglu|pool|softmax|copy|concat|(?<![a-z])pad|cast|convert|conversion"
    r"|upsample|scatter|gather|slice|broadcast|apply|adam|momentum|op_tensor|scal_kernel|scalepacked|axpy|fill(?!philox)|stitch|mul_mat_vec"
)
_NOT_COMPUTE = re.compile(r"^\[?(?:cuda |hip )?mem(?:cpy|set)|^[nr]ccl|^__amd_rocclr_(?:copy|fill)", re.IGNORECASE)
_MOST_CHARACTERS = 2000  # of a name that are looked at: what follows are arguments of templates in templates

_TENSOR = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_NAMES = {"half": "float16", "float": "float32", "double": "float64"}


_remembered = functools.lru_cache(maxsize=10_000)  # a trace has each kernel in every step


def is_compute(kernel_name: str) -> bool:
    """False for copies, memory fills and collectives, which move data and compute nothing of the model."""
    return _NOT_COMPUTE.search(kernel_name) is None


def canonical_dtype(name: str) -> str:
    """One name for each type: `half`, `f16` and `DT_HALF` are `float16`; integers and booleans are `other`."""
    plain = re.sub(r"^(b?)f(?=\d)", r"\1float", name.lower().removeprefix("dt_"))
    return _NAMES.get(plain, plain if plain in FLOATING else "other")


@_remembered
def kernel_dtype(kernel_name: str) -> str | None:
    """The type that a kernel computes in: one of `FLOATING`, `other`, or None if the name does not show it.

    A conversion counts by the type that it reads, or, if that is not a floating type, by the type that it writes.
    """
    name, plain = _shortened(kernel_name), _without_namespaces(kernel_name)
    conversion = next(filter(None, (pattern.search(plain) for pattern in _CONVERSION)), None)
    if conversion:
        source, target = canonical_dtype(conversion["source"]), canonical_dtype(conversion["target"])
        return source if source in FLOATING else target
    nvjet = _NVJET.search(name)
    if nvjet:
        return _NVJET_INPUT.get(nvjet[1])
    if tensile := _TENSILE.search(name):
        return _TENSILE_INPUT[tensile[1]]
    return next((dtype for dtype, pattern in _DTYPES if pattern.search(name)), None)


@_remembered
def uses_tensor_cores(kernel_name: str, dtype: str | None) -> bool | None:
    """Whether a kernel that computes in `dtype`, None if that is unknown, runs on tensor cores; None if unknown."""
    name, category = _shortened(kernel_name), kernel_category(kernel_name)
    if _ANY_FUSION.search(name):
        return None
    if category == "memory" or _CUDA_CORES.search(name):
        return False
    if _TENSOR_CORES.search(name):
        return True
    if _ANY_CORES.search(name):
        return None
    if category != "matrix" or dtype == "float32":
        return False
    if dtype in {"tf32", "float8"} or ("xmma" in name and dtype in SIXTEEN_BIT):
        return True
    return None if dtype is None else False


@_remembered
def kernel_category(kernel_name: str) -> OpCategory:
    """What bounds a kernel of this name: `matrix`, `memory`, or `other` if the name does not show it.

    The name of the function decides before its template arguments. Transforms of a Winograd or FFT convolution count
    as `matrix`: they are arithmetic of the convolution.
    """
    function, *arguments = _ARGUMENTS.split(_without_namespaces(kernel_name), maxsplit=1)
    if _AUXILIARY.search(function):
        return "memory"
    for part in (function, *arguments):
        if _MATRIX.search(part):
            return "memory" if re.search("flashattn.*(?:pre|post)process", part) else "matrix"
        if _MEMORY.search(part):
            return "memory"
    return "other"


def is_layout_kernel(kernel_name: str, operation: str = "") -> bool:
    """Whether a kernel only changes the layout of a convolution's tensor, by its name or that of its operation."""
    return _LAYOUT.search(_shortened(kernel_name)) is not None or _LAYOUT_OPTIMIZER in operation


def is_cast_kernel(kernel_name: str) -> bool:
    """Whether a kernel of this name only changes a data type."""
    return _CAST.search(_without_namespaces(kernel_name)) is not None


def shapes_dtype(shapes: str) -> str | None:
    """The type of the largest tensor in a list of shapes such as `(half[32,128];float[128])`; None without tensors."""
    tensors = [(prod(map(int, filter(None, dims.split(",")))), name) for name, dims in _TENSOR.findall(shapes)]
    return canonical_dtype(max(tensors, key=lambda tensor: tensor[0])[1]) if tensors else None


def _without_namespaces(kernel_name: str) -> str:
    return _NAMESPACE.sub("", _shortened(kernel_name))


def _shortened(kernel_name: str) -> str:
    return kernel_name[:_MOST_CHARACTERS].lower().removesuffix(".kd")  # as ROCm ends them
