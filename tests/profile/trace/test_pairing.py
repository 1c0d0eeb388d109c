"""Pairs of operations: names as in traces of TensorFlow 2.21 on a CPU, under three policies."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from halfstep.profile.trace.model import Operation
from halfstep.profile.trace.pairing import Key, Timed, paired_times

RUN = "StatefulPartitionedCall"
GRADIENT = f"{RUN}/gradient_tape/cnn_1"
Row = tuple[str, str, float, str | None]


@dataclass(frozen=True)
class Pair:
    """The times of a pair, None for a side without it."""

    baseline_ms: float | None
    candidate_ms: float | None
    baseline_dtype: str | None
    candidate_dtype: str | None


def _timed(op_type: str, name: str, time_ms: float, dtype: str | None) -> Timed:
    return Operation(op_type, name, "Host", 1, 1e3 * time_ms, dtype), time_ms


def _changes(before: list[Row], after: list[Row]) -> dict[Key, Pair]:
    sides = paired_times([_timed(*row) for row in before], [_timed(*row) for row in after])
    pairs = {}
    for key in sides[0] | sides[1]:
        both = [side.get(key, {}) for side in sides]
        before_ms, after_ms = (sum(by_dtype.values()) or None for by_dtype in both)
        dtypes = [max(by_dtype, key=by_dtype.__getitem__, default=None) for by_dtype in both]
        pairs[key] = Pair(before_ms, after_ms, *dtypes)
    return pairs


def test_layer_pairs_whichever_library_computes_it() -> None:
    before: list[Row] = [("_MklNativeConv2D", f"{RUN}/cnn_1/conv2d_1/convolution", 4.0, "float32")]
    after: list[Row] = [("Conv2D", f"{RUN}/cnn_1/conv2d_1/convolution", 9.0, "float16")]
    assert _changes(before, after) == {("cnn_1/conv2d_1", "Conv2D"): Pair(4.0, 9.0, "float32", "float16")}


PAIRS = {
    "fused-and-not": (
        ("_MklNativeFusedMatMul", f"{RUN}/cnn_1/logits_1/BiasAdd"),
        ("MatMul", f"{RUN}/cnn_1/logits_1/MatMul"),
        ("cnn_1/logits_1", "MatMul"),
    ),
    "fused-with-and-without-oneDNN": (
        ("_MklNativeFusedMatMul", f"{RUN}/cnn_1/logits_1/BiasAdd"),
        ("_FusedMatMul", f"{RUN}/cnn_1/logits_1/BiasAdd"),
        ("cnn_1/logits_1", "MatMul"),
    ),
    "first-and-other-replica": (
        ("MatMul", f"{RUN}/cnn_1/logits_1/MatMul"),
        ("MatMul", "replica_4/cnn_1/logits_1/MatMul"),
        ("cnn_1/logits_1", "MatMul"),
    ),
    "gradient-with-a-fused-bias": (
        ("_MklNativeConv2DBackpropFilterWithBias", f"{GRADIENT}/conv2d_1/convolution/Conv2DBackpropFilter"),
        ("Conv2DBackpropFilter", f"{GRADIENT}/conv2d_1/convolution/Conv2DBackpropFilter"),
        ("cnn_1/conv2d_1", "Conv2DBackpropFilter"),
    ),
    "normalization-with-a-fused-activation": (
        ("_FusedBatchNormEx", f"{RUN}/resnet_1/bn_1/FusedBatchNormV3"),
        ("FusedBatchNormV3", f"{RUN}/resnet_1/bn_1/FusedBatchNormV3"),
        ("resnet_1/bn_1", "FusedBatchNormV3"),
    ),
    "gradient": (
        ("_MklNativeConv2DBackpropFilter", f"{GRADIENT}/conv2d_1/convolution/Conv2DBackpropFilter"),
        ("Conv2DBackpropFilter", f"{GRADIENT}/conv2d_1/convolution/Conv2DBackpropFilter"),
        ("cnn_1/conv2d_1", "Conv2DBackpropFilter"),
    ),
    "optimizer-in-the-branch-of-loss-scaling": (
        ("Mul", f"{RUN}/adam/Mul_43"),
        ("Mul", f"{RUN}/cond/then/_52/cond/adam/Mul_27"),
        ("adam", "Mul"),
    ),
    "branch-in-a-branch": (
        ("Cos", f"{RUN}/adam/CosineDecay/cond/else/_51/adam/CosineDecay/cond/CosineDecay/Cos"),
        ("Cos", f"{RUN}/cond/then/_52/cond/adam/CosineDecay/cond/else/_204/cond/adam/CosineDecay/cond/CosineDecay/Cos"),
        ("adam/CosineDecay/CosineDecay", "Cos"),
    ),
    "moved-by-the-graph-optimizer": (
        ("IsFinite", f"{RUN}/IsFinite_2"),
        ("IsFinite", f"{RUN}/ArithmeticOptimizer/ReorderCastLikeAndValuePreserving_float_IsFinite_2"),
        ("", "IsFinite"),
    ),
    "other-number": (("AddN", f"{RUN}/AddN_5"), ("AddN", f"{RUN}/AddN_3"), ("", "AddN")),
    "without-a-type": (("IsFinite", f"{RUN}/IsFinite"), ("", f"{RUN}/IsFinite_11"), ("", "IsFinite")),
}


@pytest.mark.parametrize(("before", "after", "key"), PAIRS.values(), ids=PAIRS.keys())
def test_names_pair_between_policies(before: tuple[str, str], after: tuple[str, str], key: tuple[str, str]) -> None:
    pairs = _changes([(*before, 1.0, "float32")], [(*after, 3.0, "float16")])
    assert list(pairs) == [key]
    assert (pairs[key].baseline_ms, pairs[key].candidate_ms) == (1.0, 3.0)


def test_gradients_are_separate_from_forward_operations() -> None:
    rows: list[Row] = [
        ("Mul", f"{RUN}/cnn_1/scale_1/mul", 1.0, "float32"),
        ("Mul", f"{GRADIENT}/scale_1/mul/Mul", 2.0, "float32"),
        ("Mul", f"{GRADIENT}/bn_1/batchnorm/mul_1/Mul", 4.0, "float32"),
        ("Mul", f"{GRADIENT}/bn_1/batchnorm/mul_1/Mul_1", 8.0, "float32"),
    ]
    pairs = _changes(rows, [])
    assert {key: change.baseline_ms for key, change in pairs.items()} == {
        ("cnn_1/scale_1", "Mul"): 1.0,
        ("cnn_1/scale_1", "Mul (gradient)"): 2.0,
        ("cnn_1/bn_1", "Mul (gradient)"): 12.0,
    }


def test_gradients_in_a_loop_belong_to_the_layer_in_the_loop() -> None:
    """The runtime runs the gradient of a loop as another loop."""
    forward = f"{RUN}/net_1/lstm_1/while/body/_24/net_1/lstm_1/while"
    loop = "gradient_tape/net_1/lstm_1/while"
    body = f"{RUN}/{loop}/net_1/lstm_1/while_grad/body/_117/{loop}/gradients"
    rows: list[Row] = [
        ("_MklMatMul", f"{forward}/lstm_cell_1/MatMul_1", 1.0, "bfloat16"),
        ("Mul", f"{forward}/lstm_cell_1/mul_2", 1.0, "bfloat16"),
        ("_MklMatMul", f"{body}/net_1/lstm_1/while/lstm_cell_1/MatMul_grad/MatMul", 1.0, "bfloat16"),
        ("_MklMatMul", f"{body}/net_1/lstm_1/while/lstm_cell_1/MatMul_1_grad/MatMul_1", 2.0, "bfloat16"),
        ("Mul", f"{body}/net_1/lstm_1/while/lstm_cell_1/mul_2_grad/Mul", 4.0, "bfloat16"),
        ("AddN", f"{body}/AddN_2", 8.0, "float32"),
    ]
    times_ms = {key: change.baseline_ms for key, change in _changes(rows, rows).items()}
    cell = "net_1/lstm_1/while/lstm_cell_1"
    assert times_ms == {
        (cell, "MatMul"): 1.0,
        (cell, "Mul"): 1.0,
        (cell, "MatMul (gradient)"): 3.0,
        (cell, "Mul (gradient)"): 4.0,
        ("net_1/lstm_1/while", "AddN (gradient)"): 8.0,
    }


def test_scopes_named_after_operations_are_not_layers() -> None:
    rows: list[Row] = [
        ("AddV2", f"{RUN}/adam/Add_10", 1.0, "float32"),
        ("ReadVariableOp", f"{RUN}/adam/Add_12/ReadVariableOp", 2.0, "float32"),
        ("ReadVariableOp", f"{RUN}/adam/Sub_39/ReadVariableOp", 4.0, "float32"),
        ("Sub", f"{RUN}/adam/Sub_2", 8.0, "float32"),
    ]
    assert {key: change.baseline_ms for key, change in _changes(rows, []).items()} == {
        ("adam", "AddV2"): 1.0,
        ("adam", "ReadVariableOp"): 6.0,
        ("adam", "Sub"): 8.0,
    }


def test_casts_belong_to_their_layer_and_have_no_time_before() -> None:
    after: list[Row] = [
        ("Cast", f"{RUN}/cnn_1/conv2d_1/convolution/Cast", 1.0, "float32"),
        ("Cast", f"{RUN}/cnn_1/conv2d_1/Cast_5", 2.0, "float32"),
        ("Cast", f"{GRADIENT}/conv2d_1/Cast_5/Cast", 4.0, "float16"),
    ]
    pairs = _changes([], after)
    forward = pairs["cnn_1/conv2d_1", "Cast"]
    assert (forward.baseline_ms, forward.candidate_ms) == (None, 3.0)
    assert (forward.baseline_dtype, forward.candidate_dtype) == (None, "float32")
    assert pairs["cnn_1/conv2d_1", "Cast (gradient)"].candidate_ms == 4.0


def test_data_type_is_the_one_with_the_most_time() -> None:
    rows: list[Row] = [
        ("Mul", f"{RUN}/cnn_1/bn/mul", 1.0, "float16"),
        ("Mul", f"{RUN}/cnn_1/bn/mul_1", 2.0, "float32"),
    ]
    (change,) = _changes(rows, []).values()
    assert change.baseline_dtype == "float32"
