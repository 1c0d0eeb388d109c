"""`halfstep judge`: a script in a folder of somebody else gets a verdict, and the folder stays as it was."""

from __future__ import annotations

import json

import pytest

from halfstep import files
from halfstep.results.comparison import Comparison
from tests.pipeline.conftest import SMALL_BY_SET, Folder
from tests.scripts.conftest import source


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name one thing to judge"),
        (("train.py", "--images", "pictures"), "name one thing to judge"),
        (("-m", "package.train"), "module package.train does not exist in"),
        (("train.py",), "the script train.py does not exist in"),
        (("--images", "pictures"), "--images pictures does not exist in"),
        (("own.py", "--set", "train.epoch=3"), "train.epoch is unknown"),
        (("own.py", "--set", "train.epochs.x=3"), "train.epochs.x: epochs is not a section"),
        (("own.py", "--set", "train"), "--set train: write it as KEY=VALUE"),
        (("own.py", "--set", "train.seeds=[1"), "--set train.seeds=[1: the value is not YAML"),
        (("own.py", "--set", "train.epochs=-1"), "train.epochs is -1"),
        (("own.py", "--variants", "float32,float8"), "float8"),
    ],
)
def test_mistake_is_named_and_nothing_is_made(folder: Folder, arguments: tuple[str, ...], said: str) -> None:
    (folder.path / "own.py").write_text("")
    done = folder.halfstep("judge", *arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert said in done.stderr.splitlines()[-1]
    assert sorted(path.name for path in folder.path.iterdir()) == [".git", "own.py"]


@pytest.mark.slow
def test_script_gets_a_verdict_and_its_repository_stays_as_it_was(folder: Folder) -> None:
    text = source(start="import sys; keras.utils.set_random_seed(int(sys.argv[1]))")
    (folder.path / "train.py").write_text(text)
    folder.git("add", "--all")
    folder.git("commit", "--quiet", "--message", "Theirs")
    # Their own MLflow: a file of it would be in the status of git.
    folder.environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder.path}/theirs.db"
    folder.environment["MLFLOW_EXPERIMENT_NAME"] = "theirs"
    command = ("judge", "train.py", "--variants", "float32,mixed_bfloat16", *SMALL_BY_SET, "--", "812")
    done = folder.halfstep(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    found = Comparison.read(folder.path / files.JUDGE / "data/compare/comparison.json")
    assert list(found.candidates) == ["mixed_bfloat16"]
    assert found.candidates["mixed_bfloat16"].sentence.split(".")[0] in " ".join(done.stdout.split())
    assert (folder.path / files.JUDGE_REPORT).is_file()
    assert folder.git("status", "--short") == ""

    assert f"Report: {files.JUDGE_REPORT}" in done.stdout
    summary = json.loads((folder.path / files.JUDGE / files.profile_dir("float32") / "summary.json").read_text())
    # That of the script, not of the workspace.
    assert summary["protocol"]["commit"] == folder.git("rev-parse", "HEAD")[:10]

    again = folder.halfstep(command[0], "--json", *command[1:])
    assert again.returncode == 0
    assert json.loads(again.stdout) == found.as_json()
    assert "Running stage 'train" not in again.stderr
    shown = folder.halfstep("report")
    assert shown.returncode == 0, shown.stderr
    assert "mixed_bfloat16" in shown.stdout

    (folder.path / "train.py").write_text(text.replace("normal(size=(320, 4))", "normal(size=(330, 4))"))
    edited = folder.halfstep(*command)
    assert edited.returncode == 0, edited.stdout + edited.stderr
    assert "Running stage 'train@float32-0'" in edited.stdout
