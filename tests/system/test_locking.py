from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from halfstep.errors import BusyError, HalfstepError, ProfileError
from halfstep.system import locking, private
from halfstep.system.locking import lock_file, machine_lock, stage_lock, try_lock

HOLD = """
    import sys, time
    from pathlib import Path
    from halfstep.cli import cli_entry
    from halfstep.system.locking import machine_lock, stage_lock

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
    message = rf"^train@float32-0 is being run by process {holder.pid} \(`.*`\) on .* in {tmp_path} since 20"
    with pytest.raises(BusyError, match=message), stage_lock("train@float32-0"):
        pass
    with stage_lock("train@float32-1"), stage_lock("profile"):
        assert try_lock(lock_file("train@float32-0")) is None


def test_lock_is_free_after_its_holder_is_killed(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    with stage_lock("train@float32-0"):
        assert json.loads(lock_file("train@float32-0").read_text())["pid"] == os.getpid()


def test_stage_waits_for_a_holder_that_is_about_to_end(
    holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "WAIT_S", 10.0)
    holder.terminate()
    with stage_lock("train@float32-0"):
        pass


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
    assert line.startswith(f"profile: waiting for process {first.pid} (`")
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


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folder of this user is created."""
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setattr(private, "_TEMPORARY_FOLDERS", (tmp_path / "missing", folder))
    return folder


def test_machine_lock_has_one_place_whatever_the_environment_says(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = "from halfstep.system.private import private_folder; print(private_folder())"
    places = set()
    for job in ("a", "b"):
        (tmp_path / job).mkdir()
        for name in ("TMPDIR", "TEMP", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.setenv(name, str(tmp_path / job))
        done = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True, check=True)
        places.add(done.stdout)
    assert places == {f"/tmp/halfstep-{os.getuid()}\n"}


def test_only_this_user_can_open_the_machine_lock(shared: Path) -> None:
    with machine_lock():
        folder = shared / f"halfstep-{os.getuid()}"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not is_free(folder / "profile.lock")


def is_free(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def make_lax(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def make_foreign(path: Path) -> None:
    path.mkdir(mode=0o700)
    try:
        os.chown(path, 65534, 65534)
    except PermissionError:
        pytest.skip("only root can create a folder of another user")


def make_link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("make", [make_lax, make_foreign, make_link, os.mkfifo, Path.touch])
def test_folder_of_the_machine_lock_must_be_private(make: Callable[[Path], None], shared: Path) -> None:
    make(shared / f"halfstep-{os.getuid()}")
    with pytest.raises(ProfileError, match=r"^profile: .*: remove it, or ask its owner to$"), machine_lock():
        pass
    assert list(shared.rglob("*.lock")) == []


def test_folder_that_another_user_made_is_left_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    make_foreign(first / f"halfstep-{os.getuid()}")
    monkeypatch.setattr(private, "_TEMPORARY_FOLDERS", (first, second))
    assert private.private_folder() == second / f"halfstep-{os.getuid()}"


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # a short name, relative to the working directory


def make_link_to_file(path: Path) -> None:
    Path("precious").write_text("text")
    path.symlink_to(Path("precious").absolute())


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, make_socket, make_link_to_file])
@pytest.mark.parametrize("stage", [False, True], ids=["machine", "stage"])
def test_lock_must_be_a_regular_file(make: Callable[[Path], None], stage: bool, tmp_path: Path) -> None:
    path = lock_file("profile") if stage else Path("lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    make(Path("made"))
    Path("made").rename(path)
    lock = stage_lock("profile") if stage else machine_lock(path)
    with (
        pytest.raises(HalfstepError, match=rf"^the lock file {path} must be a regular file and is .*: remove it$"),
        lock,
    ):
        pass
    if Path("precious").exists():
        assert Path("precious").read_text() == "text"


PIPELINE = """
    import subprocess, sys, time
    stage = subprocess.Popen({command!r})
    print(stage.pid, flush=True)
    time.sleep(60)
"""


def test_stage_ends_when_its_pipeline_is_killed(root: Path, tmp_path: Path) -> None:
    """As DVC starts it: by a shell, whose place it takes."""
    start = "from halfstep.system.supervision import supervise\nsupervise(__name__)\n"
    (tmp_path / "hold.py").write_text(start + textwrap.dedent(HOLD))
    command = ["/bin/sh", "-c", f"exec {sys.executable} hold.py"]
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
    assert len(family) == 2
    pipeline.send_signal(signal.SIGKILL)
    pipeline.wait()
    gone, alive = psutil.wait_procs(family, timeout=10)
    pipeline.stdout.close()
    assert not alive
    assert len(gone) == len(family)
    assert try_lock(lock_file("train@float32-0")) is not None


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
