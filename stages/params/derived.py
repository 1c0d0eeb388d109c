"""What parameters mean beyond their values. `dvc.yaml` lists this module: an edit of it changes results."""

from __future__ import annotations

from typing import Any, Literal


def augment_of(value: Any) -> Any:
    """The section `train.augment`, for which `true` stands for the usual changes, and `false` or null for none."""
    if value is True:
        return {"flip": True, "rotate_degrees": 10.0, "shift_fraction": 0.1}
    return {} if value is False or value is None else value


def variables_of(*, onednn: bool) -> dict[str, str]:
    """Environment variables that must be set before TensorFlow is imported."""
    return {} if onednn else {"TF_ENABLE_ONEDNN_OPTS": "0"}


def jit_compile_of(xla: bool | None) -> bool | Literal["auto"]:
    """The argument `jit_compile` of `model.compile`. `auto` is Keras's default."""
    return "auto" if xla is None else xla
