"""Activates a variant, and verifies that it is in force: a run must not claim a precision that it does not use."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Collection, Iterator

from halfstep.errors import PrecisionError
from halfstep.machine import gpu_failures, gpus
from halfstep.params.derived import GPU_THREAD_MODE
from halfstep.params.schema import Variant
from halfstep.system.commands import run_program
from halfstep.tensorflow_import import captured_stderr, is_onednn_enabled, keras, tf
from halfstep.words.policies import PRECISIONS
from halfstep.words.text import yaml_text

_XLA_OFF = (
    "deterministic operations, and layers for augmentation, look-ups, and LSTM and GRU of cuDNN, switch XLA off; "
    "set xla: false in the entries of variants"
)

_ASK_S = 120.0  # for a process that lists the GPUs


def activate(variant: Variant, *, require_gpu: bool = False) -> None:
    """Sets the process-wide switches of a variant. Call it before the model is built.

    GPU memory grows on demand, so that several processes fit on one device and the peak is meaningful. TensorFlow does
    not use accelerators that the NVIDIA driver does not list: a timing on these could not be told from others.

    Raises:
        PrecisionError: `require_gpu` is true and TensorFlow finds no GPU.
    """
    devices = _gpus()
    if not devices:
        _report_missing_gpu(require_gpu)
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)
    keras.config.set_dtype_policy(variant.policy)
    tf.config.experimental.enable_tensor_float_32_execution(variant.tf32)
    if variant.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(variant.threads)
        tf.config.threading.set_inter_op_parallelism_threads(variant.threads)


def _gpus() -> list[tf.config.PhysicalDevice]:
    """The GPUs that TensorFlow computes on, after all devices that are not supported have been hidden from it."""
    listed = bool(gpus.installed())
    for kind in {device.device_type for device in _devices()} - {"CPU"} - ({"GPU"} if listed else set()):
        tf.config.set_visible_devices([], kind)
    return [device for device in _devices() if listed and device.device_type == "GPU"]


def _devices() -> list[tf.config.PhysicalDevice]:
    with captured_stderr():  # without a driver, TensorFlow prints several warnings
        return list(tf.config.list_physical_devices())


def _report_missing_gpu(required: bool) -> None:
    unused = unused_gpu()
    if required:
        raise PrecisionError(f"train.require_gpu is true, and {unused or 'TensorFlow finds no GPU'}")
    # a user who hid the GPU needs no warning, and a worker's parent has printed it already
    if unused and not gpus.are_hidden(gpus.installed()) and multiprocessing.parent_process() is None:
        print(f"warning: {unused}; computing on the CPU", file=sys.stderr)


def unused_gpu() -> str | None:
    """Describes a GPU or another accelerator that is not used, with the reason and what to do; else None."""
    listed = gpus.installed()
    if not listed:
        return gpu_failures.unsupported_accelerator() or _unsupported_device()
    if _gpus():
        return None
    name = listed[0].name
    if gpus.are_hidden(listed):
        return gpu_failures.hidden_text(name)
    return f"TensorFlow cannot use {name} {_why_no_gpu()}"


def _unsupported_device() -> str | None:
    """Describes a device that TensorFlow lists and the NVIDIA driver does not."""
    kinds = sorted({device.device_type for device in _devices()} - {"CPU"})
    if not kinds:
        return None
    if kinds != ["GPU"]:
        return gpu_failures.unsupported_text(f"devices of the type {', '.join(kinds)}", "TensorFlow lists one")
    if tf.sysconfig.get_build_info().get("is_rocm_build"):
        return gpu_failures.unsupported_text("AMD GPUs", "TensorFlow is built for ROCm")
    return (
        "TensorFlow lists a GPU that NVML, the library of the NVIDIA driver, does not list: start a container with "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    )


@functools.cache
def _why_no_gpu() -> str:
    """Reads the reason from TensorFlow's log in another process: its level must be set before the import."""
    command = [sys.executable, "-c", "import tensorflow as tf; tf.config.list_physical_devices('GPU')"]
    return gpu_failures.last_line(run_program(command, _ASK_S, gpu_failures.LOG_VARIABLES).stderr)


def loss_scale(model: keras.Model) -> float | None:
    """Current factor of the loss, which prevents underflow of float16 gradients; None without loss scaling."""
    scale = getattr(model.optimizer, "dynamic_scale", None)
    return None if scale is None else float(keras.ops.convert_to_numpy(scale))


