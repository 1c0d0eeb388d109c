from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.machine import cgroups
from halfstep.prepare.images.processes import MOST_WORKERS, available_workers
from halfstep.system import files


@pytest.mark.parametrize(
    ("content", "workers"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("max 100000", MOST_WORKERS),
        (None, MOST_WORKERS),
    ],
    ids=["two cores", "one and a half", "half a core", "no limit", "no file"],
)
def test_workers_respect_the_cpu_quota(
    content: str | None, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    if content is not None:
        files.write_text(tmp_path / "sys/fs/cgroup/cpu.max", content)
    assert available_workers() == workers


def test_workers_respect_the_cpu_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7})
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    assert available_workers() == 3


def test_decoding_processes_do_not_import_the_fingerprint(root: Path) -> None:
    module = "halfstep.prepare.images.processes"
    check = f"import sys, {module}; print({{'psutil', 'halfstep.machine.fingerprint'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
