from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.errors import ProfileError
from stages.profile.alone import alone_on_machine

HOLD = """
import sys, time
from pathlib import Path
from stages.profile.alone import alone_on_machine
with alone_on_machine(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(lock: Path, seconds: float, root: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock), str(seconds)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_waits_and_says_for_whom(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = holder(tmp_path / "lock", 3, root)
    started_s = time.monotonic()
    with alone_on_machine(tmp_path / "lock"):
        assert time.monotonic() - started_s > 0.5
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"profile: waiting for process {first.pid} in {root}, which measures since ")
    assert first.wait(10) == 0


def test_a_holder_that_is_killed_holds_nothing(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = holder(tmp_path / "lock", 60, root)
    first.kill()
    first.wait(10)
    with alone_on_machine(tmp_path / "lock"):
        pass
    assert capsys.readouterr().err == ""


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ProfileError, match="cannot be opened"), alone_on_machine(tmp_path / "lock"):
        pass
    assert (tmp_path / "precious").read_text() == "text"
