"""A task of one's own, outside the checkout, goes through the whole pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from tests.tracked_runs import by_name

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

TASK = """
import helpers.network
from helpers.data import arrays
from halfstep.tasks import Task


def build(*, batch_size, seed, examples):
    x, y = arrays(examples)
    return Task(
        model=helpers.network.network(),
        compile={"optimizer": "adam", "loss": "mse", "metrics": ["mae"]},
        train=(x, y), validation=(x[:64], y[:64]), test=(x, y),
        score=lambda y_true, y_pred: -((y_true - y_pred) ** 2)[:, 0],
        score_name="neg_squared_error",
    )
"""
# Loops have iterations of their own in a trace.
NETWORK = """
import keras
import tensorflow as tf
from keras import layers

ITERATIONS = 3


class Loop(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, inputs):
        def body(number, state):
            return number + 1, tf.tanh(tf.matmul(state, tf.cast(self.kernel, state.dtype)))

        return tf.while_loop(lambda number, _: number < ITERATIONS, body, (0, inputs))[1]

    def compute_output_shape(self, shape):
        return shape


def network():
    inputs = keras.Input((5, 8))
    x = layers.Bidirectional(layers.LSTM(16, return_sequences=True))(inputs)
    x = Loop()(layers.Dense(64)(layers.GRU(16)(x)))
    return keras.Model(inputs, layers.Dense(1, dtype="float32")(x))
"""
DATA = """
from pathlib import Path

import numpy as np


def arrays(examples):
    scale = float(Path(__file__).parents[1].joinpath("scale.txt").read_text())
    x = np.random.default_rng(0).normal(size=(examples, 5, 8)).astype("float32")
    return x, scale * x.mean(axis=(1, 2), keepdims=True)[:, 0]
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of the user's own: a task, a package of helpers, a file of data, and a file that nothing imports."""
    folder = tmp_path / "mine"
    (folder / "helpers").mkdir(parents=True)
    for name, text in {
        "regress.py": TASK,
        "helpers/__init__.py": "",
        "helpers/network.py": NETWORK,
        "helpers/data.py": DATA,
        "scale.txt": "0.1",
        "unrelated.py": "",
    }.items():
        (folder / name).write_text(text)
    return folder


def test_task_outside_the_checkout_is_trained_measured_and_compared(copied: Checkout, repository: Path) -> None:
    copied.configure(
        {
            "task.name": "regress:build",
            "task.path": str(repository),
            "task.arguments": {"examples": 1200},
            "task.depends": [str(repository / "scale.txt")],
            "compare.quality_margin": 0.01,
        }
    )
    output = copied.check_output("dvc", "repro")
    assert "neg_squared_error" in output
    assert "Traceback" not in output

    folder = copied.root / "data/train/float32-0"
    scores = np.load(folder / "scores.npy")
    assert scores.shape == (1200,)
    assert copied.json("data/train/float32-0/metrics.json")["test_neg_squared_error"] == pytest.approx(scores.mean())
    assert (folder / "history.csv").read_text().startswith("epoch,loss,mae,val_loss,val_mae,")
    assert not (folder / "predictions.npy").exists()
    candidate = copied.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]
    assert {candidate["verdict"], candidate["verdict_inference_b1"]} <= {"adopt", "reject", "inconclusive"}
    assert candidate["speedup"]["train"]["ratio"] > 0
    assert candidate["quality"]["name"] == "neg_squared_error"
    assert candidate["quality_same_weights"]["examples"] == 1200
    _steps_with_loops_are_traced(copied)
    runs = by_name(copied.runs())
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert "test_neg_squared_error" in runs["train float32 seed 0"].data.metrics
    assert "mixed_bfloat16/neg_squared_error_delta" in runs["compare"].data.metrics

    (repository / "unrelated.py").write_text("# nothing imports this\n")
    assert copied.repro() == {"environment"}
    for changed in (repository / "helpers/network.py", repository / "scale.txt"):
        before = changed.read_text()
        changed.write_text(before.replace("64", "32").replace("0.1", "0.2"))
        assert copied.out_of_date() >= {"prepare", "train@float32-0", "train@mixed_bfloat16-0", "profile"}
        changed.write_text(before)


def _steps_with_loops_are_traced(checkout: Checkout) -> None:
    for name in ("float32", "_control", "mixed_bfloat16"):
        summary = checkout.json(f"data/profile/{name}/summary.json")
        metrics = summary["metrics"]
        assert {"profiler/step_time_ms", "profiler/host_compute_ms", "profiler/input_ms"} <= set(metrics)
        assert (metrics["profiler/compute_16bit_percent"] > 0) == (name == "mixed_bfloat16")
        account = pd.read_csv(checkout.root / f"data/profile/{name}/account.csv")
        assert account["time_ms"][account["operation"].notna()].sum() > 0
        assert not [warning for warning in summary["warnings"] if "steps" in warning]
