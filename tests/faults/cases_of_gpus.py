"""GPUs that do not work, are hidden or are not supported. `environment` reports them before any work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from halfstep.environment import gpu_preflight
from halfstep.machine import gpu_failures
from tests.fake_nvml import Device, FakeNvml
from tests.faults.cases import Arrange, Case

NAME = "NVIDIA GeForce RTX 5090"
XLA = "LLVM ERROR: PTX version 8.5 does not"
MISSING = "I0000 1] Could not load dynamic library 'libcusolver.so.11'; dlerror: none"
REQUIRED: dict[str, Any] = {"train": {"require_gpu": True}}
_FAILS = ({"devices": 1}, {"step": "a convolution in float32"})


def _with_gpu(monkeypatch: pytest.MonkeyPatch, visible: str | None = None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(Device(name=NAME, uuid="GPU-1")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def _tried(log: str, *events: dict[str, Any], end: str = "pass") -> Arrange:
    """A GPU that the driver lists, and a process that tries it, which prints this and ends like this."""
    lines = "\n".join(map(json.dumps, events))
    code = f"import os, sys, time; print({lines!r}, flush=True); print({log!r}, file=sys.stderr, flush=True); {end}"

    def arrange(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _with_gpu(monkeypatch)
        monkeypatch.setattr(gpu_preflight, "operations", lambda _: [sys.executable, "-c", code])

    return arrange


def _hangs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tried("", *_FAILS, end="time.sleep(600)")(root, monkeypatch)
    run = gpu_preflight.run
    monkeypatch.setattr(gpu_preflight, "run", lambda command: run(command, 1.0))


def _exclusive(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tried("", {"devices": 1}, {"traced": True})(root, monkeypatch)
    monkeypatch.setattr(gpu_preflight, "compute_mode", lambda _: 3)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(root / "nowhere"))


def _hidden(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_gpu(monkeypatch, "-1")


def _amd(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr(gpu_failures, "_AMD_DEVICE", Path("/dev/null"))


def _case(name: str, fragment: str, arrange: Arrange, **others: Any) -> Case:
    return Case(f"GPU: {name}", "environment", (fragment,), arrange=arrange, **others)


CASES = [
    _case("XLA", "(LLVM ERROR: PTX version 8.5 does not)", _tried(XLA, *_FAILS, end="os.abort()")),
    _case(
        "an exception",
        f"{NAME} does not work: a convolution in float32 fails (No algorithm worked!): see docs/troubleshooting.md",
        _tried("", *_FAILS, {"error": "No algorithm worked!"}, end="sys.exit(1)"),
    ),
    _case("a hang", "a convolution in float32 takes longer than", _hangs),
    _case("exclusive mode", "is in exclusive-process mode, and profile runs several processes on it", _exclusive),
    _case(
        "TensorFlow lists none",
        f"warning: TensorFlow cannot use {NAME} (missing: libcusolver.so.11): see docs",
        _tried(MISSING, {"step": "x"}, {"devices": 0}),
        status=0,
    ),
    _case(
        "required, and TensorFlow lists none",
        f"train.require_gpu is true, and TensorFlow cannot use {NAME} (missing: libcusolver.so.11): see docs",
        _tried(MISSING, {"step": "x"}, {"devices": 0}),
        params=REQUIRED,
    ),
    _case("required and hidden", "is hidden by CUDA_VISIBLE_DEVICES='-1'", _hidden, params=REQUIRED, status=2),
    _case("of AMD", "warning: AMD GPUs are not supported, only NVIDIA GPUs", _amd, status=0),
    _case("required, and of AMD", "true, and AMD GPUs are not supported", _amd, params=REQUIRED, status=2),
]
