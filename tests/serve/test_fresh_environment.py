"""What people take away loads and predicts where nothing is installed but its runtime: the README's lines are run."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from halfstep.results.serving import Export, Served, Tensor
from halfstep.results.task import TASK_INFO
from halfstep.serve.taking import README, write_folders
from halfstep.words.formats import FORMATS
from tests.serve.models import gelu, inputs_of
from tests.serve.test_writing import writer

PACKAGES = {"litert": "ai-edge-litert", "onnx": "onnxruntime"}


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_taken_folder_predicts_as_keras_does(
    name: str, prepared_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if FORMATS[name].missing:
        pytest.skip(f"{FORMATS[name].label} is not installed")
    monkeypatch.chdir(tmp_path)
    TASK_INFO.parent.mkdir(parents=True)
    TASK_INFO.write_bytes((prepared_template / TASK_INFO.name).read_bytes())
    model = gelu()
    x0 = inputs_of(model)[:1]
    file = f"models/{name}/model{FORMATS[name].suffix}"
    writer(model, x0, tmp_path / "scratch").write(name, tmp_path / file)
    export = Export(variant="float32", seed=0, format=name, file=file, kib=1.0, sha256="0" * 64)
    served = Served(exports=(export,), inputs=(Tensor(name="x0", dtype="float32", shape=(6,)),))
    write_folders(served, tmp_path)

    environment, folder = tmp_path / "environment", tmp_path / "models" / name
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    wanted = f"{PACKAGES[name]}=={version(PACKAGES[name])}"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wanted], check=True)
    assert subprocess.run([python, "-c", "import tensorflow"], capture_output=True).returncode != 0

    np.save(folder / "x0.npy", x0)
    lines = [line.removeprefix("    ") for line in (folder / README).read_text().splitlines() if line[:4] == "    "]
    code = "\n".join(["import numpy as np", "x0 = np.load('x0.npy')", *lines, "np.save('outputs.npy', outputs[0])"])
    subprocess.run([python, "-c", code], cwd=folder, check=True)
    np.testing.assert_allclose(np.load(folder / "outputs.npy"), model(x0), atol=1e-5)
    timed = subprocess.run(
        [python, "bench.py", Path(file).name, "--seconds", "0.05"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "batch 1: first call " in timed.stdout
