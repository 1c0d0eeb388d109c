"""action.yml: its script gates a branch against its base, in a repository of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.pipeline.conftest import SMALL_BY_SET

SCRIPT = ".github/judge.sh"
TASK = """
import keras
import numpy as np

from halfstep.tasks import Task

UNITS = 16


def build(*, batch_size: int, seed: int) -> Task:
    x = np.random.default_rng(0).normal(size=(512, 16)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")
    layers = [keras.layers.Dense(UNITS, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Task(model=model, compile={"optimizer": "adam", "loss": loss}, train=(x, y))
"""


def test_inputs_are_those_that_its_step_uses(root: Path) -> None:
    action = yaml.safe_load((root / "action.yml").read_text(encoding="utf-8"))
    (step,) = action["runs"]["steps"]
    assert sorted(step["env"].values()) == sorted(f"${{{{ inputs.{name} }}}}" for name in action["inputs"])
    assert step["run"] == f'bash "$GITHUB_ACTION_PATH/{SCRIPT}"'
    script = (root / SCRIPT).read_text(encoding="utf-8")
    assert all(f"${{{name}:" in script for name in step["env"])
    subprocess.run(["bash", "-n", root / SCRIPT], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("units", "gate", "status"),
    # So few rounds show nothing for sure: that passes the first gate, and not the second one.
    [("16  # as wide as the input", "not_slower", 0), ("2048", "not_slower_strict", 1)],
    ids=["comment", "slowdown"],
)
def test_comment_passes_and_a_slowdown_is_not_excluded(
    units: str, gate: str, status: int, tmp_path: Path, root: Path
) -> None:
    (tmp_path / "halfstep-venv").symlink_to(sys.prefix)  # with halfstep, which the script need not install
    branch = tmp_path / "repository"
    (branch / "base").mkdir(parents=True)
    (branch / "base/train.py").write_text(TASK)
    (branch / "train.py").write_text(TASK.replace("UNITS = 16", f"UNITS = {units}"))
    variables = {
        "JUDGE": shlex.join(["train:build", "--speed-only", *SMALL_BY_SET]),
        "BASE": "base",
        "GATE": gate,
        "THEIR_PYTHON": sys.executable,
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "PYTHONPATH": str(root),
    }
    done = subprocess.run(
        ["bash", root / SCRIPT], cwd=branch, env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert f"Gate: **{'failed' if status else 'passed'}**" in summary
