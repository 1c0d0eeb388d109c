"""What the user's code and the shell do to the process of a stage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from halfstep.machine.fingerprint import fingerprint
from halfstep.system import files
from tests.faults.cases_of_own_code import PARAMS, from_generator, own_code
from tests.programs import module_of

pytestmark = pytest.mark.slow


class Project:
    """A working folder with a task of the user's own."""

    def __init__(self, root: Path, python_path: Path) -> None:
        self.root = root
        self._environment = os.environ | {"PYTHONPATH": str(python_path), "KERAS_HOME": str(root / "keras")}

    def write(self, params: dict[str, Any] | None = None, **parts: str) -> None:
        """Writes the task, and the parameters."""
        (self.root / "own.py").write_text(own_code(**parts), encoding="utf-8")
        (self.root / "params.yaml").write_text(yaml.safe_dump(PARAMS | (params or {})), encoding="utf-8")

    def run(self, stage: str = "prepare", *arguments: str, shell: str = "", **variables: str) -> Any:
        """Runs a stage; `shell` is what follows in the command line."""
        command = " ".join([sys.executable, "-m", module_of(stage), *arguments, shell])
        environment = self._environment | variables
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def digest(self) -> str:
        """What `prepare` wrote."""
        return files.sha256_file(self.root / files.PREPARED / files.MANIFEST)


@pytest.fixture
def project(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    files.write_json(files.ENVIRONMENT_FILE, fingerprint())
    return Project(tmp_path, root)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("os.kill(os.getpid(), 11)", "SIGSEGV ended it: a library or your own code used memory wrongly"),
        ("os._exit(0)", "ended with status 0 before its end: your own code, or a library, calls os._exit"),
    ],
)
def test_end_without_a_word_is_said(project: Project, call: str, said: str) -> None:
    project.write(build=call)
    done = project.run()
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("task.name = ")
    assert f": the process of float32-0: {said}" in line


def test_variables_keras_json_and_another_folder_change_no_result(project: Project) -> None:
    project.write()
    assert project.run().returncode == 0
    before = project.digest()
    shutil.rmtree(project.root / files.PREPARED)
    project.write(build="os.chdir('/tmp')\nos.fork()")
    (project.root / "keras").mkdir(exist_ok=True)
    config = {"image_data_format": "channels_first", "floatx": "float16", "epsilon": 0.1, "backend": "torch"}
    (project.root / "keras/keras.json").write_text(json.dumps(config))
    variables = {"TF_USE_LEGACY_KERAS": "1", "MPLBACKEND": "nonsense", "KERAS_BACKEND": "jax", "COLUMNS": "0"}
    done = project.run(**variables, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    assert "own:build" in done.stdout
    assert project.digest() == before


def test_stage_finishes_whoever_reads(project: Project) -> None:
    project.write()
    done = project.run(shell=">/dev/full")
    said = "standard output cannot be written (No space left on device); the stage goes on without it"
    assert (done.returncode, said in done.stderr) == (0, True), done.stderr
    assert "Traceback" not in done.stderr
    assert project.digest()


def test_variable_is_refused_before_any_work(project: Project) -> None:
    project.write()
    done = project.run("environment", PYTHONOPTIMIZE="2")
    assert done.returncode == 1
    assert "PYTHONOPTIMIZE is 2: it removes checks" in done.stderr
    assert "Traceback" not in done.stderr


def test_later_epoch_with_other_batches(project: Project) -> None:
    lines = "global PASSES\nPASSES = globals().get('PASSES', 0) + 1\nfor _ in range(4 if PASSES < 9 else 3): yield X, Y"
    project.write({"train": {"batch_size": 8, "epochs": 30, "variants": ["float32"]}}, data=from_generator(lines))
    assert project.run().returncode == 0
    done = project.run("train", "--variant", "float32", "--seed", "0")
    assert done.returncode == 1, done.stdout
    assert "Task.train does not have the same number of batches in every epoch" in done.stderr
    assert "4" in done.stderr
    assert ".repeat().take(steps)" in done.stderr
    assert not (project.root / "data/train/float32-0/metrics.json").exists()


@pytest.mark.parametrize(
    ("where", "end", "said"),
    [
        ("__getitem__", "raise FileNotFoundError(2, 'Gone', 'gone.npy')", "[Errno 2] Gone: 'gone.npy' (own.py, line "),
        ("on_epoch_end", "import sys; sys.exit(0)", "SystemExit: 0 (own.py, line "),
    ],
    ids=str,
)
def test_data_set_that_raises_in_a_later_epoch(project: Project, where: str, end: str, said: str) -> None:
    project.write(
        {"train": {"batch_size": 8, "epochs": 60, "variants": ["float32"]}},
        data=f"""
class Rows(keras.utils.PyDataset):
    calls = 0
    def __len__(self): return 2
    def __getitem__(self, index): self.count('__getitem__'); return X, Y
    def on_epoch_end(self): self.count('on_epoch_end')
    def count(self, name):
        Rows.calls += name == '{where}'
        if Rows.calls > 40: {end}
return Rows()""",
    )
    done = project.run()
    assert done.returncode == 0, done.stderr
    done = project.run("train", "--variant", "float32", "--seed", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
