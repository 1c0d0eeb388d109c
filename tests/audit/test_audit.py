"""`python -m halfstep audit`, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import warm

# Of each kind of task the one that asks for most: layers, a loop of its own, and a script.
EXAMPLES: dict[str, dict[str, Any]] = {
    "resnet50": {"model": {"name": "resnet50"}, "data": {"source": "synthetic", "image_size": 128}},
    "own_train_step": {"task": {"name": "own_train_step:build"}},
    "encoder": {"task": {"name": "encoder:build"}},
    "lstm_script": {"task": {"script": "lstm_script.py"}, "train": {"epochs": None, "batch_size": None}},
}


def run(folder: Path, root: Path, params: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    for source in (root / "examples").glob("*.py"):
        (folder / source.name).write_bytes(source.read_bytes())
    return subprocess.run(
        [warm.python(), "-m", "halfstep", "audit", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_layers_are_printed_and_written_as_json(tmp_path: Path, root: Path) -> None:
    done = run(tmp_path, root, {})
    assert done.returncode == 0, done.stderr
    assert "conv2d_1" in done.stdout
    assert "mixed_float16: 11,330 parameters" in done.stdout
    variants = json.loads(run(tmp_path, root, {}, "--json").stdout)["variants"]
    assert list(variants) == ["float32", "mixed_float16", "mixed_bfloat16"]
    first = variants["mixed_float16"]["layers"][0]
    assert {"path", "type", "compute_dtype", "variable_dtype", "parameters", "flops", "bytes", "findings"} <= set(first)
    assert variants["float32"]["totals"]["parameters"] == 11_330


@pytest.mark.slow
def test_output_in_16_bits_and_patterns_without_a_layer_are_one_line(tmp_path: Path, root: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import keras\nimport numpy as np\nfrom halfstep.tasks import Task\n\n\n"
        "def build(*, batch_size, seed):\n"
        "    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1, name='top')])\n"
        "    x = np.zeros((64, 4), 'float32')\n"
        "    return Task(model=model, compile={'optimizer': 'adam', 'loss': 'mse'}, train=(x, x[:, :1]))\n"
    )
    params = {"task": {"name": "own:build"}, "train": {"variants": ["float32", "mixed_float16"], "epochs": 0}}
    done = run(tmp_path, root, params)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "mixed_float16: sequential/top gives the output in float16" in line
    kept = {"policy": "mixed_float16", "onednn": False, "float32_layers": [".*/top"]}
    variants = {"float32": {"policy": "float32"}, "mixed_float16": kept}
    done = run(tmp_path, root, params | {"variants": variants})
    assert (done.returncode, done.stderr) == (0, "")
    done = run(tmp_path, root, params | {"variants": variants | {"mixed_float16": kept | {"float32_layers": ["tpo"]}}})
    (line,) = done.stderr.splitlines()
    assert "mixed_float16: float32_layers: no layer matches 'tpo'" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_tasks_of_every_kind_are_looked_at(tmp_path: Path, root: Path, name: str) -> None:
    params: dict[str, Any] = dict(EXAMPLES[name])
    params["compare"] = {"quality_margin": 0.01}
    done = run(tmp_path, root, params, "--json")
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout)["variants"]["float32"]["totals"]
    assert totals["parameters"] > 0
