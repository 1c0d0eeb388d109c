"""Skips the tests with the marker `gpu` where TensorFlow has no GPU. Without a driver this costs no import of it."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.machine.fingerprint import gpus

ROOT = Path(__file__).parents[2]
ASK = "import sys; from halfstep.tensorflow_import import tf; sys.exit(not tf.config.list_physical_devices('GPU'))"


@functools.cache
def why_no_gpu() -> str | None:
    """Why these tests cannot run here; None if they can."""
    if not gpus():
        return "needs a GPU: there is no NVIDIA driver, or it lists none"
    asked = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, check=False)
    return "needs a GPU: TensorFlow cannot use the one that the driver lists" if asked.returncode else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)
