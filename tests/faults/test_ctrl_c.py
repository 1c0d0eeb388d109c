"""Ctrl-C at several moments of each stage: one line, status 130, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from halfstep.system import files
from tests.programs import module_of
from tests.small_study import training_metrics

TRAIN = "train --variant float32 --seed 0"
TIMEOUT_S = 120.0

pytestmark = pytest.mark.slow


@pytest.fixture
def start(
    project: Path, root: Path, monkeypatch: pytest.MonkeyPatch, write_params: Callable[..., Path]
) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a stage as the leader of a process group, as a shell does."""
    write_params(
        train={"variants": ["float32"], "epochs": 200, "batch_size": 8},
        profile={"max_seconds": 60, "inference_batch_sizes": [1]},
        tracking={},
    )
    folder = files.train_dir("float32", 0)
    training_metrics(test_accuracy=0.5).write(folder / "metrics.json")
    files.write_manifest(folder)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    started: list[subprocess.Popen[str]] = []

    def start(command: str) -> subprocess.Popen[str]:
        module, *arguments = command.split()
        process = subprocess.Popen(
            [sys.executable, "-m", module_of(module), *arguments],
            env=os.environ | {"PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def has_loaded(pid: int, library: str) -> bool:
    try:
        return library in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def stage_of(process: subprocess.Popen[str]) -> int:
    """The process of the stage: the child of the one that was started. 0 before it is there."""
    with suppress(psutil.Error):
        return next((child.pid for child in psutil.Process(process.pid).children()), 0)
    return 0


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    ends_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def interrupt(process: subprocess.Popen[str]) -> None:
    """Sends SIGINT to the whole group, as a terminal does, and checks how it ends."""
    family = [psutil.Process(process.pid), *descendants(process.pid)]
    os.killpg(process.pid, signal.SIGINT)
    started_s = time.monotonic()
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    _, alive = psutil.wait_procs(family, timeout=3)
    assert "Traceback" not in stderr
    # Another test may measure at the same time, which `profile` waits for.
    lines = [line for line in stderr.splitlines() if not line.startswith("profile: waiting for process")]
    assert lines == ["interrupted"], stderr
    assert process.returncode == 130
    assert alive == []
    assert time.monotonic() - started_s < 10


@pytest.mark.parametrize(("command", "library"), [("environment", "pydantic_core"), (TRAIN, "libtensorflow_framework")])
def test_interrupted_import(command: str, library: str, start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start(command)
    wait_until(lambda: has_loaded(stage_of(process), library), process)
    interrupt(process)


@pytest.mark.parametrize("moment", ["import in a fork server", "timing"])
def test_interrupted_profile(moment: str, start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("profile")

    def workers() -> list[psutil.Process]:  # the children of the fork server
        return [other for child in descendants(stage_of(process)) for other in descendants(child.pid)]

    if moment == "import in a fork server":
        wait_until(
            lambda: any(has_loaded(child.pid, "libtensorflow_framework") for child in descendants(process.pid)), process
        )
    else:
        wait_until(lambda: len(workers()) == 2, process)
        time.sleep(8.0)
    interrupt(process)
