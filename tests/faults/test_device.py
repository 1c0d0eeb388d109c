"""A GPU that the driver reports and TensorFlow does not use is named, with the missing library."""

from __future__ import annotations

import pytest

from stages import fingerprint, gpus, precision
from stages.errors import PrecisionError
from stages.params import Variant

PLAIN = Variant(policy="float32")
without_gpu = pytest.mark.skipif(bool(fingerprint.gpus()), reason="this machine has a GPU")


@pytest.fixture
def unused_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that reports a GPU that TensorFlow does not find."""
    monkeypatch.setattr(gpus, "installed", lambda: (gpus.Gpu("NVIDIA H200", "GPU-1"),))
    monkeypatch.setattr(precision, "_gpus", list)
    monkeypatch.setattr(precision, "_reason_for_no_gpu", lambda: "missing: libcudnn.so.9")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_missing_library_is_named_and_the_run_continues(unused_gpu: None, capfd: pytest.CaptureFixture[str]) -> None:
    precision.activate(PLAIN)
    assert capfd.readouterr().err == (
        "warning: TensorFlow cannot use NVIDIA H200 (missing: libcudnn.so.9): see 'I have a GPU' in the README; "
        "computing on the CPU\n"
    )


def test_required_gpu_that_cannot_be_used_is_an_error(unused_gpu: None) -> None:
    with pytest.raises(
        PrecisionError, match=r"^train\.require_gpu is true, and TensorFlow cannot use NVIDIA H200 \(missing: libcudnn"
    ):
        precision.activate(PLAIN, require_gpu=True)


@pytest.mark.parametrize(
    ("variable", "hidden"), [("-1", True), ("", True), ("none", True), ("0", False), ("GPU-8f1c", False)]
)
def test_gpu_hidden_by_the_user_gives_no_warning(
    variable: str, hidden: bool, unused_gpu: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    precision.activate(PLAIN)
    assert (capfd.readouterr().err == "") is hidden
    assert (f"is hidden by CUDA_VISIBLE_DEVICES={variable!r}: unset it" in (precision.unused_gpu() or "")) is hidden


@without_gpu
def test_machine_without_a_gpu_gives_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    precision.activate(PLAIN)
    assert capfd.readouterr().err == ""
    with pytest.raises(PrecisionError, match=r"^train\.require_gpu is true, and TensorFlow finds no GPU$"):
        precision.activate(PLAIN, require_gpu=True)


@without_gpu
def test_reason_names_the_library_that_tensorflow_misses() -> None:
    """On a machine without a driver, it is the driver's library."""
    assert precision._reason_for_no_gpu() == "missing: libcuda.so.1"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "I0000 00:00:1.0 9 dso_loader.cc:144] Could not load dynamic library 'libcudnn.so.9'; dlerror: none\n"
            "I0000 00:00:1.0 9 dso_loader.cc:144] Could not load dynamic library 'libcufft.so.11'; dlerror: none\n"
            "W0000 00:00:1.0 9 gpu_device.cc:2365] Cannot dlopen some GPU libraries.",
            "missing: libcudnn.so.9, libcufft.so.11",
        ),
        (
            "E0000 00:00:1.0 9 cuda_platform.cc:52] failed call to cuInit: CUDA error: UNKNOWN ERROR (303)",
            "failed call to cuInit: CUDA error: UNKNOWN ERROR (303)",
        ),
        ("I0000 00:00:1.0 9 port.cc:153] oneDNN custom operations are on.", "no reason found in its log"),
    ],
)
def test_reason_in_a_log(log: str, reason: str) -> None:
    assert precision.reason_in_log(log) == reason
