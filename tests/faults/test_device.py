"""A GPU that the driver shows and TensorFlow does not use is named, with the library that is missing."""

from __future__ import annotations

import pytest

from stages import precision
from stages.environment import fingerprint
from stages.errors import PrecisionError
from stages.params import Variant

PLAIN = Variant(policy="float32")
without_gpu = pytest.mark.skipif(bool(fingerprint.gpus()), reason="this machine has a GPU")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that shows a GPU, which TensorFlow on this machine does not find."""
    monkeypatch.setattr(fingerprint, "gpus", lambda: [{"name": "NVIDIA H200"}])
    monkeypatch.setattr(precision, "_gpus", list)
    monkeypatch.setattr(precision, "_reason_for_no_gpu", lambda: "missing: libcudnn.so.9")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_missing_library_is_named_and_the_run_goes_on(shown: None, capfd: pytest.CaptureFixture[str]) -> None:
    precision.turn_on(PLAIN)
    assert capfd.readouterr().err == (
        "warning: TensorFlow cannot use NVIDIA H200 (missing: libcudnn.so.9): see 'I have a GPU' in the README; "
        "computing on the CPU\n"
    )


def test_a_required_gpu_that_cannot_be_used(shown: None) -> None:
    with pytest.raises(
        PrecisionError, match=r"^train\.require_gpu is true, and TensorFlow cannot use NVIDIA H200 \(missing: libcudnn"
    ):
        precision.turn_on(PLAIN, require_gpu=True)


@pytest.mark.parametrize(
    ("variable", "hidden"), [("-1", True), ("", True), ("none", True), ("0", False), ("GPU-8f1c", False)]
)
def test_a_gpu_that_was_hidden_on_purpose(
    variable: str, hidden: bool, shown: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    precision.turn_on(PLAIN)
    assert (capfd.readouterr().err == "") is hidden
    assert (f"is hidden by CUDA_VISIBLE_DEVICES={variable!r}: unset it" in (precision.unused_gpu() or "")) is hidden


@without_gpu
def test_a_machine_without_a_gpu_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    precision.turn_on(PLAIN)
    assert capfd.readouterr().err == ""
    with pytest.raises(PrecisionError, match=r"^train\.require_gpu is true, and TensorFlow finds no GPU$"):
        precision.turn_on(PLAIN, require_gpu=True)


@without_gpu
def test_tensorflow_says_which_library_it_misses() -> None:
    """Here it is the driver's own, for there is none; the words are TensorFlow's."""
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
        ("I0000 00:00:1.0 9 port.cc:153] oneDNN custom operations are on.", "it does not say why"),
    ],
)
def test_what_a_log_says(log: str, reason: str) -> None:
    assert precision.reason_in_log(log) == reason
