from __future__ import annotations

import pytest

from halfstep.operations.op_types import is_cast, op_category, plain_type, unversioned

PLAIN_TYPES: dict[str, tuple[str, ...]] = {
    "MatMul": ("MatMul", "_FusedMatMul", "_MklMatMul", "_MklFusedMatMul", "_MklNativeMatMul", "_MklNativeFusedMatMul"),
    "BatchMatMulV2": ("BatchMatMulV2", "_MklBatchMatMulV2", "_MklNativeFusedBatchMatMulV2"),
    "Conv2D": (
        "Conv2D",
        "_FusedConv2D",
        "_MklConv2DWithBias",
        "_MklNativeConv2D",
        "_MklNativeFusedConv2D",
        "_MklNativePadWithConv2D",
        "_MklNativePadWithFusedConv2D",
    ),
    "Conv2DBackpropFilter": ("_MklNativeConv2DBackpropFilter", "_MklNativeConv2DBackpropFilterWithBias"),
    "DepthwiseConv2dNative": ("_FusedDepthwiseConv2dNative", "_MklNativeFusedDepthwiseConv2dNative"),
    "FusedBatchNormV3": ("FusedBatchNormV3", "_MklNativeFusedBatchNormV3", "_FusedBatchNormEx", "_MklFusedBatchNormEx"),
    "FusedBatchNormGradV3": ("FusedBatchNormGradV3", "_FusedBatchNormGradEx", "_MklNativeFusedBatchNormGradV3"),
    "MaxPoolGrad": ("MaxPoolGrad", "_MklNativeMaxPoolGrad"),
    "": ("",),
}

CATEGORIES: dict[str, tuple[str, ...]] = {
    "matrix": (
        *("MatMul", "BatchMatMul", "BatchMatMulV3", "SparseTensorDenseMatMul", "Conv", "Conv2D"),
        *("Conv2DBackpropFilter", "Conv3DBackpropInputV2", "DepthwiseConv2dNative"),
        *("DepthwiseConv2dNativeBackpropFilter", "FusedResizeAndPadConv2D", "QuantizedConv2DWithBiasAndRelu", "Einsum"),
        *("XlaConv", "XlaConvV2", "XlaDot", "XlaDotV2", "CudnnRNNV3", "_FusedMatMul", "_MklNativeFusedConv2D"),
        "_MklNativeConv2DBackpropFilterWithBias",
    ),
    "memory": (
        *("Add", "AddV2", "AddN", "Mul", "RealDiv", "DivNoNan", "SquaredDifference", "Rsqrt", "RsqrtGrad", "Maximum"),
        *("SelectV2", "GreaterEqual", "LogicalAnd", "IsFinite", "Relu", "Relu6Grad", "LeakyReluGrad", "Sigmoid"),
        *("TanhGrad", "_MklNativeSwish", "FusedBatchNormV3", "FusedBatchNormGradV3", "_FusedBatchNormEx"),
        *("_MklNativeFusedBatchNormV3", "BiasAdd", "BiasAddGrad", "Sum", "Mean", "ArgMax", "L2Loss"),
        *("UnsortedSegmentSum", "MaxPool", "MaxPoolGradV2", "AvgPoolGrad", "MaxPool3DGrad", "_MklNativeMaxPool"),
        *("Softmax", "LogSoftmax", "SparseSoftmaxCrossEntropyWithLogits", "ResourceApplyAdam"),
        *("ResourceApplyKerasMomentum", "AssignVariableOp", "AssignSubVariableOp", "Cast", "Transpose", "ConcatV2"),
        *("Pad", "Tile", "GatherV2", "TensorListStack", "TensorListFromTensor", "TensorListConcatV2"),
    ),
    "input": (
        *("Dataset", "BatchDatasetV2", "ParallelMapDatasetV2", "Iterator", "IteratorGetNext"),
        *("MultiDeviceIteratorGetNextFromShard", "PyFunc", "PyFuncStateless", "EagerPyFunc"),
    ),
    "other": (
        *("", "NoOp", "If", "ReadVariableOp", "RandomUniform", "StatelessRandomUniformV2", "CollectiveReduceV2"),
        *("Bitcast", "OptionalFromValue", "TensorListPushBack", "TensorListPopBack", "TensorListSetItem"),
        *("XlaDotSomething", "MyOp"),
    ),
}


def test_operations_of_both_arms_have_the_same_plain_type() -> None:
    names_by_type = {
        plain: tuple(name for name in names if plain_type(name) == plain) for plain, names in PLAIN_TYPES.items()
    }
    assert names_by_type == {plain: tuple(names) for plain, names in PLAIN_TYPES.items()}


def test_version_is_removed() -> None:
    assert unversioned("FusedBatchNormGradV3") == "FusedBatchNormGrad"
    assert unversioned("Conv2D") == "Conv2D"


def test_categories_of_operations() -> None:
    for category, names in CATEGORIES.items():
        assert {name: op_category(name) for name in names} == dict.fromkeys(names, category)


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [("Cast", True), ("_MklNativeCast", True), ("Bitcast", False), ("Conv2D", False), ("BroadcastTo", False)],
)
def test_only_casts_are_casts(op_type: str, expected: bool) -> None:
    assert is_cast(op_type) is expected
