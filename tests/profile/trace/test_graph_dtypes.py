from __future__ import annotations

import re
from typing import Any

import pytest

from halfstep.errors import ProfileError
from halfstep.profile.graph_dtypes import graph_dtypes


@pytest.fixture(scope="module")
def keras() -> Any:
    import keras

    return keras


def trained(keras: Any, policy: str, **compile_options: Any) -> tuple[Any, Any]:
    """The train function of a tiny model after one step, and the iterator of its steps."""
    import numpy as np
    import tensorflow as tf

    layers = keras.layers
    keras.config.set_dtype_policy(policy)
    try:
        inputs = keras.Input((8, 8, 3))
        hidden = layers.Conv2D(4, 3, name="conv")(inputs)
        hidden = layers.GlobalAveragePooling2D()(layers.BatchNormalization(name="norm")(hidden))
        model = keras.Model(inputs, layers.Dense(2, dtype="float32", name="head")(hidden))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **compile_options)
    finally:
        keras.config.set_dtype_policy("float32")
    images, labels = np.zeros((4, 8, 8, 3), "float32"), np.zeros(4, "int64")
    iterator = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())
    model.make_train_function()
    model.train_function(iterator)
    return model.train_function, iterator


def types_of(dtypes: dict[str, str], ending: str) -> set[str]:
    return {dtype for name, dtype in dtypes.items() if re.search(f"{ending}$", name)}


@pytest.mark.parametrize(
    ("policy", "compute"), [("float32", "float32"), ("mixed_bfloat16", "bfloat16"), ("mixed_float16", "float16")]
)
def test_each_node_has_the_type_that_it_computes_in(keras: Any, policy: str, compute: str) -> None:
    dtypes = graph_dtypes(*trained(keras, policy, jit_compile=False))
    for ending in ("/conv_1/convolution", "/Conv2DBackpropFilter", "/conv_1/BiasAdd"):
        assert types_of(dtypes, ending) == {compute}
    assert types_of(dtypes, "/head_1/MatMul") == {"float32"}
    assert types_of(dtypes, r"sgd\w*/AssignSubVariableOp") == {"float32"}
    if (
        policy == "mixed_float16"
    ):  # the update of the optimizer is in a branch, because it is skipped if gradients overflow
        assert any(name.startswith("cond/") for name in dtypes)


def test_a_cast_counts_by_the_type_that_it_reads(keras: Any) -> None:
    dtypes = graph_dtypes(*trained(keras, "mixed_bfloat16", jit_compile=False))
    assert types_of(dtypes, "/conv_1/convolution/Cast") == {"float32"}  # of the weights, before the convolution
    assert types_of(dtypes, "/conv_1/convolution/Cast/Cast") == {"bfloat16"}  # of their gradient


def test_an_eager_step_has_no_graph(keras: Any) -> None:
    with pytest.raises(ProfileError, match="run_eagerly"):
        graph_dtypes(*trained(keras, "float32", run_eagerly=True))
