"""What is said about a GPU that does not work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfstep.machine import gpu_failures
from halfstep.machine.gpu_failures import last_line


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
            "E0000 00:00:1.0 9 cuda_platform.cc:52] failed call to cuInit: CUDA error: UNKNOWN ERROR (303)\n"
            "I0000 00:00:1.0 9 port.cc:153] oneDNN custom operations are on.",
            "failed call to cuInit: CUDA error: UNKNOWN ERROR (303)",
        ),
        (
            "LLVM ERROR: PTX version 8.5 does not support target 'sm_120'",
            "LLVM ERROR: PTX version 8.5 does not support",
        ),
        ("W0000 1] Could not load dynamic library 'libnvinfer.so.10'", "Could not load dynamic library 'libnvinfer"),
        ("I0000 00:00:1.0 9 port.cc:153] oneDNN custom operations are on.", "no reason found in its log"),
        ("", "no reason found in its log"),
    ],
)
def test_last_line_of_a_log(log: str, reason: str) -> None:
    said = last_line(log)
    assert said.startswith(f"({reason}")
    assert said.endswith(": see docs/troubleshooting.md (A GPU that cannot be used)")


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
