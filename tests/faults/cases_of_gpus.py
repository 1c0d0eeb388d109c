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
MISSING = "I0000 1] Could not load dynamic library 'libcusolver.so.11'; dlerror: none"
REQUIRED: dict[str, Any] = {"train": {"require_gpu": True}}


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


def _hidden(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_gpu(monkeypatch, "-1")


def _amd(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr(gpu_failures, "_AMD_DEVICE", Path("/dev/null"))


def _case(name: str, fragment: str, arrange: Arrange, **others: Any) -> Case:
    return Case(f"GPU: {name}", "environment", (fragment,), arrange=arrange, **others)


CASES = [
    _case(
        "TensorFlow lists none",
        f"warning: TensorFlow cannot use {NAME} (missing: libcusolver.so.11): see docs",
        _tried(MISSING, {"step": "x"}, {"devices": 0}),
        status=0,
    ),
    _case("required and hidden", "is hidden by CUDA_VISIBLE_DEVICES='-1'", _hidden, params=REQUIRED, status=2),
    _case("required, and of AMD", "true, and AMD GPUs are not supported", _amd, params=REQUIRED, status=2),
]
