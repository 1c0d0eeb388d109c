"""`halfstep judge`: a script in a folder of somebody else gets a verdict, and the folder stays as it was."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from halfstep.__main__ import main
from halfstep.compare.report.terminal import answer_text
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.system import files, rerun, sealing
from halfstep.system.locking import try_lock
from tests.pipeline.conftest import PROJECT, SMALL_BY_SET, Checkout, Folder

WRITTEN = files.JUDGE / sealing.WRITTEN


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name one thing to judge"),
        (("train.py", "--images", "pictures"), "name one thing to judge"),
        (("-m", "package.train"), "module package.train does not exist in"),
        (("train.py",), "the script train.py does not exist in"),
        (("wn.py",), "; did you mean 'own.py'?"),
        ((".",), ". is a folder: name the script in it that trains, or, for a folder of pictures"),
        (("own.py", "--epochs", "3"), "such as `halfstep judge train.py -- --epochs 3`; a parameter is set by --set"),
        (("own.py", "--variants", "float32,bf16"), "; did you mean 'mixed_bfloat16'?"),
        (("--images", "pictures"), "--images pictures does not exist in"),
        (("own.py", "--set", "train.epoch=3"), "train.epoch is unknown"),
        (("own.py", "--set", "train.epochs.x=3"), "train.epochs.x: epochs is not a section"),
        (("own.py", "--python", "nowhere"), "--python nowhere does not exist in"),
        (("own.py", "--python", "own.py"), "--python is 'own.py', which is not a program"),
        (("own.py", "--set", "train"), "--set train: write it as KEY=VALUE"),
        (("own.py", "--set", "train.seeds=[1"), "--set train.seeds=[1: the value is not YAML"),
        (("own.py", "--set", "train.epochs=-1"), "train.epochs is -1"),
        (("own.py", "--variants", "float32,float8"), "float8"),
    ],
)
def test_mistake_is_named_and_nothing_is_made(
    folder: Folder,
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (folder.path / "own.py").write_text("")
    monkeypatch.chdir(folder.path)
    with pytest.raises(SystemExit) as ended:
        main(["judge", *arguments])
    stderr = capfd.readouterr().err
    assert ended.value.code == 2
    assert "Traceback" not in stderr
    assert said in stderr.splitlines()[-1]
    assert sorted(path.name for path in folder.path.iterdir()) == [".git", "own.py"]


@pytest.mark.slow
def test_script_gets_a_verdict_and_its_repository_stays_as_it_was(folder: Folder) -> None:
    text = (PROJECT / "examples/plain_script.py").read_text()
    shell = "echo x >> notes.txt; rm -f data.csv; echo y > new.txt"
    changed = text.replace("import argparse\n", f"import argparse; __import__('os').system('{shell}')\n")
    (folder.path / "train.py").write_text(changed)
    (folder.path / "notes.txt").write_text("mine\n")
    (folder.path / "data.csv").write_text("1\n")
    folder.git("add", "--all")
    folder.git("commit", "--quiet", "--message", "Theirs")
    # Their own MLflow: a file of it would be in the status of git.
    folder.environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder.path}/theirs.db"
    folder.environment["MLFLOW_EXPERIMENT_NAME"] = "theirs"
    layers = "--set=variants.mixed_bfloat16.float32_layers=[.*/conv2d_1]"
    command = ("judge", "train.py", "--variants=float32,mixed_bfloat16", layers, *SMALL_BY_SET, "--", "--width", "8")
    done = folder.halfstep(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    comparison = Comparison.read(folder.path / files.JUDGE / COMPARISON)
    assert list(comparison.candidates) == ["mixed_bfloat16"]
    assert comparison.answer is not None
    assert f"Report     {files.JUDGE_REPORT}" in done.stdout.splitlines()[-2:]  # a long command may follow
    assert "Running stage" not in done.stdout + done.stderr
    assert (folder.path / files.JUDGE_REPORT).is_file()
    if "no overlays here" in done.stderr:
        assert "changed while this ran, by another program" in done.stderr
    else:
        assert folder.git("status", "--short") == ""
        assert "your code wrote" in done.stderr
    _script_is_taken_as_it_is(Checkout(folder.path / files.JUDGE), done.stdout)
    # That of the script, not of the workspace.
    summary = json.loads((folder.path / files.JUDGE / files.profile_dir("float32") / "summary.json").read_text())
    assert summary["protocol"]["commit"] == folder.git("rev-parse", "HEAD")[:10] + "+"  # the shell changes files

    again = folder.halfstep(command[0], "--json", *command[1:])
    assert again.returncode == 0
    assert json.loads(again.stdout) == comparison.as_json()
    assert "train mixed_bfloat16" not in again.stderr
    unchanged = folder.halfstep(*command)
    assert unchanged.stdout == f"{answer_text(comparison)}\n", "nothing had to be run"
    _command_that_measures_again_does(folder, comparison)
    advised = folder.halfstep("advise")
    line = f"    halfstep judge train.py --variants=float32,mixed_bfloat16 '{layers}'"
    assert line in advised.stdout, advised.stdout + advised.stderr
    shown = folder.halfstep("report")
    assert shown.returncode == 0, shown.stderr
    assert "mixed_bfloat16" in shown.stdout

    (folder.path / "train.py").write_text(text.replace("width = ", "raise ValueError('edited')\n    width = "))
    edited = folder.halfstep(*command)
    assert edited.returncode == 2
    assert "edited (train.py, line " in edited.stderr


MANY_EPOCHS = """
import keras
import numpy as np

