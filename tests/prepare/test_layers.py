"""`python -m stages.prepare --layers`, as a user starts it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import warm

DIES = "import os\n\n\ndef build(**_):\n    os._exit(3)\n"
EXAMPLES: dict[str, dict[str, Any]] = {
    "own_train_step": {"task": {"name": "own_train_step:build"}},
    "lstm_script": {"task": {"script": "lstm_script.py"}, "train": {"epochs": None, "batch_size": None}},
}


def run(folder: Path, root: Path, params: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return subprocess.run(
        [warm.python(), "-m", "stages.prepare", "--layers"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_paths_are_printed_and_nothing_is_written(tmp_path: Path, root: Path) -> None:
    done = run(tmp_path, root, {})
    assert (done.returncode, done.stderr) == (0, "")
    assert {"conv2d Conv2D", "conv2d_1 Conv2D", "probabilities Activation"} <= {*done.stdout.splitlines()}
    assert not (tmp_path / "data").exists()


def test_function_that_ends_the_process_is_one_line(tmp_path: Path, root: Path) -> None:
    (tmp_path / "own.py").write_text(DIES)
    done = run(tmp_path, root, {"task": {"name": "own:build"}, "train": {"epochs": 0, "variants": ["float32"]}})
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "own:build" in line
    assert "exit status 3" in line or "os._exit" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_layers_of_every_kind_of_task(tmp_path: Path, root: Path, name: str) -> None:
    for source in (root / "examples").glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    done = run(tmp_path, root, {**EXAMPLES[name], "compare": {"quality_margin": 0.01}})
    assert done.returncode == 0, done.stderr
    assert any(line.endswith(" Dense") for line in done.stdout.splitlines())
