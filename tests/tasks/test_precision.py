from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from halfstep.errors import PrecisionError
from halfstep.machine import gpus
from halfstep.params.schema import Variant
from halfstep.tasks import precision

POLICIES = ["float32", "mixed_float16", "mixed_bfloat16"]


def compiled(
    middle_dtype: str | None = None, output_dtype: str = "float32", optimizer: Any = "adam", **options: Any
) -> keras.Model:
    pixels = keras.Input((8, 8, 3))
    features = layers.Conv2D(4, 3, name="first")(pixels)
    features = layers.Conv2D(4, 3, name="middle", dtype=middle_dtype)(features)
    features = layers.Dense(4, name="head")(layers.Flatten()(features))
    model = keras.Model(pixels, layers.Activation("softmax", dtype=output_dtype)(features))
    model.compile(optimizer, "sparse_categorical_crossentropy", **{"jit_compile": False, **options})
    model.optimizer.build(model.trainable_variables)
    return model


def refused(model: keras.Model, variant: Variant) -> str:
    with pytest.raises(PrecisionError, match=r"^the variant \(policy ") as caught:
        precision.verify(model, variant)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("tf32", [False, True])
def test_variant_in_force_is_verified(policy: str, xla: bool, tf32: bool) -> None:
    variant = Variant(policy=policy, xla=xla, tf32=tf32)
    precision.activate(variant)
    precision.verify(compiled(jit_compile=xla), variant)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_last_layer_with_a_kernel_may_compute_in_float32(policy: str) -> None:
    variant = Variant(policy=policy)
    precision.activate(variant)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(2, dtype="float32")])
    model.compile("adam", "mse", jit_compile=False)
    precision.verify(model, variant)


def test_model_built_before_the_policy_was_set_is_refused() -> None:
    precision.activate(Variant(policy="float32"))
    model = compiled()
    variant = Variant(policy="mixed_float16")
    precision.activate(variant)
    message = refused(model, variant)
    assert "the model's policy is float32" in message
    assert "the optimizer has no loss scaling" in message


def test_layer_with_another_dtype_is_refused() -> None:
    variant = Variant(policy="mixed_bfloat16")
    precision.activate(variant)
    message = refused(compiled(middle_dtype="float32"), variant)
    assert "layers do not compute in bfloat16: middle (float32)" in message
    assert "first" not in message


def test_policy_set_on_each_layer_lacks_loss_scaling() -> None:
    precision.activate(Variant(policy="float32"))
    pixels = keras.Input((4,))
    outputs = layers.Dense(2, dtype="mixed_float16")(layers.Dense(4, dtype="mixed_float16")(pixels))
    model = keras.Model(pixels, layers.Activation("softmax", dtype="float32")(outputs))
    model.compile("adam", "mse", jit_compile=False)
    assert "the optimizer has no loss scaling" in refused(model, Variant(policy="mixed_float16"))


def test_unexpected_loss_scaling_is_refused() -> None:
    precision.activate(Variant(policy="float32"))
    model = compiled(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()))
    assert "the optimizer has loss scaling" in refused(model, Variant(policy="float32"))


@pytest.mark.parametrize("xla", [False, True])
def test_other_xla_setting_is_refused(xla: bool) -> None:
    precision.activate(Variant(policy="float32"))
    message = refused(compiled(jit_compile=not xla), Variant(policy="float32", xla=xla))
    assert re.search(
        r"jit_compile is False: .* LSTM and GRU .* xla: false" if xla else r"jit_compile is True$", message
    )


def augmenting_model() -> keras.Model:
    return keras.Sequential([keras.Input((8, 8, 3)), layers.RandomRotation(0.1), layers.Flatten(), layers.Dense(1)])


def plain_model() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(1)])


@pytest.mark.parametrize("with_gpu", [False, True])
@pytest.mark.parametrize(("make", "supported"), [(plain_model, True), (augmenting_model, False)])
def test_null_is_the_choice_of_a_plain_compile(
    with_gpu: bool, make: Callable[[], keras.Model], supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras compiles with XLA where TensorFlow lists another device than CPUs, if all layers support it."""
    kinds = ["CPU", "GPU"] if with_gpu else ["CPU"]
    devices = [tf.config.PhysicalDevice(f"/physical_device:{kind}:0", kind) for kind in kinds]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda: devices)
    ours, plain = make(), make()
    ours.compile("adam", "mse", jit_compile=Variant(policy="float32").jit_compile)
    plain.compile("adam", "mse")
    assert ours.jit_compile is plain.jit_compile is (with_gpu and supported)


def test_deterministic_operations_switch_xla_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow.python.framework import config

    monkeypatch.setattr(config, "is_op_determinism_enabled", lambda: True)
    model = plain_model()
    with pytest.warns(UserWarning, match="jit_compile"):
        model.compile("adam", "mse", jit_compile=Variant(policy="float32", xla=True).jit_compile)
    assert model.jit_compile is False


@pytest.mark.parametrize("kind", ["GPU", "XPU"])
def test_devices_that_the_nvidia_driver_does_not_list_are_not_used(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: list[tuple[list[Any], str]] = []
    devices = [tf.config.PhysicalDevice(f"/physical_device:{name}:0", name) for name in ("CPU", kind)]
    monkeypatch.setattr(precision, "_devices", lambda: devices)
    monkeypatch.setattr(gpus, "installed", tuple)
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda visible, device_type: hidden.append((visible, device_type))
    )
    with pytest.raises(PrecisionError, match=r"^train\.require_gpu is true, and ") as caught:
        precision.activate(Variant(policy="float32"), require_gpu=True)
    assert ([], kind) in hidden
    assert ("NVML" if kind == "GPU" else "devices of the type XPU are not supported") in str(caught.value)


@pytest.mark.parametrize("tf32", [False, True])
def test_other_tf32_setting_is_refused(tf32: bool) -> None:
    variant = Variant(policy="float32", tf32=tf32)
    precision.activate(variant)
    tf.config.experimental.enable_tensor_float_32_execution(not tf32)
    assert f"TensorFloat-32 is {'off' if tf32 else 'on'}" in refused(compiled(), variant)


@pytest.fixture
def grappler_casts() -> Iterator[None]:
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
    yield
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": False})


@pytest.mark.usefixtures("grappler_casts")
def test_float32_that_grappler_casts_is_refused() -> None:
    variant = Variant(policy="float32")
    precision.activate(variant)
    assert "auto_mixed_precision_onednn_bfloat16 is on" in refused(compiled(), variant)


@pytest.mark.parametrize(("policy", "found"), [("mixed_float16", "float16"), ("mixed_bfloat16", "bfloat16")])
def test_16_bit_output_is_refused(policy: str, found: str) -> None:
    variant = Variant(policy=policy)
    precision.activate(variant)
    assert f"the output is {found}; give the last activation dtype='float32'" in refused(
        compiled(output_dtype=found), variant
    )


@pytest.mark.parametrize("mode", ["int8", "int4/128", "float8", "gptq/4/128", "awq/4/128"])
def test_layer_with_a_quantized_dtype_policy_is_refused(mode: str) -> None:
    dtype = f"{mode}_from_float32"
    variant = Variant(policy="float32")
    precision.activate(variant)
    inputs = keras.Input((128,))
    body = keras.Sequential([keras.Input((128,)), layers.Dense(128, name="inner", dtype=dtype)])
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(body(inputs)))
    model.compile("adam", "mse", jit_compile=False)
    assert f"layers are quantized: inner ({dtype}); build" in refused(model, variant)
