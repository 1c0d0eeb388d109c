"""Pairs of operations: names as in traces of TensorFlow 2.21 on a CPU, under three policies."""

from __future__ import annotations

import math

import pytest

from stages.compare.explain.layer_diff import gained, lost, op_changes
from stages.compare.judging import Judging
from stages.results.comparison import OpChange
from stages.results.profile import Profile
from tests.small_study import operation, profile

RUN = "StatefulPartitionedCall"
GRADIENT = f"{RUN}/gradient_tape/cnn_1"
Row = tuple[str, str, float, str | None]


def _profile(rows: list[Row], device: str = "CPU", tensor_core: bool | None = None) -> Profile:
    operations = [
        operation(op_type, time_ms, dtype, name=name, tensor_core=tensor_core) for op_type, name, time_ms, dtype in rows
    ]
    return profile(operations=operations, device=device)


def _changes(before: list[Row], after: list[Row]) -> dict[tuple[str, str], OpChange]:
    found = op_changes(_profile(before), _profile(after))
    by_key = {(change.layer, change.operation): change for change in found}
    assert len(by_key) == len(found)
    return by_key


def test_layer_pairs_whichever_library_computes_it() -> None:
    before: list[Row] = [("_MklNativeConv2D", f"{RUN}/cnn_1/conv2d_1/convolution", 4.0, "float32")]
    after: list[Row] = [("Conv2D", f"{RUN}/cnn_1/conv2d_1/convolution", 9.0, "float16")]
    (change,) = _changes(before, after).values()
    assert change == OpChange(
        layer="cnn_1/conv2d_1",
        operation="Conv2D",
        baseline_ms=4.0,
        candidate_ms=9.0,
        baseline_dtype="float32",
        candidate_dtype="float16",
        delta_ms=5.0,
    )


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
    found = _changes([(*before, 1.0, "float32")], [(*after, 3.0, "float16")])
    assert list(found) == [key]
    assert found[key].delta_ms == 2.0


