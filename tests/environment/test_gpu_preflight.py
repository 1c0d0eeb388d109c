"""The GPU is tried before any work: with the real process on the CPU, and with processes that print recorded logs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pynvml
import pytest

from halfstep.environment import gpu_preflight
from halfstep.environment.gpu_preflight import GpuTrial, judge, mode_problem, operations, run
from halfstep.errors import HalfstepError
from halfstep.machine import gpu_failures
from halfstep.params.schema import Params, TrainParams, Variant

NAME = "NVIDIA GeForce RTX 5090"
MACHINE: dict[str, Any] = {"gpus": [{"name": NAME}], "sha256": "a" * 64}
CREATED = (  # https://github.com/tensorflow/tensorflow/issues/62170
    "2023-11-06 15:40:35.310599: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1639] Created device /device:GPU:0 "
    "with 11426 MB memory:  -> device: 0, name: Tesla T4, pci bus id: 0000:00:07.0, compute capability: 7.5"
)
PASSED = ({"step": "listing the devices"}, {"devices": 1}, {"step": "a trace"}, {"traced": True})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def process(log: str = "", *events: dict[str, Any], end: str = "pass") -> list[str]:
    """A command that prints a log and events, and ends as the statement `end` says."""
    lines = "\n".join(map(json.dumps, events))
    code = f"import os, sys, time; print({lines!r}, flush=True); print({log!r}, file=sys.stderr, flush=True); {end}"
    return [sys.executable, "-c", code]


@pytest.fixture(scope="module")
def on_cpu() -> GpuTrial:
    """The real process, in all data types, eager and compiled."""
    return run(operations(Params(), "CPU"))


def test_real_process_computes_in_every_type_and_traces(on_cpu: GpuTrial) -> None:
    assert on_cpu.status == 0, on_cpu.log
    steps = [event["step"] for event in on_cpu.events if "step" in event]
    names = [
        f"{name} in {dtype}{compiled}"
        for dtype in ("float32", "float16", "bfloat16")
        for compiled in ("", " under XLA")
        for name in ("a matrix multiplication", "a convolution")
    ]
    assert steps == ["listing the devices", *names, "a trace"]
    assert (on_cpu.last("devices"), on_cpu.last("traced"), on_cpu.last("error")) == (1, True, None)
    assert judge(on_cpu, NAME, required=True) == []


def test_real_process_finds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    outcome = run([*operations(Params())[:-2]])
    assert (outcome.status, outcome.last("devices")) == (0, 0)
    (warning,) = judge(outcome, NAME, required=False)
    assert warning.startswith(f"TensorFlow cannot use {NAME} (")
    assert warning.endswith("; computing on the CPU")


def test_only_what_the_listed_variants_need_is_tried() -> None:
    variants = {"a": Variant(policy="mixed_bfloat16", xla=False), "b": Variant(policy="float16")}
    params = Params(variants=variants, train=TrainParams(variants=("a",)))
    assert operations(params)[3:] == ["--device", "GPU", "float32", "bfloat16"]
    params = Params(variants=variants, train=TrainParams(variants=("b", "a")))
    assert operations(params)[3:] == ["--device", "GPU", "--xla", "float32", "float16", "bfloat16"]


def test_gpu_that_tensorflow_lists_and_that_fails_is_an_error() -> None:
    events = ({"devices": 1}, {"step": "a convolution in float32 under XLA"})
    outcome = run(process("LLVM ERROR: PTX version 8.5 does not support target 'sm_120'", *events, end="os.abort()"))
    with pytest.raises(HalfstepError) as caught:
        judge(outcome, NAME, required=False)
    assert str(caught.value) == (
        f"{NAME} does not work: a convolution in float32 under XLA ends the process with SIGABRT (LLVM ERROR: PTX "
        f"version 8.5 does not support target 'sm_120'): {gpu_failures.DOCS}; `xla: false` in the entries of variants "
        f"avoids XLA; {gpu_failures.ON_THE_CPU}"
    )


@pytest.mark.parametrize("required", [False, True])
def test_gpu_that_tensorflow_does_not_list_is_an_error_only_if_required(required: bool) -> None:
    log = "I0000 1] Could not load dynamic library 'libcusolver.so.11'; dlerror: none"
    outcome = run(process(log, {"step": "listing the devices"}, {"devices": 0}))
    if required:
        with pytest.raises(HalfstepError, match=r"^train\.require_gpu is true, and TensorFlow cannot use") as caught:
            judge(outcome, NAME, required=True)
        text = str(caught.value)
    else:
        (text,) = judge(outcome, NAME, required=False)
        assert text.endswith("; computing on the CPU")
    assert "(missing: libcusolver.so.11)" in text


def test_profiler_that_sees_nothing_is_a_warning() -> None:
    log = "E0000 1] Insufficient privilege to run libcupti"
    (text,) = judge(run(process(log, {"devices": 1}, {"traced": False})), NAME, required=True)
    assert "cannot be traced, so that reasons will be missing (Insufficient privilege to run libcupti)" in text


def test_process_that_hangs_is_ended() -> None:
    started_s = time.monotonic()
    outcome = run(process("", {"step": "a convolution in float32"}, end="time.sleep(600)"), 2.0)
    assert time.monotonic() - started_s < 60
    assert outcome.status is None
    with pytest.raises(
        HalfstepError, match=r"a convolution in float32 takes longer than 600 s \(no reason found in its"
    ):
        judge(outcome, NAME, required=False)


def test_tensorflow_that_cannot_be_imported_is_an_error() -> None:
    outcome = run(process("Traceback\nImportError: libtensorflow_framework.so.2", end="sys.exit(1)"))
    with pytest.raises(HalfstepError, match=r"^TensorFlow cannot be imported: ImportError: libtensorflow_framework"):
        judge(outcome, NAME, required=False)


def test_lines_of_libraries_and_long_logs_are_no_problem() -> None:
    end = "print('no JSON'); print('[1]'); sys.stderr.write('x' * 3_000_000)"
    outcome = run(process("", *PASSED, end=end))
    assert outcome.events == PASSED
    assert len(outcome.log) == 2**20
    assert judge(outcome, NAME, required=True) == []


@pytest.mark.parametrize(
    ("mode", "mps", "text"),
    [
        (pynvml.NVML_COMPUTEMODE_DEFAULT, False, None),
        (None, False, None),
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, False, "is in exclusive-process mode, and profile runs several"),
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, True, None),
        (pynvml.NVML_COMPUTEMODE_PROHIBITED, True, "is in prohibited mode"),
    ],
)
def test_compute_mode(
    mode: int | None, mps: bool, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if mps:
        (tmp_path / "control").touch()
    problem = mode_problem(NAME, mode)
    assert (problem is None) is (text is None)
    assert text is None or text in str(problem)


class Tried:
    """Replaces the process that tries the GPU, and counts its starts."""

    def __init__(self, outcome: GpuTrial) -> None:
        self.outcome, self.count = outcome, 0

    def __call__(self, command: list[str]) -> GpuTrial:
        self.count += 1
        return self.outcome


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Tried:
    fake = Tried(GpuTrial(0, PASSED, CREATED))
    monkeypatch.setattr(gpu_preflight, "run", fake)
    monkeypatch.setattr(gpu_preflight, "compute_mode", lambda bus: {"0000:00:07.0": 0}[bus])
    return fake


def test_gpu_that_passed_is_not_tried_again_until_something_changes(tried: Tried) -> None:
    for machine, params, count in (
        (MACHINE, Params(), 1),
        (MACHINE, Params(), 1),
        (MACHINE, Params(train=TrainParams(epochs=3)), 1),
        (MACHINE, Params(train=TrainParams(variants=("float32",))), 2),
        (MACHINE | {"sha256": "b" * 64}, Params(), 3),
    ):
        gpu_preflight.check(params, machine)
        assert tried.count == count
    gpu_preflight.PASSED.write_text("{")
    gpu_preflight.check(Params(), MACHINE)
    assert tried.count == 4


def test_mode_is_read_although_the_gpu_passed_before(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_preflight.check(Params(), MACHINE)
    monkeypatch.setattr(gpu_preflight, "compute_mode", lambda _: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "nowhere")
    with pytest.raises(HalfstepError, match=r"exclusive-process"):
        gpu_preflight.check(Params(), MACHINE)
    assert tried.count == 1


def test_nothing_is_tried_without_a_gpu(
    tried: Tried, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_failures, "unsupported_accelerator", lambda: None)
    gpu_preflight.check(Params(), MACHINE | {"gpus": []})
    assert (tried.count, capsys.readouterr().err) == (0, "")
