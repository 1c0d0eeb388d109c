"""What is said about a GPU that does not work, from logs that were reported in public."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfstep.machine import gpu_failures
from halfstep.machine.gpu_failures import FAILURES, PROFILER_FAILURES, explain
from tests.gpu_logs import LOGS, PROFILER_LOGS


@pytest.mark.parametrize("name", LOGS)
def test_recorded_log_is_explained(name: str) -> None:
    log = LOGS[name]
    explanation = explain(f"I0000 00:00:1.0 9 port.cc:153] oneDNN custom operations are on.\n{log.text}\n")
    assert log.reason in explanation.reason
    assert log.cure in explanation.cure
    assert "\n" not in str(explanation)


@pytest.mark.parametrize("name", PROFILER_LOGS)
def test_recorded_log_of_a_profiler_is_explained(name: str) -> None:
    log = PROFILER_LOGS[name]
    explanation = explain(log.text, PROFILER_FAILURES)
    assert log.reason in explanation.reason
    assert log.cure in explanation.cure


def test_every_failure_has_a_recorded_log() -> None:
    for failures, logs in ((FAILURES, LOGS), (PROFILER_FAILURES, PROFILER_LOGS)):
        first = [next(item for item in failures if item.pattern.search(log.text)) for log in logs.values()]
        assert [item.reason for item in failures if item not in first] == []


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "I0000 00:00:1.0 9 dso_loader.cc:144] Could not load dynamic library 'libcufft.so.11'; dlerror: none\n"
            "I0000 00:00:1.0 9 dso_loader.cc:144] Could not load dynamic library 'libcudnn.so.9'; dlerror: none\n"
            "W0000 00:00:1.0 9 gpu_device.cc:2365] Cannot dlopen some GPU libraries.",
            "missing: libcudnn.so.9, libcufft.so.11",
        ),
        (
            "E0000 00:00:1.0 9 cuda_platform.cc:52] failed call to cuInit: CUDA error: UNKNOWN ERROR (303)",
            "failed call to cuInit: CUDA error: UNKNOWN ERROR (303)",
        ),
        ("I0000 00:00:1.0 9 port.cc:153] oneDNN custom operations are on.", "no reason found in its log"),
        ("W0000 1] Could not load dynamic library 'libnvinfer.so.10'", "no reason found in its log"),
        ("", "no reason found in its log"),
    ],
)
def test_reason_in_a_log(log: str, reason: str) -> None:
    assert explain(log).reason == reason


def test_text_of_a_log_is_printable_and_short() -> None:
    explanation = explain(f"Could not load dynamic library 'lib\x1b[2J\u202e{'x' * 500}'; dlerror: none")
    assert len(explanation.reason) <= 300
    assert explanation.reason.startswith(r"missing: lib\x1b[2J")


@pytest.mark.parametrize(
    ("installed", "device", "text"),
    [
        (None, False, None),
        (None, True, r"^AMD GPUs are not supported, only NVIDIA GPUs \(.*kfd exists\)$"),
        ("tensorflow-rocm", True, r"^AMD GPUs are not .* \(tensorflow-rocm is installed\)$"),
        ("tensorflow-metal", False, "^Apple GPUs are not supported"),
        ("intel-extension-for-tensorflow", False, "^Intel GPUs are not supported"),
        ("tensorflow-tpu", False, "^TPUs are not supported"),
    ],
)
def test_unsupported_accelerators_are_named(
    installed: str | None, device: bool, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device:
        (tmp_path / "kfd").touch()
    monkeypatch.setattr(gpu_failures, "_AMD_DEVICE", tmp_path / "kfd")
    if installed:
        folder = tmp_path / f"{installed.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {installed}\nVersion: 1.0\n")
        monkeypatch.syspath_prepend(tmp_path)
    message = gpu_failures.unsupported_accelerator()
    assert (message is None) is (text is None)
    assert text is None or re.search(text, str(message))
