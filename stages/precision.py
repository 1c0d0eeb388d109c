"""Turns a variant on, and proves that it is on: a run that claims a precision which is not in force must fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import keras
import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port  # says whether oneDNN is on; nothing public does

from stages import quiet
from stages.environment import fingerprint
from stages.errors import PrecisionError
from stages.params import Variant

_DTYPES = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


def compute_dtype(policy: str) -> str:
    """The data type that layers compute in under a Keras dtype policy."""
    return _DTYPES.get(policy, policy)


def turn_on(variant: Variant) -> None:
    """Sets the process-wide switches of a variant; call it before a model is built or compiled.

    Keras attaches loss scaling only where the model's own policy asks for it. GPU memory is allocated as needed, so
    that several processes fit on one device and a peak means something.
    """
    for device in _gpus():
        tf.config.experimental.set_memory_growth(device, True)
    keras.config.set_dtype_policy(variant.policy)
    tf.config.experimental.enable_tensor_float_32_execution(variant.tf32)


def _gpus() -> list[tf.config.PhysicalDevice]:
    with quiet.held_back() as held:  # the search for a driver that is not there complains of its absence
        found = tf.config.list_physical_devices("GPU")
        held.seek(0)
        lines = held.read()
    if not found and fingerprint.gpus():
        sys.stderr.write(lines.decode(errors="replace"))
    return found


def prove(model: keras.Model, variant: Variant) -> None:
    """Checks that a compiled model computes as its variant says.

    Raises:
        PrecisionError: what is in force differs; the message names the variant's key, the layers and what was found.
    """
    if problems := list(_problems(model, variant)):
        raise PrecisionError(f"the variant ({_described(variant)}) is not in force: {'; '.join(problems)}")


def _described(variant: Variant) -> str:
    return ", ".join(f"{name} {value}" for name, value in variant.model_dump().items()).lower()


def _problems(model: keras.Model, variant: Variant) -> Iterator[str]:
    if model.dtype_policy.name != variant.policy:
        yield f"the model's policy is {model.dtype_policy.name}; build it after the policy has been set"
    wrapped = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if wrapped != (variant.policy == "mixed_float16"):
        yield f"the optimizer {'has' if wrapped else 'has no'} loss scaling"
    if bool(model.jit_compile) != variant.xla:
        yield f"jit_compile is {model.jit_compile}"
    if tf.config.experimental.tensor_float_32_execution_enabled() != variant.tf32:
        yield f"TensorFloat-32 is {'off' if variant.tf32 else 'on'}"
    if _pywrap_util_port.IsMklEnabled() and not variant.onednn:
        yield "oneDNN is on; TF_ENABLE_ONEDNN_OPTS must be 0 before TensorFlow is imported"
    yield from _layer_problems(model, variant)


def _layer_problems(model: keras.Model, variant: Variant) -> Iterator[str]:
    """Layers with a kernel that compute in another type, but for the last, whose output may be asked for in float32."""
    expected = compute_dtype(variant.policy)
    kernels = [layer for layer in _leaves(model) if getattr(layer, "kernel", None) is not None]
    wrong = [f"{layer.name} ({layer.compute_dtype})" for layer in kernels[:-1] if layer.compute_dtype != expected]
    if wrong:
        shown = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        yield f"layers compute in another type than {expected}: {shown}"
    if kernels and all(layer.compute_dtype != expected for layer in kernels):
        yield f"no layer computes in {expected}"
    for output in model.outputs:
        if keras.backend.standardize_dtype(output.dtype) != "float32":
            yield f"the output is {output.dtype}; give the last activation dtype='float32'"


def _leaves(model: keras.Model) -> list[keras.layers.Layer]:
    return [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]
