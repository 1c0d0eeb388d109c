"""The fleet's commands do not run at once in one checkout."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages import locking
from stages.errors import BusyError
from stages.fleet import preflight, profile, train

SETTINGS: Any = SimpleNamespace(train=SimpleNamespace(epochs=1), compare=SimpleNamespace(register=None))


@pytest.mark.parametrize("command", [train.train, profile.profile], ids=["train", "profile"])
def test_second_command_is_refused(
    command: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(locking, "WAIT_S", 0.0)
    monkeypatch.setattr(preflight, "checked_checkout", lambda: SETTINGS)
    path = locking.lock_file("fleet")
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as another process does
        with pytest.raises(BusyError, match="fleet is being run by"):
            command()
