"""Edits of a workspace are put back after an experiment that was killed while it was made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stages import workspace

NOBODY = 2**22 + 1  # no process has this number


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    git("init", "--initial-branch", "main")
    git("config", "user.email", "someone@example.org")
    git("config", "user.name", "Someone")
    (tmp_path / "params.yaml").write_text("a: 1\n")
    (tmp_path / "code.py").write_text("1\n")
    git("add", "--all")
    git("commit", "--message", "first")
    (tmp_path / "params.yaml").write_text("a: 2  # an edit\n")
    return tmp_path


def stash_as_dvc_does() -> None:
    git("stash", "push")
    git("checkout", "--detach")
    Path("params.yaml").write_text("a: 3  # of the experiment\n")
    Path("dvc.lock").write_text("of the experiment\n")


def test_edit_and_branch_are_put_back_after_a_kill(checkout: Path) -> None:
    workspace.protect()
    stash_as_dvc_does()
    workspace.hold(NOBODY)
    assert not workspace.is_as_before()
    assert workspace.recover() == ["dvc.lock", "params.yaml"]
    assert (checkout / "params.yaml").read_text() == "a: 2  # an edit\n"
    assert not (checkout / "dvc.lock").exists()
    branch = subprocess.run(["git", "branch", "--show-current"], capture_output=True, text=True, check=True)
    assert branch.stdout == "main\n"
    assert workspace.recover() == []


def test_nothing_is_put_back_while_the_experiment_is_being_made(checkout: Path) -> None:
    workspace.protect()
    stash_as_dvc_does()
    workspace.hold(os.getppid())
    assert workspace.recover() == []
    assert "experiment" in (checkout / "params.yaml").read_text()


def test_later_edits_are_the_users_own(checkout: Path) -> None:
    workspace.protect()
    assert workspace.is_as_before()
    workspace.release()
    (checkout / "params.yaml").write_text("a: 4\n")
    assert workspace.recover() == []
    assert (checkout / "params.yaml").read_text() == "a: 4\n"


def test_file_that_was_removed_stays_removed(checkout: Path) -> None:
    (checkout / "code.py").unlink()
    workspace.protect()
    git("checkout", "--", "code.py")
    workspace.hold(NOBODY)
    assert workspace.recover() == ["code.py"]
    assert not (checkout / "code.py").exists()


@pytest.mark.parametrize("name", ["refs/exps/stash.lock", "objects/65/2a2b0bad584853f7c47da6ae996f90a7ac2020.lock"])
@pytest.mark.parametrize("held", [True, False])
def test_lock_of_an_experiment_that_was_killed_does_not_stop_the_next(checkout: Path, held: bool, name: str) -> None:
    """As dulwich leaves it where it is killed while it writes the reference or an object."""
    lock = checkout / ".git" / name
    lock.parent.mkdir(exist_ok=True)
    workspace.protect()
    lock.touch()
    if held:
        workspace.hold(NOBODY)
        workspace.recover()
    else:
        workspace.release()
        workspace.protect()
        assert lock.exists(), "a process may be writing it now"
        os.utime(lock, (0, 0))
        workspace.protect()
    assert not lock.exists()
