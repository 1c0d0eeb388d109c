"""Models with loops go through the whole pipeline: their steps are traced, and they get a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

TASK = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from halfstep.tasks import Task

LENGTH, FEATURES, ITERATIONS = 5, 8, 3


class Loop(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, inputs):
        def body(number, state):
            return number + 1, tf.tanh(tf.matmul(state, tf.cast(self.kernel, state.dtype)))

        return tf.while_loop(lambda number, _: number < ITERATIONS, body, (0, inputs))[1]

    def compute_output_shape(self, shape):
        return shape


def series(count, seed):
    x = np.random.default_rng(seed).normal(size=(count, LENGTH, FEATURES)).astype("float32")
    return x, x.mean(axis=(1, 2), keepdims=True)[:, 0]


def build(*, batch_size, seed):
    inputs = keras.Input((LENGTH, FEATURES))
    x = layers.Bidirectional(layers.LSTM(16, return_sequences=True))(inputs)
    x = Loop()(layers.Dense(64)(layers.GRU(16)(x)))
    return Task(
        model=keras.Model(inputs, layers.Dense(1, dtype="float32")(x)),
        compile={"optimizer": "adam", "loss": "mse"},
        train=series(640, 0), validation=series(64, 1), test=series(256, 2),
        score=lambda y_true, y_pred: -((y_true - y_pred) ** 2)[:, 0],
        score_name="neg_squared_error",
    )
"""
CANDIDATES = ("mixed_float16", "mixed_bfloat16")


@pytest.mark.slow
def test_model_with_loops_gets_a_verdict(pristine: Checkout, tmp_path: Path) -> None:
    checkout = pristine.copy(tmp_path / "halfstep")
    (checkout.root / "loops.py").write_text(TASK)
    checkout.configure(
        {
            "task.name": "loops:build",
            "train.variants": ["float32", *CANDIDATES],
            "train.batch_size": 64,
            "compare.quality_margin": 0.1,
        }
    )
    output = checkout.check_output("dvc", "repro")
    assert "Traceback" not in output

    candidates = checkout.json("data/compare/comparison.json")["candidates"]
    for name in CANDIDATES:
        assert {candidates[name]["verdict"], candidates[name]["verdict_inference_b1"]} <= {
            *("adopt", "reject", "inconclusive")
        }
        assert candidates[name]["speedup"]["train"]["ratio"] > 0
    for name in ("float32", "_control", *CANDIDATES):
        summary = checkout.json(f"data/profile/{name}/summary.json")
        metrics = summary["metrics"]
        assert {"profiler/step_time_ms", "profiler/host_compute_ms", "profiler/input_ms"} <= set(metrics)
        assert (metrics["profiler/compute_16bit_percent"] > 0) == (name in CANDIDATES)
        account = pd.read_csv(checkout.root / f"data/profile/{name}/account.csv")
        assert account["time_ms"][account["operation"].notna()].sum() > 0
        assert not [warning for warning in summary["warnings"] if "steps" in warning]
    assert {run.info.status for run in checkout.runs()} == {"FINISHED"}
    assert checkout.repro() == {"environment"}
