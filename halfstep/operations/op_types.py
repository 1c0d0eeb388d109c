"""Types of operations (`Conv2D`) and what bounds them: the one table for reading traces and for comparing profiles.

Lower precision speeds matrix products up by a larger factor than anything else: tensor cores make them many times
faster, while an operation that memory bounds gains 2 at best, because it moves half the bytes.
"""

from __future__ import annotations

import re
from typing import Literal

OpCategory = Literal["matrix", "memory", "input", "other"]

# oneDNN and the graph optimizer prefix the type (`_MklNativeFusedConv2D`). FusedBatchNorm is TensorFlow's name.
_PREFIX = re.compile(r"^_*(?:Mkl(?:Native)?)?(?:PadWith)?(?:Fused(?!BatchNorm))?(?=[A-Z])")
_BATCH_NORM_WITH_ACTIVATION = re.compile(r"^(FusedBatchNorm(?:Grad)?)Ex$")

_INPUT = re.compile(r"Dataset|Iterator|^(?:Eager)?PyFunc")
_MATRIX = re.compile(r"MatMul|Conv[23]D|^Conv$|DepthwiseConv2d|Einsum|Xla(?:Dot|Conv)(?:V\d)?$|CudnnRNN")
_SUFFIX = r"(?:Grad|V\d+|NoNan|WithArgmax|3D|WithLogits|ByValue|Nd|Args)*"
_MEMORY = re.compile(
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
    # copies (a list of tensors is copied as a whole; what is added or taken is not), layout changes and fills
    r"|Cast|Transpose|ConjugateTranspose|Concat|ConcatOffset|Split|SplitV|Slice|StridedSlice|Pad|MirrorPad|Tile"
    r"|BroadcastTo|(?:Resource)?Gather|Pack|Unpack|Reverse|Fill|ZerosLike|OnesLike|Resize\w+|SpaceToDepth|DepthToSpace"
    r"|ToTf|TensorList(?:Stack|FromTensor|Concat|Gather)"
    # what XLA compiled: fusions and copies, and the copies of the arguments and results of a program
    r"|XlaFusion|XLA_(?:Args|Retvals)"
    rf"){_SUFFIX}"
)


def plain_type(op_type: str) -> str:
    """TensorFlow's type of an operation, whichever library computes it and whatever was fused into it.

    `_MklNativeFusedMatMul` and `_FusedMatMul` are `MatMul`, `_MklNativeConv2DBackpropFilterWithBias` is
    `Conv2DBackpropFilter`. A batch normalization with a fused activation, `_FusedBatchNormEx`, is `FusedBatchNormV3`,
    which computes the same normalization without the activation.
    """
    plain = _PREFIX.sub("", op_type, count=1).removesuffix("WithBias")
    return _BATCH_NORM_WITH_ACTIVATION.sub(r"\1V3", plain)


def unversioned(op_type: str) -> str:
    """The type without its version: `BatchMatMul` for `BatchMatMulV2`."""
    return re.sub(r"V\d+$", "", op_type)


def op_category(op_type: str) -> OpCategory:
    """What bounds an operation of this type.

    Returns:
        `matrix` for matrix products and convolutions; `memory` for what reads and writes each number about once;
        `input` for the input pipeline and for Python functions, which a training step runs nowhere else; `other` if
        unknown, such as random numbers, control flow and custom operations.
    """
    plain = plain_type(op_type)
    if _INPUT.search(plain):
        return "input"
    if _MATRIX.search(plain):
        return "matrix"
    return "memory" if _MEMORY.fullmatch(plain) else "other"


def is_cast(op_type: str) -> bool:
    """Whether an operation of this type only changes a data type."""
    return plain_type(op_type) == "Cast"
