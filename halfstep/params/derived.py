"""What parameters mean beyond their values. `dvc.yaml` lists this module: an edit of it changes results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

GPU_THREAD_MODE = "TF_GPU_THREAD_MODE"  # read by TensorFlow when it finds the GPUs
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
# Variables by which TensorFlow 2.21 and its oneDNN compute in fewer bits than a dtype policy says, with the values that
# change nothing.
HIDDEN_PRECISION = {
    "TF_SET_ONEDNN_FPMATH_MODE": ("", "strict"),
    "ONEDNN_DEFAULT_FPMATH_MODE": ("", "strict"),
    "DNNL_DEFAULT_FPMATH_MODE": ("", "strict"),
    "TF_CONV2D_USE_FP16_ACCUMULATE": ("", "0", "false"),
}


def hidden_precision(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of these environment variables by which float32 computes in fewer bits."""
    return {
        name: value
        for name, value in variables.items()
        if name in HIDDEN_PRECISION and value.lower() not in HIDDEN_PRECISION[name]
    }


def augment_of(value: Any) -> Any:
    """The section `train.augment`, for which `true` stands for the usual changes, and `false` or null for none."""
    if value is True:
        return {"flip": True, "rotate_degrees": 10.0, "shift_fraction": 0.1}
    return {} if value is False or value is None else value


def variables_of(*, onednn: bool, gpu_thread_mode: str | None = None) -> dict[str, str]:
    """Environment variables that must be set before TensorFlow is imported."""
    variables = {} if onednn else {ONEDNN: "0"}
    return variables if gpu_thread_mode is None else variables | {GPU_THREAD_MODE: gpu_thread_mode}


def jit_compile_of(xla: bool | None) -> bool | Literal["auto"]:
    """The argument `jit_compile` of `model.compile`. `auto` is Keras's default."""
    return "auto" if xla is None else xla


def learning_rate_of(rate: float, batch_size: int, own_rate: float | None, own_batch_size: int | None) -> float:
    """The learning rate of a variant, by default in proportion to its batch.

    Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour (2017), section 2.1.

    Args:
        rate, batch_size: of `train`.
        own_rate, own_batch_size: of the entry; None where it follows `train`.
    """
    if own_rate is not None:
        return own_rate
    return rate if own_batch_size is None else rate * own_batch_size / batch_size
