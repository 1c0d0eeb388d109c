"""What the stages reject in place of a lock: the lock file of a stage, and the user's folder with that of `profile`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from halfstep.system import locking
from tests.faults.cases import Arrange, Case

_STUDY = {"train": {"variants": ["float32"], "seeds": [1]}}


def locked(name: str, command: str, make: Callable[[Path], object]) -> Case:
    """A case in which something else has the name of the stage's lock file."""

    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        path = locking.lock_file(command, root)
        path.parent.mkdir(parents=True)
        make(path)

    fragment = f".halfstep/locks/{command}.lock must be a regular file and is "
    return Case(f"{command}: the lock file is {name}", command, (fragment,), _STUDY, arrange, data="complete")


def machine_locked(name: str, fragment: str, arrange: Arrange) -> Case:
    """A case that `profile` rejects before it measures."""
    return Case(f"profile: {name}", "profile", (fragment,), _STUDY, arrange, data="complete")


def in_folder(make: Callable[[Path], object]) -> Arrange:
    """Makes something with the name of the user's folder."""

    def arrange(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "shared").mkdir()
        monkeypatch.setattr(locking, "_TEMPORARY_FOLDERS", (root / "shared",))
        make(root / "shared" / f"halfstep-{os.getuid()}")

    return arrange


def _link(path: Path) -> None:
    path.symlink_to("elsewhere")


def _lax(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _with_pipe(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.mkfifo(path / "profile.lock")


CASES = [
    locked("a named pipe", "prepare", os.mkfifo),
    locked("a folder", "compare", Path.mkdir),
    locked("a link", "profile", _link),
    machine_locked("the folder of its lock is open to others", "is drwxrwxrwx of user", in_folder(_lax)),
    machine_locked("the folder of its lock is a link", "it must be a folder that only user", in_folder(_link)),
    machine_locked("the folder of its lock is a file", "remove it, or ask its owner to", in_folder(Path.touch)),
    machine_locked("its lock on the machine is a named pipe", "profile.lock must be a reg", in_folder(_with_pipe)),
]