generator = np.random.default_rng(0)
x = generator.normal(size=(600, 16)).astype("float32")
y = (x[:, :8].sum(1) > 0).astype("int32")
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model.fit(x, y, epochs=10_000_000, batch_size=20, validation_split=0.2)
"""


@pytest.mark.slow
def test_speed_comes_first_where_the_trainings_take_long_and_is_not_timed_again(folder: Folder) -> None:
    (folder.path / "train.py").write_text(MANY_EPOCHS)
    amounts = [text for text in SMALL_BY_SET if "train.epochs" not in text]
    command = ("judge", "train.py", "--variants=float32,mixed_bfloat16", *amounts)
    first = folder.halfstep(*command)
    assert first.returncode == 0, first.stdout + first.stderr
    said, goes_on = first.stdout.splitlines()[-2:]
    assert said.startswith("The accuracy is not measured yet: the trainings take about ")
    assert goes_on.startswith(f"`{shlex.join(['halfstep', *command])} --train` trains, and keeps what was timed")
    workspace = Checkout(folder.path / files.JUDGE)
    assert "quality" not in workspace.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]
    timed = (workspace.root / "data/profile/float32/rounds.csv").read_text().splitlines()

    whole = folder.halfstep(*command, "--set=train.epochs=1")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "profile: goes on after 2 repeats of an earlier measurement" in whole.stdout
    assert "not measured yet" not in whole.stdout
    assert "quality" in workspace.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]
    assert workspace.json("data/profile/float32/summary.json")["protocol"]["processes"] == 2
    assert (workspace.root / "data/profile/float32/rounds.csv").read_text().splitlines() == timed


def _command_that_measures_again_does(folder: Folder, before: Comparison) -> None:
    """What the answer says where the machine was busy; with the parameters of the call before."""
    asked = files.read_json(folder.path / files.JUDGE / files.JUDGE_CALL)
    done = folder.halfstep("judge", *asked["known"], rerun.AGAIN, "profile", "--", *asked["own"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train mixed_bfloat16" not in done.stdout
    after = Comparison.read(folder.path / files.JUDGE / COMPARISON)
    assert after.control != before.control
    assert f"Report     {files.JUDGE_REPORT}" in done.stdout.splitlines()[-2:]
    assert files.read_json(folder.path / files.JUDGE / files.JUDGE_CALL) == asked


def _script_is_taken_as_it_is(workspace: Checkout, output: str) -> None:
    assert "prepare: train.py: the call of fit in line 38 is taken" in output
    info = workspace.json("data/prepared/task.json")
    assert (info["score_name"], info["examples"], info["steps_per_epoch"]) == ("accuracy", 360, 34)
    metrics = workspace.json("data/train/float32-0/metrics.json")
    assert metrics["test_accuracy"] > 0.8
    assert metrics["permuted_p"] < 1e-6
    in_force = workspace.json("data/profile/mixed_bfloat16/summary.json")["in_force"]
    assert (in_force["float32_layers"], in_force["float32_casts"]) == (["sequential/conv2d_1"], 2)
    result = workspace.json("data/compare/comparison.json")
    candidate = result["candidates"]["mixed_bfloat16"]
    assert candidate["verdict"] in ("adopt", "reject", "inconclusive")
    assert "quality" in candidate
    assert "speed_only" not in result
    assert result["setup"]["task"]["name"] == "train.py"
    assert workspace.json("data/profile/float32/summary.json")["metrics"]["train_examples_per_s"] > 0
    written = workspace.root / ".halfstep/script"
    assert "best.keras" in {path.name for path in (written / "float32-0").iterdir()}
    assert {"float32-0.txt", "_control-0.txt"} <= {path.name for path in written.iterdir()}  # they run at once


def test_second_command_is_refused_before_anything_is_changed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder.path / "own.py").write_text("")
    (folder.path / ".halfstep").mkdir()
    monkeypatch.chdir(folder.path)
    lock = try_lock(folder.path / ".halfstep/judge.lock")
    assert lock is not None
    with lock, pytest.raises(SystemExit) as ended:
        main(["judge", "own.py"])
    assert ended.value.code == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert f"is being judged by process {os.getpid()} (`" in line
    assert sorted(path.name for path in (folder.path / ".halfstep").iterdir()) == [".gitignore", "judge.lock"]


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_goes_on() -> Iterator[None]:
    """What a test has started ends with it, also where it fails: it would train for hours beside what comes later."""
    yield
    while _started:
        process = _started.pop()
        process.kill()
        process.wait()


def judged(folder: Folder, *arguments: str) -> subprocess.Popen[str]:
    """A process of `halfstep judge` that trains for long."""
    (folder.path / "train.py").write_text(
        "import keras, numpy as np\nopen('log.txt', 'a').write('new')\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
        "model.fit(np.zeros((640, 2)), np.zeros(640), epochs=100_000)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "halfstep", "judge", "train.py", "--variants=float32,mixed_bfloat16", *arguments],
        cwd=folder.path,
        env=folder.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _started.append(process)
    return process


def until(condition: Callable[[], bool], limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_kill_while_the_workspace_is_made_leaves_none(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    process, workspace = judged(folder), folder.path / files.JUDGE
    until((workspace.with_name("judge.new") / ".dvc/config").exists, 60)
    process.kill()
    process.wait()
    assert not workspace.exists()
    monkeypatch.chdir(folder.path)
    monkeypatch.setenv("PYTHONPATH", folder.environment["PYTHONPATH"])
    monkeypatch.setenv("HALFSTEP_OVERLAYS", "off")
    (folder.path / "train.py").write_text(
        "import os\nos.system('echo 1 > shell.txt')\nopen('log.txt', 'w').close()\nraise ValueError('theirs')\n"
    )
    with pytest.raises(SystemExit):
        main(["judge", "train.py"])
    shown = capfd.readouterr().err.splitlines()
    assert "theirs" in "".join(shown)
    assert f"judge: your code wrote log.txt: all is as before, and what is new was moved to {WRITTEN}/" in shown
    assert "judge: shell.txt changed while this ran, by another program" in shown
    assert not (folder.path / "log.txt").exists()
    assert shown[-1] == "judge: mend what is named above, then run the same command again; finished parts are kept"
    assert subprocess.check_output(["git", "log", "--format=%s"], cwd=workspace, text=True) == "The pipeline\n"
    assert "analytics = false" in (workspace / ".dvc/config").read_text()


@pytest.mark.slow
def test_pipeline_ends_with_its_parent_and_the_files_are_as_they_were(folder: Folder) -> None:
    folder.environment["HALFSTEP_OVERLAYS"] = "off"
    (folder.path / "log.txt").write_text("theirs")
    process = judged(folder)
    until(lambda: (folder.path / "log.txt").read_text() == "theirsnew", 120)
    process.send_signal(signal.SIGKILL)
    process.wait()

    def is_left(other: psutil.Process) -> bool:
        try:
            return str(folder.path) in other.cwd()
        except psutil.Error:  # it has just ended
            return False

    until(lambda: not any(map(is_left, psutil.process_iter())), 20)
    (folder.path / "train.py").write_text("raise ValueError('theirs')\n")
    ended = folder.halfstep("judge", "train.py")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert (folder.path / "log.txt").read_text() == "theirs"
