"""The examples are prepared and trained with small settings in mixed precision, and learn something."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.system import files
from halfstep.tasks.trial import Trial
from halfstep.train.training import train
from tests.tasks.conftest import prepare_task

# By example: arguments, epochs and batch size; and what the score must exceed, which an untrained model does not.
EXAMPLES: dict[str, tuple[dict[str, Any], int, int, float]] = {
    "regression": ({}, 20, 32, -60.0),
    "segmentation": ({"size": 32, "images": 400, "test": 50, "width": 8}, 6, 16, 0.5),
    "text": ({"length": 16, "width": 32, "limit": 30_000}, 2, 64, 0.15),
    "own_train_step": ({"width": 128}, 4, 64, 0.6),
    "fine_tuning": ({}, 4, 32, 0.75),
    "encoder": ({"length": 32, "width": 32, "examples": 2000}, 3, 32, 0.3),
}

CONVOLUTIONS = {"segmentation", "fine_tuning"}  # in float16, CPUs take minutes for them
SCRIPTS = {"plain_script", "lstm_script"}  # by tests/pipeline/test_script.py and tests/scripts


@pytest.fixture
def folder(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the examples."""
    shutil.copytree(root / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_trained_in_mixed_precision(folder: Path, name: str) -> None:
    """What learns so learns in float32, too, which the other tests of tasks train in."""
    policy = "mixed_bfloat16" if name in CONVOLUTIONS else "mixed_float16"
    arguments, epochs, batch_size, at_least = EXAMPLES[name]
    task = TaskParams(name=f"examples.{name}:build", arguments=arguments)
    settings = TrainParams(epochs=epochs, batch_size=batch_size)
    info = prepare_task(task, settings, files.PREPARED)
    result = train(Trial(task, ModelParams(), settings, Variant(policy=policy), 0))
    assert result.failure is None
    assert result.outputs is not None
    ((metric, value),) = result.ready.test_metrics(result.outputs).items()
    assert metric == f"test_{info.score_name}"
    assert value > at_least
    assert np.isfinite(result.outputs).all()


def test_every_example_is_tested_and_short(root: Path) -> None:
    paths = sorted((root / "examples").glob("*.py"))
    assert {path.stem for path in paths} == {*EXAMPLES, *SCRIPTS}
    lines = {path.name: len(path.read_text().splitlines()) for path in paths}
    assert {name: count for name, count in lines.items() if count > 60} == {}
