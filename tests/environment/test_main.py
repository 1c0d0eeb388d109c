from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfstep.environment.writing import remove_unlisted_arms
from halfstep.inputs.head_digests import HEAD_DIGESTS
from halfstep.params.schema import TrainParams, Variant
from halfstep.system import files

KEYS = ["compare", "model", "prepare", "profile", "serve", "source", "task", "tracking", "train"]


@pytest.fixture
def run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], subprocess.CompletedProcess[str]]:
    monkeypatch.chdir(tmp_path)

    def start() -> subprocess.CompletedProcess[str]:
        variables = os.environ | {"PYTHONPATH": str(root)}
        command = [sys.executable, "-m", "stages.environment"]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)

    return start


def test_stage_writes_the_files_that_other_stages_depend_on(
    run: Callable[[], Any], write_params: Callable[..., Path]
) -> None:
    def written() -> dict[str, bytes]:
        folder = Path("data/keys")
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    write_params()
    done = run()
    assert done.returncode == 0
    assert sorted(path.name for path in Path("data").iterdir()) == ["environment.json", "keys"]
    first = written()
    assert sorted(name for name in first if not name.startswith("variants")) == KEYS
    assert {json.loads(first[f"variants/{name}"])["onednn"] for name in ("float32", "mixed_bfloat16")} == {True}
    float16 = json.loads(first["variants/mixed_float16"])["onednn"]
    assert float16 is Variant(policy="mixed_float16").uses_onednn
    assert ("mixed_float16: without oneDNN" in done.stdout) is not float16
    assert json.loads(first["source"]) == {"source": "digits"}
    assert json.loads(first["model"]) == {"name": "cnn"}
    assert json.loads(first["task"]) == {"name": "images"}
    assert run().returncode == 0
    assert written() == first


def test_own_task_does_not_use_data_and_model(run: Callable[[], Any], write_params: Callable[..., Path]) -> None:
    Path("own.py").write_text("def build(*, batch_size, seed, width): ...")
    write_params(
        task={"name": "own:build", "arguments": {"width": 8}},
        data={"source": "folder", "path": "no_such", "test_fraction": 0.6, "validation_fraction": 0.6},
        model={"name": "no_such:build"},
        train={"batch_size": 16, "seeds": [3, 4]},
    )
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    written = {name: json.loads(Path("data/keys", name).read_text()) for name in KEYS}
    assert (written["source"]["source"], written["source"]["seeds"]) == (None, [3])
    assert list(written["source"]["variants"]) == ["float32", "mixed_float16", "mixed_bfloat16"]
    assert written["model"] == {"name": None}
    sha256 = written["task"].pop("sha256")
    assert len(sha256) == 64
    assert written["task"] == {
        "name": "own:build",
        "files": ["own.py"],
        "arguments": {"width": 8},
        "batch_size": 16,
        "seed": 3,
        "depends": {},
    }


def test_all_errors_are_listed_and_no_file_is_changed(
    run: Callable[[], Any], write_params: Callable[..., Path]
) -> None:
    write_params()
    run()
    files.write_text(files.train_dir("old", 3) / "metrics.json", "{}")
    before = {path: path.stat().st_mtime_ns for path in Path("data").rglob("*")}
    write_params(
        data={"source": "folder", "path": "no_such"},
        model={"name": "resnet21"},
        train={"epochs": -1, "epcohs": 1},
        compare={"baseline": "other"},
        tracking={"uri": "mlruns"},
    )
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    named = {line.split()[1] for line in done.stderr.splitlines()}
    assert named == {"train.epochs", "train.epcohs", "compare.baseline", "data.path", "model.name", "tracking.uri"}
    assert all(line.startswith("params.yaml: ") for line in done.stderr.splitlines())
    assert {path: path.stat().st_mtime_ns for path in Path("data").rglob("*")} == before


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of the fleet with the head's digests."""
    monkeypatch.chdir(tmp_path)
    digests = {name: {"name": f"{name} of the head"} for name in ("source", "model", "task")}
    files.write_json(HEAD_DIGESTS, digests | {"checkout": "a1b2", "git": {}})
    return tmp_path


def test_clone_of_the_fleet_uses_the_digests_of_its_head(
    clone: Path, run: Callable[[], Any], write_params: Callable[..., Path]
) -> None:
    write_params(data={"source": "folder", "path": "no_such"})
    done = run()
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "environment: .halfstep/fleet.json marks a copy that the fleet made, so the digests of data, model"
    )
    for name in ("source", "model", "task"):
        assert json.loads(Path("data/keys", name).read_text()) == {"name": f"{name} of the head"}


def test_clone_of_the_fleet_checks_everything_else(
    clone: Path, run: Callable[[], Any], write_params: Callable[..., Path]
) -> None:
    write_params(data={"source": "folder", "path": "no_such"}, model={"name": "resnet21"}, tracking={"uri": "mlruns"})
    done = run()
    assert done.returncode == 2
    assert {line.split()[1] for line in done.stderr.splitlines()} == {"model.name", "tracking.uri"}


@pytest.mark.parametrize(("content", "reason"), [('{"source": {}}', "model: Field required"), ("{", "Invalid JSON")])
def test_damaged_digests_of_the_head_give_one_line(
    content: str, reason: str, clone: Path, run: Callable[[], Any], write_params: Callable[..., Path]
) -> None:
    write_params()
    HEAD_DIGESTS.write_text(content)
    done = run()
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert f"fleet.json cannot be used ({reason}" in done.stderr
    assert not Path("data").exists()


def test_limit_of_virtual_memory_gives_one_line(
    root: Path, tmp_path: Path, write_params: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_params()
    done = subprocess.run(
        ["bash", "-c", f"ulimit -v 2500000; '{sys.executable}' -m stages.environment"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert (done.returncode, done.stderr) == (
        1,
        "the limit of virtual memory is 2.4 GiB (`ulimit -v`); TensorFlow needs at least 3.5 GiB: raise it with "
        "`ulimit -v unlimited`\n",
    )
    assert not Path("data").exists()


def _may_mount() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


@pytest.mark.skipif(not _may_mount(), reason="this user may not mount")
def test_read_only_disk_gives_one_line(
    root: Path, tmp_path: Path, write_params: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_params()
    mount = f"mount --bind '{tmp_path}' '{tmp_path}' && mount -o remount,ro,bind '{tmp_path}' && cd '{tmp_path}'"
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", f"{mount} && '{sys.executable}' -m stages.environment"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith(f"{tmp_path}: this user may not write here (a read-only disk, ")


def test_results_that_are_no_longer_listed_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variant in ("float32", "mixed_float16"):
        for seed in (0, 1):
            files.write_text(files.train_dir(variant, seed) / "metrics.json", "{}")
        files.write_text(files.profile_dir(variant) / "summary.json", "{}")
    files.write_text(files.profile_dir(files.CONTROL) / "summary.json", "{}")
    files.write_text(files.TRAIN / ".gitignore", "/float32-0")
    remove_unlisted_arms(TrainParams(variants=("float32",), seeds=(1, 2)))
    assert {path.name for path in files.TRAIN.iterdir()} == {"float32-1", ".gitignore"}
    assert {path.name for path in files.PROFILE.iterdir()} == {"float32", files.CONTROL}
