"""What travels to a node, and the clone that is made of it there."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from stages import files
from stages.errors import FleetError
from stages.fleet import bootstrap, parcel
from stages.tracking import provenance

REMOTE = "[core]\n    remote = store\n['remote \"store\"']\n    url = ../../remote\n"


def git(*arguments: str) -> str:
    author = {f"GIT_{role}_{key}": "tests" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    done = subprocess.run(["git", *arguments], env=os.environ | author, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, a remote and the digests of `environment`."""
    root = tmp_path / "home"
    (root / ".dvc").mkdir(parents=True)
    monkeypatch.chdir(root)
    for name in (files.SOURCE_FILE, files.MODEL_FILE, files.TASK_FILE):
        files.write_json(root / name, {"name": name.stem})
    ignored = {".gitignore": "/data/\n/.halfstep/\n", ".dvc/.gitignore": "/config.local\n/tmp\n"}
    code = {"kept.py": "1\n", "changed.py": "1\n", "removed.py": "1\n"}
    for path, text in ({".dvc/config": REMOTE} | ignored | code).items():
        (root / path).write_text(text)
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "first")
    return root


def change(root: Path) -> None:
    (root / "changed.py").write_text("2\n")
    (root / "removed.py").unlink()
    (root / "added.py").write_text("new\n")
    git("add", "added.py")
    (root / "untracked.py").write_text("stays at home\n")


def names(root: Path) -> set[str]:
    return {path.name for path in root.glob("*.py")}


def test_clone_has_the_commit_with_its_tracked_changes_and_nothing_untracked(home: Path, tmp_path: Path) -> None:
    change(home)
    (home / "dvc.lock").write_text("schema: '2.0'\n")
    (home / ".dvc/config").write_text(REMOTE.replace("../../remote", "s3://bucket/store"))
    local = "['remote \"store\"']\n    secret_access_key = secret\n    endpointurl = http://host:9000\n"
    (home / ".dvc/config.local").write_text(local)
    clone = tmp_path / "clone"
    clone.mkdir()
    sent = parcel.build()
    assert bootstrap.update(clone, sent) == clone
    assert names(clone) == {"kept.py", "changed.py", "added.py"}
    assert (clone / "changed.py").read_text() == "2\n"
    assert (clone / "dvc.lock").read_text() == "schema: '2.0'\n"
    assert files.read_json(clone / ".halfstep/fleet.json") == {
        **{name: {"name": name} for name in ("source", "model", "task")},
        "checkout": provenance.checkout_id(),
    }
    os.chdir(clone)
    assert git("rev-parse", "HEAD") == sent["commit"]
    assert "secret" not in str(sent)
    told = (clone / ".dvc/config.local").read_text()
    assert 'url = "s3://bucket/store"' in told
    assert 'endpointurl = "http://host:9000"' in told


def test_clone_is_used_again(home: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    (clone / "data").mkdir(parents=True)
    change(home)
    bootstrap.update(clone, parcel.build())
    (clone / "data" / "result").write_text("kept")
    (clone / "stray.py").write_text("an interrupted task left it")
    inode = (clone / "kept.py").stat().st_ino
    git("reset", "--hard", "--quiet")
    os.utime(home / "kept.py")
    clean = parcel.build()
    bootstrap.update(clone, {**clean, "bundle": b"not needed: the clone has the commit"})
    assert clean["changes"] == ""
    assert f'url = "{tmp_path / "remote"}"' in (clone / ".dvc/config.local").read_text()  # relative to .dvc at home
    assert names(clone) == {"kept.py", "changed.py", "removed.py"}
    assert (clone / "changed.py").read_text() == "1\n"
    assert (clone / "data" / "result").read_text() == "kept"
    assert (clone / "kept.py").stat().st_ino == inode


def test_the_same_changes_are_the_same_parcel(home: Path) -> None:
    change(home)
    first = parcel.build()
    time.sleep(1.1)  # git's dates are seconds
    second = parcel.build()
    assert first["tree"] == second["tree"] != first["commit"]
    assert first["changes"] == second["changes"] != ""
    assert git("status", "--porcelain").count("\n") == 3  # nothing was stashed away
    assert git("for-each-ref") == git("for-each-ref", "refs/heads")


def test_a_checkout_below_the_root_of_the_repository(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = home / "inner"
    (inner / ".dvc").mkdir(parents=True)
    (inner / ".dvc/config").write_text(REMOTE)
    monkeypatch.chdir(inner)
    for name in (files.SOURCE_FILE, files.MODEL_FILE, files.TASK_FILE):
        files.write_json(inner / name, {"name": name.stem})
    git("add", "--force", ".dvc/config")
    git("commit", "--quiet", "--message", "inner")
    clone = tmp_path / "clone"
    clone.mkdir()
    work = bootstrap.update(clone, parcel.build())
    assert work == clone / "inner"
    assert (work / ".halfstep/fleet.json").is_file()


def test_tasks_at_the_same_time_have_clones_of_their_own(tmp_path: Path) -> None:
    with bootstrap.locked_slot(tmp_path) as (first, lock):
        with bootstrap.locked_slot(tmp_path) as (second, _):
            assert (first.name, second.name) == ("slot-0", "slot-1")
        child = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    try:
        with bootstrap.locked_slot(tmp_path) as (other, _):  # the worker has ended, and its program has not
            assert other.name == "slot-1"
    finally:
        child.kill()
        child.wait()
    with bootstrap.locked_slot(tmp_path) as (free, _):
        assert free.name == "slot-0"


def test_git_that_fails_is_one_line(home: Path) -> None:
    with pytest.raises(FleetError, match=r"^git show failed: fatal: .*'unknown'"):
        parcel.git("show", "unknown")
