from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stages import locking
from stages.errors import BusyError, ProfileError
from stages.locking import is_unlocked, lock_file, machine_lock, stage_lock, try_lock

HOLD = """
    import sys, time
    from pathlib import Path
    from stages.errors import cli_entry
    from stages.locking import machine_lock, stage_lock

    @cli_entry
    def main():
        with machine_lock(Path(sys.argv[1])) if sys.argv[1:] else stage_lock("train@float32-0"):
            print("held", flush=True)
            time.sleep(float(sys.argv[2]) if sys.argv[2:] else 60)

    raise SystemExit(main())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr(locking, "WAIT_S", 0.0)
    return tmp_path


def start_holder(root: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a process in the working directory that holds a lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD), *arguments],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def holder(root: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of `train@float32-0` in the working directory."""
    process = start_holder(root)
    yield process
    process.kill()
    process.communicate()


def test_second_process_is_refused_with_the_name_of_the_first(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    message = rf"^train@float32-0 is being run by process {holder.pid} on .* in {tmp_path} since 20"
    with pytest.raises(BusyError, match=message), stage_lock("train@float32-0"):
        pass
    with stage_lock("train@float32-1"), stage_lock("profile"):
        assert not is_unlocked("train@float32-0")


def test_lock_is_free_after_its_holder_is_killed(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert is_unlocked("train@float32-0")
    with stage_lock("train@float32-0"):
        assert json.loads(lock_file("train@float32-0").read_text())["pid"] == os.getpid()
        assert is_unlocked("train@float32-0")  # for this process


def test_stage_waits_for_a_holder_that_is_about_to_end(
    holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "WAIT_S", 10.0)
    holder.terminate()
    with stage_lock("train@float32-0"):
        pass


def test_each_working_directory_has_its_own_locks(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    assert is_unlocked("train@float32-0", tmp_path / "temporary")
    assert not is_unlocked("train@float32-0", tmp_path)


@pytest.mark.parametrize("content", ["{", "", "[1]", '{"pid": 1}'])
def test_unknown_holder_is_another_process(content: str, holder: subprocess.Popen[str]) -> None:
    lock_file("train@float32-0").write_text(content)
    with pytest.raises(BusyError, match="is being run by another process;"), stage_lock("train@float32-0"):
        pass


def test_refused_process_does_not_change_the_lock_file(holder: subprocess.Popen[str]) -> None:
    before = lock_file("train@float32-0").read_text()
    assert try_lock(lock_file("train@float32-0")) is None
    assert lock_file("train@float32-0").read_text() == before


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_leaves_the_outputs_to_dvc(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with stage_lock("profile"), warnings.catch_warnings():
        warnings.simplefilter("error")
        lock = try_lock(lock_file("profile"))
        assert lock is not None
        with lock:
            pass


def test_second_profile_waits_and_names_the_first(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = start_holder(root, "lock", "2")
    started_s = time.monotonic()
    with machine_lock(tmp_path / "lock"):
        assert time.monotonic() - started_s > 0.5
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"profile: waiting for process {first.pid} on ")
    assert f" in {tmp_path} since 20" in line
    assert first.wait(10) == 0


def test_profile_does_not_wait_for_a_killed_process(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = start_holder(root, "lock")
    first.kill()
    first.wait(10)
    with machine_lock(tmp_path / "lock"):
        pass
    assert capsys.readouterr().err == ""


def test_machine_lock_is_shared_by_all_users(tmp_path: Path) -> None:
    with machine_lock(tmp_path / "lock"):
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o666


def test_machine_lock_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ProfileError, match="lock cannot be opened"), machine_lock(tmp_path / "lock"):
        pass
    assert (tmp_path / "precious").read_text() == "text"


PIPELINE = """
    import subprocess, sys, time
    stage = subprocess.Popen({command!r})
    print(stage.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("shell", [False, True], ids=["directly", "through a shell"])
def test_stage_ends_when_its_pipeline_is_killed(
    shell: bool, root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hold.py").write_text(textwrap.dedent(HOLD))
    command = [sys.executable, "hold.py"]
    if shell:
        command = ["/bin/sh", "-c", f"{sys.executable} hold.py; true"]
    pipeline = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PIPELINE.format(command=command))],
        env=os.environ | {"PYTHONPATH": str(root), "DVC_STAGE": "train@float32-0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert pipeline.stdout is not None
    started = psutil.Process(int(pipeline.stdout.readline()))
    assert pipeline.stdout.readline() == "held\n"
    family = [started, *started.children()]
    pipeline.send_signal(signal.SIGKILL)
    pipeline.wait()
    gone, alive = psutil.wait_procs(family, timeout=10)
    pipeline.stdout.close()
    assert not alive
    assert len(gone) == len(family)
    assert is_unlocked("train@float32-0")
    assert "the pipeline that started it" in capfd.readouterr().err


def test_stage_does_not_start_after_its_pipeline_has_ended(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_STAGE", "train@float32-0")
    monkeypatch.setattr(locking, "_pipeline", lambda: None)
    with pytest.raises(SystemExit) as caught, stage_lock("train@float32-0"):
        pytest.fail("the stage has started")
    assert caught.value.code == 143


def test_stage_started_by_hand_outlives_its_shell(root: Path, tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(textwrap.dedent(HOLD))
    shell = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PIPELINE.format(command=[sys.executable, "hold.py"]))],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None
    started = psutil.Process(int(shell.stdout.readline()))
    assert shell.stdout.readline() == "held\n"
    shell.kill()
    shell.wait()
    time.sleep(3 * locking._POLL_S)
    assert started.status() != psutil.STATUS_ZOMBIE
    started.kill()
    shell.stdout.close()