def verify(
    model: keras.Model,
    variant: Variant,
    *,
    all_layers: bool = True,
    scaling: bool = True,
    kept: Collection[str] = (),
    outputs: Collection[str] = (),
) -> None:
    """Checks that a compiled model computes as its variant requires.

    Args:
        model: the compiled model.
        variant: the variant that should be in force.
        all_layers: whether each layer must compute as the variant says, and the output be float32. A model of the
            user's own may have others; `traced_types.verify` looks at what it computes.
        scaling: whether its optimizer must scale the loss as the variant says; a step of the user's own need not.
        kept: paths of the layers that stay in float32 because the variant says so.
        outputs: data types of the model's outputs, where they are not those of its symbolic outputs.

    Raises:
        PrecisionError: it does not; the message names the variant's settings, the layers and what was found.
    """
    problems = [*_problems(model, variant, scaling=scaling), *_quantized(model)]
    if all_layers:
        problems += _problems_of_layers(model, variant, kept, outputs)
    if problems:
        raise PrecisionError(f"the variant ({_description(variant)}) is not in force: {'; '.join(problems)}")


def onednn_is_on() -> bool:
    """Whether TensorFlow uses oneDNN; it reads `TF_ENABLE_ONEDNN_OPTS` once, at its import."""
    return bool(is_onednn_enabled())


def _description(variant: Variant) -> str:
    values = variant.model_dump(exclude={"parent"}).items()
    shown = {name: value for name, value in values if value not in (None, (), {}) or name == "xla"}
    return ", ".join(f"{name} {yaml_text(value)}" for name, value in shown.items())


def _problems(model: keras.Model, variant: Variant, *, scaling: bool) -> Iterator[str]:
    if model.dtype_policy.name != variant.policy:
        yield f"the model's policy is {model.dtype_policy.name}; build it after the policy is set"
    wrapped = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if scaling and wrapped != variant.dtype_policy.scales_loss:
        yield f"the optimizer {'has' if wrapped else 'has no'} loss scaling"
    if variant.xla is not None and bool(model.jit_compile) != variant.xla:
        yield f"jit_compile is {model.jit_compile}" + (f": {_XLA_OFF}" if variant.xla else "")
    if tf.config.experimental.tensor_float_32_execution_enabled() != variant.tf32:
        yield f"TensorFloat-32 is {'off' if variant.tf32 else 'on'}"
    if onednn_is_on() and variant.onednn is False:
        yield "oneDNN is on; TF_ENABLE_ONEDNN_OPTS must be 0 before TensorFlow is imported"
    if variant.threads not in (None, threads := tf.config.threading.get_intra_op_parallelism_threads()):
        yield f"TensorFlow has {threads} threads; they must be set before its first operation"
    on = [name for name, value in tf.config.optimizer.get_experimental_options().items() if value]
    for name in (name for name in on if name.startswith("auto_mixed_precision")):
        yield f"{name} is on, by which TensorFlow casts float32: leave it out of tf.config.optimizer"
    if variant.gpu_thread_mode not in (None, mode := os.environ.get(GPU_THREAD_MODE)):
        yield f"{GPU_THREAD_MODE} is {mode}; it must be set before TensorFlow is imported"


def _quantized(model: keras.Model) -> Iterator[str]:
    leaves = [layer for layer in _leaves(model) if layer.quantization_mode]
    if quantized := [f"{layer.name} ({layer.dtype_policy.name})" for layer in leaves]:
        yield (
            f"layers are quantized: {_first_five(quantized)}; "
            f"build the model without quantization (supported are {', '.join(PRECISIONS)})"
        )


def _problems_of_layers(
    model: keras.Model, variant: Variant, kept: Collection[str], outputs: Collection[str]
) -> Iterator[str]:
    """Layers with a kernel that use another type; the last of these may compute in float32, and the output must."""
    expected = variant.dtype_policy.compute.name
    kernels = _layers_with_kernel(model)
    if kernels and all(layer.compute_dtype != expected for layer in kernels):
        yield f"no layer computes in {expected}"
    others = [layer for layer in kernels[:-1] if layer.path not in kept]
    if wrong := [f"{layer.name} ({layer.compute_dtype})" for layer in others if layer.compute_dtype != expected]:
        yield f"layers do not compute in {expected}: {_first_five(wrong)}"
    for dtype in outputs or [keras.backend.standardize_dtype(output.dtype) for output in model.outputs]:
        if dtype != "float32":
            yield f"the output is {dtype}; give the last activation dtype='float32'"


def _layers_with_kernel(model: keras.Model) -> list[keras.layers.Layer]:
    return [layer for layer in _leaves(model) if getattr(layer, "kernel", None) is not None]


def _first_five(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _leaves(model: keras.Model) -> list[keras.layers.Layer]:
    return [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]
