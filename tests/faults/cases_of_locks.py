"""What the stages reject in place of a lock; tests/system/test_locking.py has what else can be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halfstep.system import locking, private
from tests.faults.cases import Case

_STUDY = {"train": {"variants": ["float32"], "seeds": [1]}}


def _pipe(root: Path, _: pytest.MonkeyPatch) -> None:
    path = locking.lock_file("compare", root)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)


def _lax(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "shared").mkdir()
    monkeypatch.setattr(private, "_TEMPORARY_FOLDERS", (root / "shared",))
    folder = root / "shared" / f"halfstep-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)


CASES = [
    Case(
        "compare: the lock file is a named pipe",
        "compare",
        (".halfstep/locks/compare.lock must be a regular file and is ",),
        _STUDY,
        _pipe,
        data="complete",
    ),
    Case(
        "profile: the folder of its lock is open to others",
        "profile",
        ("is drwxrwxrwx of user",),
        _STUDY,
        _lax,
        data="complete",
    ),
]
