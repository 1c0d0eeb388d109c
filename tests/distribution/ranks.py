"""Starts the processes of a training on one host, or on several loopback hosts, in folders of their own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from stages import files
from stages.machine.fingerprint import fingerprint

ROOT = Path(__file__).parents[2]
LIMIT_S = 150.0


def create(folder: Path, prepared: Path, store: Path, params: Mapping[str, Any] | None = None) -> Path:
    """A folder in which a training can run: prepared images, the description of the machine, an empty store."""
    folder.mkdir(parents=True)
    shutil.copytree(prepared, folder / files.PREPARED)
    shutil.copy(store, folder / "mlflow.db")
    files.write_json(folder / files.ENVIRONMENT_FILE, fingerprint())
    (folder / "params.yaml").write_text(yaml.safe_dump(dict(params or {})))
    return folder


def tf_configs(hosts: int) -> list[dict[str, str]]:
    """`TF_CONFIG` for each of so many loopback hosts, on free ports; nothing for one host."""
    if hosts == 1:
        return [{}]
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(hosts)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        workers = [f"127.0.0.1:{found.getsockname()[1]}" for found in sockets]
    tasks = ({"type": "worker", "index": rank} for rank in range(hosts))
    return [{"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})} for task in tasks]


def start(folder: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """Starts `python -m <arguments>` in a folder."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Status, standard output and standard error of each process, when all have ended."""
    found = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=LIMIT_S)
            found.append((process.returncode, output, errors))
    finally:
        for process in processes:
            process.kill()
    return found
