"""The user's own code, of which `prepare` must not let mistakes pass, and what surrounds it: variables and folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.cases import Case

# A regression of one layer. The parts in capitals are replaced.
SOURCE = """
import os

import keras
import numpy as np
import tensorflow as tf

from halfstep.tasks import Task

X = np.arange(128, dtype="float32").reshape(32, 4) / 128
Y = X.sum(axis=1, keepdims=True)


def data(batch_size):
    DATA
    return X, Y


def score(y_true, y_pred):
    return -np.abs(y_true - y_pred)[:, 0]


def build(*, batch_size, seed):
    weights = keras.initializers.GlorotUniform(seed)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer=weights)])
    BUILD
    return Task(
        model=model,
        compile={"loss": "mse", "optimizer": "sgd"},
        train=data(batch_size),
        test=(X, Y),
        score=score,
        score_name="closeness",
    )
"""
PARTS = ("DATA", "BUILD")
PARAMS: dict[str, Any] = {
    "task": {"name": "own:build"},
    "train": {"batch_size": 8, "variants": ["float32", "mixed_bfloat16"]},
    "compare": {"quality_margin": 1.0},
}


def own_code(**parts: str) -> str:
    """The source with these parts."""
    text = SOURCE
    for name in PARTS:
        text = text.replace(name, "\n    ".join(parts.get(name.lower(), "pass").splitlines()))
    return text


def _linked(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "elsewhere").mkdir()
    (root / "data").symlink_to("elsewhere")


def _no_room(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("halfstep.environment.preflight.MIN_TEMPORARY_BYTES", 2**60)


def _variable(name: str, value: str, said: str = "; it must be") -> Case:
    def arrange(_: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setenv(name, value)

    return Case(f"{name}={value}", "environment", (f"{name} is {value!r}{said}",), {}, arrange)


def from_generator(lines: str) -> str:
    """Training data of a generator with this body."""
    body = "\n        ".join(lines.splitlines())
    return (
        f"def batches():\n        {body}\n"
        "spec = (tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32))\n"
        "return tf.data.Dataset.from_generator(batches, output_signature=spec)"
    )


CASES = [
    Case("data is a symbolic link", "environment", ("data is a symbolic link, through which DVC",), {}, _linked),
    Case("the temporary folder is full", "environment", ("the folder of temporary files, has",), {}, _no_room),
    *(_variable("TF_NUM_INTRAOP_THREADS", value) for value in ("-3", "two", "1e9", "99999")),
    *(
        _variable(name, value, ", by which TensorFlow computes in fewer bits")
        for name, value in (("TF_SET_ONEDNN_FPMATH_MODE", "BF16"), ("ONEDNN_DEFAULT_FPMATH_MODE", "any"))
    ),
]
