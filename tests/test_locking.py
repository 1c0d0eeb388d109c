from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stages import locking
from stages.errors import BusyError
from stages.locking import is_free, lock_file, only_writer

HOLD = """
    import sys, time
    from stages.errors import explained
    from stages.locking import only_writer

    @explained
    def main():
        with only_writer("train@float32-0"):
            print("held", flush=True)
            time.sleep(60)

    raise SystemExit(main())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr(locking, "WAIT_S", 0.0)
    return tmp_path


@pytest.fixture
def holder(root: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds `train@float32-0` in this folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD)],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_in_one_line_that_names_the_first(holder: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(BusyError, match=rf"^train@float32-0 is being run by process {holder.pid} on .* since 20"),
        only_writer("train@float32-0"),
    ):
        pass
    with only_writer("train@float32-1"), only_writer("profile"):
        assert not is_free("train@float32-0")


def test_the_lock_is_free_once_its_holder_is_killed(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert is_free("train@float32-0")
    with only_writer("train@float32-0"):
        assert json.loads(lock_file("train@float32-0").read_text())["pid"] == os.getpid()
        assert is_free("train@float32-0")  # to this process itself


def test_a_holder_that_is_about_to_end_is_waited_for(
    holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "WAIT_S", 10.0)
    holder.terminate()
    with only_writer("train@float32-0"):
        pass


def test_another_working_folder_has_locks_of_its_own(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    assert is_free("train@float32-0", tmp_path / "temporary")
    assert not is_free("train@float32-0", tmp_path)


def test_a_damaged_signature_is_no_failure(holder: subprocess.Popen[str]) -> None:
    lock_file("train@float32-0").write_text("{")
    with pytest.raises(BusyError, match="is being run by another process;"), only_writer("train@float32-0"):
        pass


PIPELINE = """
    import subprocess, sys, time
    stage = subprocess.Popen({command!r})
    print(stage.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("shell", [False, True], ids=["at once", "through a shell that stays"])
def test_a_stage_ends_with_the_pipeline_that_started_it(
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
    assert is_free("train@float32-0")
    assert "the pipeline that started it" in capfd.readouterr().err


def test_a_stage_whose_pipeline_has_ended_before_it_begins_does_not_begin(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_STAGE", "train@float32-0")
    monkeypatch.setattr(locking, "_pipeline", lambda: None)
    with pytest.raises(SystemExit) as caught, only_writer("train@float32-0"):
        pytest.fail("it has begun")
    assert caught.value.code == 143


def test_who_starts_a_stage_by_hand_may_leave(root: Path, tmp_path: Path) -> None:
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
