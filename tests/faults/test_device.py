"""A GPU that the driver reports and TensorFlow does not use is named, with the missing library."""

from __future__ import annotations

import pytest

from halfstep.errors import PrecisionError
from halfstep.machine import fingerprint, gpus
from halfstep.params.schema import Variant
from halfstep.tasks import precision

PLAIN = Variant(policy="float32")
without_gpu = pytest.mark.skipif(bool(fingerprint.gpus()), reason="this machine has a GPU")


@pytest.fixture
def unused_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that reports a GPU that TensorFlow does not find."""
    monkeypatch.setattr(gpus, "installed", lambda: (gpus.Gpu("NVIDIA H200", "GPU-1"),))
    monkeypatch.setattr(precision, "_gpus", list)
    monkeypatch.setattr(precision, "_why_no_gpu", lambda: "(missing: libcudnn.so.9): install it")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_missing_library_is_named_and_the_run_continues(unused_gpu: None, capfd: pytest.CaptureFixture[str]) -> None:
    precision.activate(PLAIN)
    assert capfd.readouterr().err == (
        "warning: TensorFlow cannot use NVIDIA H200 (missing: libcudnn.so.9): install it; computing on the CPU\n"
    )


def test_required_gpu_that_cannot_be_used_is_an_error(unused_gpu: None) -> None:
    with pytest.raises(
        PrecisionError, match=r"^train\.require_gpu is true, and TensorFlow cannot use NVIDIA H200 \(missing: libcudnn"
    ):
        precision.activate(PLAIN, require_gpu=True)


@pytest.mark.parametrize(
    ("variable", "hidden"),
    [("-1", True), ("", True), ("none", True), ("1", True), ("GPU-8f1c", True), ("0", False), ("GPU-1", False)],
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
