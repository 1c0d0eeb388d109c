"""A Ray cluster of a head and two nodes on this machine, and a checkout with a DVC remote that they share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.pipeline.conftest import Checkout, pristine
from tests.ports import free_port

__all__ = ["pristine"]

START_S = 60.0
_STORE = "--object-store-memory=100000000"  # Ray's smallest is 75 MB
_COMMON = {"RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": "-1"}


@dataclass
class Cluster:
    """Processes of `ray start --block`, one for each machine."""

    folder: Path
    address: str
    processes: dict[str, psutil.Process] = field(default_factory=dict)

    def start(self, name: str, *arguments: str, variables: Mapping[str, str]) -> None:
        """Starts a machine, and waits until its Ray says so."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *arguments]
        log = self.folder / f"{name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(command, env=os.environ | dict(variables), stdout=stream, stderr=stream)
        self.processes[name] = psutil.Process(process.pid)
        wait_for(lambda: "Ray runtime started" in log.read_text(), START_S, log.read_text)

    def add(self, name: str, variables: Mapping[str, str]) -> None:
        """Starts a node of two cores with these environment variables."""
        own = {"HALFSTEP_FLEET": str(self.folder / name), "DVC_SITE_CACHE_DIR": str(self.folder / f"{name}-dvc")}
        arguments = (f"--address={self.address}", "--num-cpus=2", _STORE)
        self.start(name, *arguments, variables=_COMMON | own | dict(variables))

    def kill(self, name: str, *, only_ray: bool = False) -> None:
        """Kills everything that runs on a machine at once, as a power cut does; or its raylet alone."""
        tree = [self.processes[name], *self.processes[name].children(recursive=True)]
        for process in tree:
            if not only_ray or process.name() == "raylet":
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def trainings(self, name: str) -> list[psutil.Process]:
        """The trainings that run on a machine: of each, the process above it."""
        processes = []
        for process in self.processes[name].children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                command, above = process.cmdline(), process.parent()
                if "stages.train" in command and (above is None or above.cmdline() != command):
                    processes.append(process)
        return processes

    def stop(self) -> None:
        """Ends all machines and what they started."""
        for name in reversed(self.processes):
            with suppress(psutil.NoSuchProcess):
                self.kill(name)


def wait_for(condition: Callable[[], object], limit_s: float, explain: Callable[[], object] = str) -> None:
    """Waits until a condition holds, at most `limit_s` seconds."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, explain()
        time.sleep(0.1)


@contextmanager
def cluster_of(folder: Path, nodes: Mapping[str, Mapping[str, str]]) -> Iterator[Cluster]:
    """A head that offers no cores, and nodes of two cores with the given environment variables."""
    port, temporary = free_port(), tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets need a short path
    cluster = Cluster(folder, f"127.0.0.1:{port}")
    try:
        head = ("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={temporary}")
        cluster.start("head", *head, _STORE, variables=_COMMON)
        for name, variables in nodes.items():
            cluster.add(name, variables)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(autouse=True)
def as_users_start_it(cold_python: None) -> None:
    """Every stage starts as users start it."""


@pytest.fixture
def home(pristine: Checkout, tmp_path: Path) -> Checkout:
    """A checkout with a folder as its DVC remote, committed."""
    checkout = pristine.copy(tmp_path / "home")
    checkout.check_output("dvc", "remote", "add", "--default", "store", str(tmp_path / "remote"))
    checkout.commit("A remote")
    return checkout
