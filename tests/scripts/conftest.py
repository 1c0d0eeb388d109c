"""A working folder, and a training script outside of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from halfstep.machine.fingerprint import fingerprint
from halfstep.system import files
from tests import warm
from tests.programs import module_of

# Two classes of four numbers. What stands for the words in capitals is replaced.
SOURCE = """
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

START
x = np.random.default_rng(3).normal(size=(320, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
model = keras.Sequential(
    [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.1), keras.layers.Dense(2, dtype="float32")]
)
BUILD
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
with tempfile.TemporaryDirectory() as folder:
    history = model.fit(FIT)
print("history", history.history["loss"][0])
"""
DEFAULTS = {"START": "keras.utils.set_random_seed(812)", "BUILD": "", "FIT": "x, y, epochs=2, validation_split=0.25"}


def source(**parts: str) -> str:
    """The script, with these parts instead of the default ones."""
    text = SOURCE
    for name, default in DEFAULTS.items():
        text = text.replace(name, parts.get(name.lower(), default))
    return text


class ScriptProject:
    """A working folder with parameters, and a script in another folder.

    Attributes:
        root: the working folder.
        script: the script.
    """

    def __init__(self, root: Path, script: Path, python_path: Path) -> None:
        self.root, self.script = root, script
        self._variables = os.environ | {"PYTHONPATH": str(python_path)}

    def write(self, params: dict[str, Any] | None = None, text: str | None = None, **parts: str) -> None:
        """Writes the script, and the parameters, of which these sections are changed."""
        self.script.parent.mkdir(exist_ok=True)
        self.script.write_text(source(**parts) if text is None else text, encoding="utf-8")
        values: dict[str, Any] = {
            "task": {"script": str(self.script)},
            "train": {"epochs": None, "batch_size": None, "variants": ["float32"]},
        }
        for name, section in (params or {}).items():
            values[name] = values.get(name, {}) | section
        (self.root / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    def lay(self, contents: Mapping[str, str]) -> None:
        """Writes files of the script's repository, which is the folder that the script is in by default."""
        for name, content in contents.items():
            path = self.script.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")

    def run(self, stage: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a stage."""
        command = [warm.python(), "-m", module_of(stage), *arguments]
        return subprocess.run(command, cwd=self.root, env=self._variables, capture_output=True, text=True, check=False)

    def passed(self, stage: str, *arguments: str) -> str:
        """Runs a stage that must pass, and returns what it prints."""
        done = self.run(stage, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def train(self, variant: str = "float32", seed: int = 0) -> dict[str, Any]:
        """Trains, and returns `metrics.json`."""
        self.passed("train", "--variant", variant, "--seed", str(seed))
        return self.json(f"data/train/{variant}-{seed}/metrics.json")

    def plain(self) -> str:
        """Runs the script by Python alone, in a folder of its own, and returns what it prints."""
        folder = self.root / "plain"
        folder.mkdir(exist_ok=True)
        command = [sys.executable, str(self.script)]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout

    def json(self, path: str) -> dict[str, Any]:
        """A file of results."""
        return dict(json.loads((self.root / path).read_text(encoding="utf-8")))


@pytest.fixture
def project(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, store_template: Path) -> ScriptProject:
    folder = tmp_path / "checkout"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "mlflow.db").write_bytes(store_template.read_bytes())
    files.write_json(files.ENVIRONMENT_FILE, fingerprint())
    return ScriptProject(folder, tmp_path / "theirs" / "train.py", root)
