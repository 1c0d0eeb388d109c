"""Turns a variant on, and proves that it is on: a run that claims a precision which is not in force must fail."""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import subprocess
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


def turn_on(variant: Variant, *, require_gpu: bool = False) -> None:
    """Sets the process-wide switches of a variant; call it before a model is built or compiled.

    Keras attaches loss scaling only where the model's own policy asks for it. GPU memory is allocated as needed, so
    that several processes fit on one device and a peak means something.

    Raises:
        PrecisionError: `require_gpu`, and TensorFlow finds no GPU.
    """
    devices = _gpus()
    if not devices:
        _tell_of_missing_gpu(require_gpu)
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)
    keras.config.set_dtype_policy(variant.policy)
    tf.config.experimental.enable_tensor_float_32_execution(variant.tf32)


def _gpus() -> list[tf.config.PhysicalDevice]:
    with quiet.held_back():  # the search for a driver that is not there complains of its absence
        return tf.config.list_physical_devices("GPU")


def _tell_of_missing_gpu(required: bool) -> None:
    unused = unused_gpu()
    if required:
        raise PrecisionError(f"train.require_gpu is true, and {unused or 'TensorFlow finds no GPU'}")
    # whoever hid it knows; and a worker's parent, or the training before it, has said so
    if unused and not _is_hidden() and multiprocessing.parent_process() is None:
        print(f"warning: {unused}; computing on the CPU", file=sys.stderr)


def unused_gpu() -> str | None:
    """A GPU that the driver shows and TensorFlow does not use, with the reason and what to do; None without one."""
    shown = fingerprint.gpus()
    if not shown or _gpus():
        return None
    if _is_hidden():
        return f"{shown[0]['name']} is hidden by CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r}: unset it"
    return f"TensorFlow cannot use {shown[0]['name']} ({_reason_for_no_gpu()}): see 'I have a GPU' in the README"


def _is_hidden() -> bool:
    return not re.match(r"\d|GPU-|MIG-", os.environ.get("CUDA_VISIBLE_DEVICES", "0"))


@functools.cache
def _reason_for_no_gpu() -> str:
    """What TensorFlow says when it is asked to say more, which it must be before it is imported: in another process."""
    variables = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
    command = [sys.executable, "-c", "import tensorflow as tf; tf.config.list_physical_devices('GPU')"]
    try:
        done = subprocess.run(
            command, env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "it does not say why"
    return reason_in_log(done.stderr)


def reason_in_log(log: str) -> str:
    """The libraries that TensorFlow's log misses, or else the errors that it reports, in a few words."""
    if missing := sorted(set(re.findall(r"Could not load dynamic library '([^']+)'", log))):
        return "missing: " + ", ".join(missing)
    errors = [line.split("] ", 1)[-1].strip() for line in log.splitlines() if re.match(r"[EW]\d{4} .*(cuda|GPU)", line)]
    return "; ".join(dict.fromkeys(errors))[:300] or "it does not say why"


def prove(model: keras.Model, variant: Variant) -> None:
    """Checks that a compiled model computes as its variant says.

    Raises:
        PrecisionError: what is in force differs; the message names the variant's key, the layers and what was found.
    """
    if problems := list(_problems(model, variant)):
        raise PrecisionError(f"the variant ({_described(variant)}) is not in force: {'; '.join(problems)}")


def onednn_is_on() -> bool:
    """Whether TensorFlow computes with oneDNN where it can; decided by a variable that is read at its import."""
    return bool(_pywrap_util_port.IsMklEnabled())


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
    if onednn_is_on() and not variant.onednn:
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