def test_gradients_are_separate_from_forward_operations() -> None:
    rows: list[Row] = [
        ("Mul", f"{RUN}/cnn_1/scale_1/mul", 1.0, "float32"),
        ("Mul", f"{GRADIENT}/scale_1/mul/Mul", 2.0, "float32"),
        ("Mul", f"{GRADIENT}/bn_1/batchnorm/mul_1/Mul", 4.0, "float32"),
        ("Mul", f"{GRADIENT}/bn_1/batchnorm/mul_1/Mul_1", 8.0, "float32"),
    ]
    found = _changes(rows, [])
    assert {key: change.baseline_ms for key, change in found.items()} == {
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
    found = {key: change.baseline_ms for key, change in _changes(rows, rows).items()}
    cell = "net_1/lstm_1/while/lstm_cell_1"
    assert found == {
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
    found = _changes([], after)
    forward = found["cnn_1/conv2d_1", "Cast"]
    assert (forward.baseline_ms, forward.candidate_ms, forward.delta_ms) == (None, 3.0, 3.0)
    assert (forward.baseline_dtype, forward.candidate_dtype) == (None, "float32")
    assert found["cnn_1/conv2d_1", "Cast (gradient)"].candidate_ms == 4.0


def test_input_and_host_operations_of_a_gpu_are_left_out() -> None:
    rows: list[Row] = [("Dataset", "Iterator::Root", 1.0, None), ("PyFunc", "PyFunc", 1.0, None)]
    assert _changes(rows, rows) == {}
    kernel: list[Row] = [("Relu", "cnn_1/relu/Relu", 1.0, "float32")]
    on_gpu = (_profile(kernel, "GPU", tensor_core=False), _profile(kernel, "GPU"))
    (change,) = op_changes(*on_gpu)
    assert (change.baseline_ms, change.candidate_ms) == (1.0, None)


def test_data_type_is_the_one_with_the_most_time() -> None:
    rows: list[Row] = [
        ("Mul", f"{RUN}/cnn_1/bn/mul", 1.0, "float16"),
        ("Mul", f"{RUN}/cnn_1/bn/mul_1", 2.0, "float32"),
    ]
    (change,) = _changes(rows, []).values()
    assert change.baseline_dtype == "float32"


def test_gained_and_lost_start_with_the_largest_change() -> None:
    before: list[Row] = [("Conv2D", f"{RUN}/cnn/conv_{n}/convolution", 10.0, "float32") for n in range(12)]
    after: list[Row] = [("Conv2D", f"{RUN}/cnn/conv_{n}/convolution", 10.0 + n - 4, "float16") for n in range(12)]
    changes = op_changes(_profile(before), _profile(after), _profile(before))
    assert [change.delta_ms for change in changes] == [float(n - 4) for n in range(12)]
    assert [change.delta_ms for change in gained(changes)] == [-4.0, -3.0, -2.0, -1.0]
    assert [change.delta_ms for change in lost(changes, 3)] == [7.0, 6.0, 5.0]


def test_comparison_contains_op_changes(comparison: Judging) -> None:
    slow = comparison.candidates[0]
    assert [(change.operation, change.delta_ms) for change in lost(slow.op_changes)] == [
        ("Conv2D", 20.0),
        ("MatMul", 5.0),
        ("Cast", 3.0),
    ]
    (relu,) = gained(slow.op_changes)
    assert relu.model_dump() == {
        "layer": "model",
        "operation": "Relu",
        "baseline_ms": 0.5,
        "candidate_ms": None,
        "baseline_dtype": "float32",
        "candidate_dtype": None,
        "floor_ms": pytest.approx(relu.floor_ms),
        "delta_ms": -0.5,
    }


def _convolutions(times_ms: list[float]) -> list[Row]:
    return [("Conv2D", f"{RUN}/cnn/conv_{n}/convolution", time_ms, "float32") for n, time_ms in enumerate(times_ms)]


def test_floor_of_an_operation_is_its_own_difference_or_what_is_usual() -> None:
    """Two copies of the baseline differ by 10 %, but in `conv_0` by half, and by chance not at all in `conv_1`."""
    before, again = [10.0] * 40, [15.0, 10.0, *[11.0] * 38]
    after = [14.0, 10.9, 12.0, *[10.0] * 37]
    changes = op_changes(*(_profile(_convolutions(times)) for times in (before, after, again)))
    floors = {change.layer: change.floor_ms for change in changes}
    usual = 1 / 10.5  # 11 and 10 around their mean
    assert floors["cnn/conv_0"] == math.inf  # the two copies disagree
    assert floors["cnn/conv_1"] == pytest.approx(10.9 * usual, rel=0.05)
    assert [change.layer for change in lost(changes)] == ["cnn/conv_2"]
    assert gained(changes) == ()


def test_without_a_control_no_change_counts() -> None:
    changes = op_changes(_profile(_convolutions([10.0])), _profile(_convolutions([50.0])))
    assert [(change.delta_ms, change.floor_ms) for change in changes] == [(40.0, None)]
    assert lost(changes) == ()


def test_operations_whose_two_traces_disagree_are_not_listed() -> None:
    """Softmax in float32 on both sides once read 0.155 and 1.137 ms in a step that changed by 0.41 ms."""
    before, after = [10.0, *[10.0] * 30], [100.0, *[30.0] * 30]
    for again, listed in ((12.0, True), (13.5, False), (7.0, False)):
        changes = op_changes(*(_profile(_convolutions(times)) for times in (before, after, [again, *[10.0] * 30])))
        assert ("cnn/conv_0" in [change.layer for change in lost(changes, 100)]) is listed
        assert len(lost(changes, 100)) == 30 + listed
    with_cast = [*_convolutions([10.0] * 30), ("Cast", f"{RUN}/cnn/cast", 5.0, "float32")]
    new = op_changes(_profile(with_cast[:30]), _profile(with_cast), _profile(with_cast[:30]))
    assert [change.operation for change in lost(new)] == ["Cast"]  # neither trace of the baseline has it
