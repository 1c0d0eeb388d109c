"""No process is left when the parent of a supervisor dies, or when its command ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.fleet.conftest import wait_for

# The child that matters is one that its own parent does not end: `dvc` leaves its stage so.
COMMAND = "import subprocess, sys; subprocess.Popen(['sleep', '101']); subprocess.run(['sleep', '102'])"
PARENT = (
    "import subprocess, sys, time\n"
    "command = [sys.executable, '-m', 'stages.fleet.supervisor', sys.executable, '-c', sys.argv[1]]\n"
    "subprocess.Popen(command, stdin=subprocess.PIPE)\n"
    "time.sleep(100)\n"
)


def descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def sleeping(found: list[psutil.Process]) -> bool:
    return sum(process.name() == "sleep" for process in found) == 2


@pytest.fixture
def parent(root: Path) -> subprocess.Popen[bytes]:
    started = subprocess.Popen([sys.executable, "-c", PARENT, COMMAND], cwd=root)
    wait_for(lambda: sleeping(descendants(started)), 20.0)
    return started


def test_everything_ends_with_the_parent(parent: subprocess.Popen[bytes]) -> None:
    found = descendants(parent)
    assert len(found) == 4
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(found, timeout=10.0)
    assert alive == []


def test_everything_ends_with_a_killed_command(parent: subprocess.Popen[bytes]) -> None:
    found = descendants(parent)
    (command,) = [process for process in found if process.cmdline()[1:2] == ["-c"]]
    command.kill()
    wait_for(lambda: all(has_ended(process) for process in found), 10.0)
    parent.kill()
    parent.wait()


@pytest.mark.parametrize(("command", "status"), [("raise SystemExit(75)", 75), ("pass", 0)])
def test_status_of_the_command(root: Path, command: str, status: int) -> None:
    arguments = [sys.executable, "-m", "stages.fleet.supervisor", sys.executable, "-c", command]
    with subprocess.Popen(arguments, cwd=root, stdin=subprocess.PIPE) as started:
        assert started.wait(timeout=20.0) == status


def test_a_process_that_ignores_sigterm_is_killed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import stages.fleet.supervisor as s, sys; s.GRACE_S = 1.0;"
        "raise SystemExit(s.main(['sh', '-c', 'trap \"\" TERM; (while true; do sleep 0.1; done) & exit 3']))"
    )
    started_s = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE) as started:
        assert started.wait(timeout=20.0) == 3
    assert time.monotonic() - started_s < 15.0
