"""Two commits of the user's own task are measured in turns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

TASK = """
import keras
import numpy as np

from network import hidden
from halfstep.tasks import Task


def build(*, batch_size, seed):
    x = np.random.default_rng(0).normal(size=(640, 64)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.Input((64,)), *hidden(), keras.layers.Dense(1, dtype="float32")])
    return Task(model=model, compile={"optimizer": "sgd", "loss": "mse"}, train=(x, y))
"""
NETWORK = """
import keras


def hidden():
    return [keras.layers.Dense(16, activation="relu") for _ in range(3)]
"""
SLOWER = "keras.layers.Dense(16", "keras.layers.Dense(2048"


@pytest.mark.slow
def test_commit_that_made_training_slower_is_found(pristine: Checkout, tmp_path: Path) -> None:
    checkout = pristine.copy(tmp_path / "mine")
    (checkout.root / "own.py").write_text(TASK)
    (checkout.root / "network.py").write_text(NETWORK)
    checkout.configure(
        {
            "task.name": "own:build",
            "train.epochs": 0,
            "train.variants": ["before", "float32"],
            "compare.baseline": "before",
            "variants.before": {"policy": "float32", "task_path": "../before"},
            "profile.inference_batch_sizes": [],
            "profile.rounds": 3,
            "profile.processes": 3,  # beside other tests
        }
    )
    checkout.commit("A small network")
    (checkout.root / "network.py").write_text(NETWORK.replace(*SLOWER))
    checkout.commit("A large network")
    checkout.check_output("git", "worktree", "add", "--quiet", "../before", "HEAD~1")
    checkout.check_output("dvc", "repro")

    after = checkout.json("data/compare/comparison.json")["candidates"]["float32"]
    assert after["speedup"]["train"]["high"] < 1
    assert after["verdict"] == "slower"
    summaries = {name: checkout.json(f"data/profile/{name}/summary.json") for name in ("before", "float32")}
    assert summaries["before"]["in_force"]["task_path"] == "../before"
    parameters = {name: summary["configuration"]["parameters"] for name, summary in summaries.items()}
    assert parameters["before"] < parameters["float32"]

    (tmp_path / "before/network.py").write_text(NETWORK.replace("16", "17"))
    assert "prepare" in checkout.out_of_date()
