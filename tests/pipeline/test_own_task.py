"""A task of one's own, outside the checkout, goes through the whole pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

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
NETWORK = """
import keras


def network():
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(hidden))
"""
DATA = """
from pathlib import Path

import numpy as np


def arrays(examples):
    scale = float(Path(__file__).parents[1].joinpath("scale.txt").read_text())
    x = np.random.default_rng(0).normal(size=(examples, 8)).astype("float32")
    return x, scale * x.sum(axis=1, keepdims=True)
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


@pytest.mark.slow
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

    folder = copied.root / "data/train/float32-0"
    scores = np.load(folder / "scores.npy")
    assert scores.shape == (1200,)
    assert copied.json("data/train/float32-0/metrics.json")["test_neg_squared_error"] == pytest.approx(scores.mean())
    assert (folder / "history.csv").read_text().startswith("epoch,loss,mae,val_loss,val_mae,")
    assert not (folder / "predictions.npy").exists()
    candidate = copied.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]
    assert candidate["quality"]["name"] == "neg_squared_error"
    assert candidate["quality_same_weights"]["examples"] == 1200
    runs = {run.info.run_name: run for run in copied.runs()}
    assert "test_neg_squared_error" in runs["train float32 seed 0"].data.metrics
    assert "mixed_bfloat16/neg_squared_error_delta" in runs["compare"].data.metrics
    assert copied.repro() == {"environment"}

    (repository / "unrelated.py").write_text("# nothing imports this\n")
    assert copied.repro() == {"environment"}
    for changed in (repository / "helpers/network.py", repository / "scale.txt"):
        before = changed.read_text()
        changed.write_text(before.replace("64", "32").replace("0.1", "0.2"))
        copied.check_output("python", "-m", "stages.environment")
        assert copied.out_of_date() >= {"prepare", "train@float32-0", "train@mixed_bfloat16-0", "profile"}
        changed.write_text(before)
