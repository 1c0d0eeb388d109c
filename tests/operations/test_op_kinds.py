"""The kinds of operations, by their names in graphs of real models."""

from __future__ import annotations

import pytest

from halfstep.operations.op_kinds import Layers

LAYERS = Layers(
    classes={
        "net": "Sequential",
        "net/conv2d": "Conv2D",
        "net/norm": "BatchNormalization",
        "attention": "MultiHeadAttention",
        "attention/query": "EinsumDense",
        "net/bidirectional": "Bidirectional",
        "net/rescaled": "Normalization",
    },
    scopes={
        "net": "net",
        "net_1": "net",
        "net/conv2d_1": "net/conv2d",
        "net/norm": "net/norm",
        "net/norm_1": "net/norm",
        "net_1/attention_1": "attention",
        "net_1/attention_1/query_1": "attention/query",
        "net/bidirectional_1": "net/bidirectional",
        "net/rescaled": "net/rescaled",
    },
    optimizers=("adam",),
    scales_loss=True,
)
CALL = "StatefulPartitionedCall/"


@pytest.mark.parametrize(
    ("name", "op_type", "kind"),
    [
        ("IteratorGetNext", "IteratorGetNext", "input"),
        ("optional", "OptionalFromValue", "input"),
        (f"{CALL}net/norm/Cast", "Cast", "cast"),
        (f"{CALL}net/conv2d_1/Cast_3", "Cast", "cast"),
        (f"{CALL}IsFinite_2", "IsFinite", "loss_scaling"),
        (f"{CALL}cond/then/_32/cond/truediv", "RealDiv", "loss_scaling"),
        (f"{CALL}cond/then/_32/cond/adam/Mul_11", "Mul", "optimizer"),
        (f"{CALL}adam/AssignSubVariableOp_2", "AssignSubVariableOp", "optimizer"),
        (f"{CALL}net_1/attention_1/query_1/add", "AddV2", "attention"),
        (f"{CALL}gradient_tape/net_1/attention_1/query_1/MatMul", "MatMul", "attention"),
        (f"{CALL}net/bidirectional_1/forward/while/body/_9/net/bidirectional_1/MatMul", "MatMul", "recurrent"),
        (f"{CALL}net/norm_1/batchnorm/mul", "Mul", "normalization"),
        (f"{CALL}gradient_tape/net/norm_1/FusedBatchNormGradV3", "FusedBatchNormGradV3", "normalization"),
        (f"{CALL}net/conv2d_1/Relu", "_MklNativeFusedConv2D", "convolution"),
        (f"{CALL}gradient_tape/net/conv2d_1/Conv2DBackpropFilter", "Conv2DBackpropFilter", "convolution"),
        (f"{CALL}net/dense/MatMul", "_MklNativeFusedMatMul", "matrix_product"),
        (f"{CALL}gradient_tape/net/conv2d_1/ReluGrad", "ReluGrad", "memory"),
        (f"{CALL}AddN_3", "AddN", "memory"),
        (f"{CALL}net/rescaled/truediv", "RealDiv", "memory"),
        (f"{CALL}net/dropout/StatelessRandomUniformV2", "StatelessRandomUniformV2", "random"),
        (f"{CALL}net/dropout/StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounter", "random"),
        (f"{CALL}net/other/Where", "Custom", "other"),
    ],
)
def test_first_kind_that_fits_counts(name: str, op_type: str, kind: str) -> None:
    assert LAYERS.place(name, op_type).kind == kind


def test_innermost_layer_counts() -> None:
    assert LAYERS.place(f"{CALL}net_1/attention_1/query_1/add", "AddV2").layer == "attention/query"
    assert LAYERS.place(f"{CALL}net_1/attention_1/softmax/Softmax", "Softmax").layer == "attention"
    assert LAYERS.place(f"{CALL}net/other/add", "AddV2").layer == "net"
    assert LAYERS.place(f"{CALL}other/add", "AddV2").layer == ""


def test_thread_of_the_input_pipeline_decides() -> None:
    assert LAYERS.place("GatherV2", "GatherV2", is_input=True).kind == "input"
    assert LAYERS.place("GatherV2", "GatherV2").kind == "memory"


def test_finite_checks_are_loss_scaling_only_where_the_loss_is_scaled() -> None:
    assert Layers().place(f"{CALL}IsFinite_2", "IsFinite").kind == "memory"
