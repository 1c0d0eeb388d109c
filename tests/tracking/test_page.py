"""`python -m halfstep ui` serves the store of the checkout at the address that it prints."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from halfstep.tracking.command import VARIABLES
from halfstep.tracking.store import experiment_id
from tests.ports import free_port

START_S = 60.0


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_template: Path, write_params: Callable[..., Path]
) -> Path:
    monkeypatch.chdir(tmp_path)
    write_params(tracking={"experiment": "Default"})
    (tmp_path / "mlflow.db").write_bytes(store_template.read_bytes())
    return tmp_path


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "halfstep", "ui", *arguments],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.slow
def test_address_is_answered_and_ctrl_c_ends_the_server(project: Path, root: Path, port: int) -> None:
    process = start(root, "--port", str(port))
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        assert address == f"http://127.0.0.1:{port}/#/experiments/0/runs?workflowType=machine_learning"
        ends_s = time.monotonic() + START_S
        page = ""
        while "<title>MLflow" not in page:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < ends_s, page
            time.sleep(0.2)
            with suppress(OSError), urllib.request.urlopen(address, timeout=2) as answer:
                page = answer.read().decode()
        server = psutil.Process(process.pid)
        assert "--host=127.0.0.1" in server.cmdline(), "only this machine reaches it"
        assert VARIABLES.items() <= server.environ().items()
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=20)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_nothing_to_show_and_a_port_that_is_taken_are_one_line(project: Path, root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        _, stderr = (process := start(root, "--port", str(number))).communicate(timeout=START_S)
    assert (process.returncode, stderr.count("\n")) == (2, 1)
    assert f"--port {number} cannot be used" in stderr
    (project / "mlflow.db").unlink()
    _, stderr = (process := start(root)).communicate(timeout=START_S)
    assert (process.returncode, stderr.count("\n")) == (2, 1)
    assert "has no experiment Default: run `dvc repro` first" in stderr
    assert experiment_id(project / "mlflow.db", "Default") is None
    assert not (project / "mlflow.db").exists()
