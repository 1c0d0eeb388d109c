"""Models with loops go through the whole pipeline: their steps are traced, and they get a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

TASK = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from stages.tasks import Task

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


class SeveralUpdates(keras.Model):
    def train_step(self, data):
        x, y = data

        def body(number, total):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
                scaled = self.optimizer.scale_loss(loss)
            self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
            return number + 1, total + loss

        _, total = tf.while_loop(lambda number, _: number < ITERATIONS, body, (0, 0.0))
        self.metrics[0].update_state(total / ITERATIONS)
        return {"loss": self.metrics[0].result()}


def layers_of(kind):
    if kind == "train_step":
        return [layers.Flatten(), layers.Dense(64)]
    return [layers.Bidirectional(layers.LSTM(16, return_sequences=True)), layers.GRU(16), layers.Dense(64), Loop()]


def series(count, seed):
    x = np.random.default_rng(seed).normal(size=(count, LENGTH, FEATURES)).astype("float32")
    return x, x.mean(axis=(1, 2), keepdims=True)[:, 0]


def build(*, batch_size, seed, kind):
    inputs = x = keras.Input((LENGTH, FEATURES))
    for layer in layers_of(kind):
        x = layer(x)
    model_class = SeveralUpdates if kind == "train_step" else keras.Model
    return Task(
        model=model_class(inputs, layers.Dense(1, dtype="float32")(x)),
        compile={"optimizer": "adam", "loss": "mse"},
        train=series(640, 0), validation=series(64, 1), test=series(256, 2),
        score=lambda y_true, y_pred: -((y_true - y_pred) ** 2)[:, 0],
        score_name="neg_squared_error",
    )
"""
KINDS = ("layers", "train_step")
CANDIDATES = ("mixed_float16", "mixed_bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_model_with_a_loop_gets_a_verdict(pristine: Checkout, tmp_path: Path, kind: str) -> None:
    checkout = pristine.copy(tmp_path / "halfstep")
    (checkout.root / "loops.py").write_text(TASK)
    checkout.configure(
        {
            "task.name": "loops:build",
            "task.arguments": {"kind": kind},
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
        assert any(row["self_time_ms_per_step"] > 0 for row in summary["operations"])
        assert not [warning for warning in summary["warnings"] if "steps" in warning]
    assert {run.info.status for run in checkout.runs()} == {"FINISHED"}
    assert checkout.repro() == {"environment"}
