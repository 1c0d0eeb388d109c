"""Tells what bounds an operation or a kernel: the multiplying of matrices, or the memory that it reads and writes.

Lower precision speeds the two up by different factors: tensor cores make matrix products many times faster, while
memory is at best read in half the time. Operations are told by TensorFlow's types, with oneDNN's and the graph
optimizer's prefixes (`_MklNativeFusedConv2D`), kernels by the names that cuBLAS, cuDNN, CUTLASS, Eigen and XLA give.
"""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["matrix", "memory", "other"]

_PREFIX = re.compile(r"_*(?:Mkl)?(?:Native)?(?:PadWith|Quantized)?(?:Fused)?(?=[A-Z0-9])")
_SUFFIX = r"(?:Grad|V\d+|Ex|NoNan|WithArgmax|3D|WithLogits|ByValue|Nd|Args)*"

_MATRIX_OPERATION = re.compile(
    r"(?:(?:Sparse|SparseTensorDense)?(?:Batch)?MatMul|Conv[23]D|DepthwiseConv2d|Einsum|XlaDot|XlaConv|CudnnRNN).*"
)
_MEMORY_OPERATION = re.compile(
    "(?:"
    # elementwise: arithmetic, comparisons, activations
    r"Add|AddN|Sub|Mul|Div|RealDiv|FloorDiv|Xdivy|Xlogy|Neg|Abs|Sign|Square|SquaredDifference|Sqrt|Rsqrt|Reciprocal|Inv"
    r"|Pow|Exp|Expm1|Log|Log1p|Sin|Cos|Erf|Erfc|Floor|Ceil|Round|Rint|Maximum|Minimum|Clip|Select|Where"
    r"|Greater|GreaterEqual|Less|LessEqual|Equal|NotEqual|Logical(?:And|Or|Not)|IsFinite|IsInf|IsNan"
    r"|Relu6?|LeakyRelu|Elu|Selu|Gelu|Swish|Mish|Softplus|Softsign|Sigmoid|Tanh"
    # normalization, bias, reductions, pooling, losses
    r"|(?:Fused)?BatchNorm(?:alization\w*)?|LayerNorm|InstanceNorm|LRN|BiasAdd"
    r"|Sum|Mean|Max|Min|Prod|All|Any|ArgMax|ArgMin|Cumsum|L2Loss|(?:Unsorted|Sparse)?Segment\w+"
    r"|(?:Max|Avg|FractionalMax|FractionalAvg)Pool|(?:Log)?Softmax|(?:Sparse)?SoftmaxCrossEntropy"
    # updates of variables
    r"|(?:Resource)?(?:Sparse)?Apply\w+|Assign\w*|(?:Resource)?Scatter\w*"
    # what only moves or fills
    r"|Cast|Transpose|ConjugateTranspose|Concat|ConcatOffset|Split|SplitV|Slice|StridedSlice|Pad|MirrorPad|Tile"
    r"|BroadcastTo|(?:Resource)?Gather|Pack|Unpack|Reverse|Fill|ZerosLike|OnesLike|Resize\w+|SpaceToDepth|DepthToSpace"
    r"|ToTf"
    rf"){_SUFFIX}"
)
_OPERATION_TYPE = re.compile(r"_*[A-Z][A-Za-z0-9]*(?<!Kernel)")
_OPERATION_CAST = re.compile(r"_*(?:Mkl)?(?:Native)?Cast")

# A product of a matrix with a vector (gemv) reads each number once: memory bounds it, whatever computes it.
_MATRIX_KERNEL = re.compile(
    r"gemm|nvjet|xmma|cutlass|(?:[hsd]|\d)cudnn_|conv(?!ers|ert)|wgrad|dgrad|fprop|winograd|fft\d?d|contraction"
    r"|flash_(?:fwd|bwd|fprop|bprop)|sdpa|wmma|dot\w*fusion|fusion\w*dot"
)
_MEMORY_KERNEL = re.compile(
    r"eigenmetakernel|_gpu_dt_|gemv|reduc|elementwise|fusion|wrapped_|transpose|swapdimension|shuffle|n[chw]{3}ton"
    r"|(?<![a-z])bn_|batch_?norm|layer_?norm|bias|relu|pool|softmax|copy|concat|(?<![a-z])pad|cast|convert|conversion"
    r"|scatter|gather|slice|broadcast|apply|adam|momentum|op_tensor|scal_kernel|axpy"
)
_KERNEL_CAST = re.compile(r"tensorconversionop|(?<![a-z])cast_gpu_|(?<![a-z])convert|_convert")


def work_kind(name: str) -> Kind:
    """What bounds an operation of this type, such as `Conv2D`, or a GPU kernel of this name.

    Returns:
        `matrix` for products of matrices and convolutions, `memory` for what reads and writes each number about once,
        `other` for what cannot be told: random numbers, waiting, control flow, functions of the user's own.
    """
    plain = _PREFIX.sub("", name, count=1)
    if _MATRIX_OPERATION.fullmatch(plain):
        return "matrix"
    if _MEMORY_OPERATION.fullmatch(plain):
        return "memory"
    if _OPERATION_TYPE.fullmatch(name):
        return "other"
    lower = name.lower()
    if _MATRIX_KERNEL.search(lower):
        return "matrix"
    return "memory" if _MEMORY_KERNEL.search(lower) else "other"


def is_cast(name: str) -> bool:
    """Whether an operation of this type, or a kernel of this name, does nothing but change a data type."""
    return bool(_OPERATION_CAST.fullmatch(name) or _KERNEL_CAST.search(name.lower()))
