"""What keeps TensorFlow from using a GPU, by its log or by the machine. Imports no TensorFlow."""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path

from halfstep.errors import printable

DOCS = "see docs/troubleshooting.md (A GPU that cannot be used)"
ON_THE_CPU = "`CUDA_VISIBLE_DEVICES=-1 dvc repro` computes on the CPU"
# In TensorFlow's log, these variables show which libraries are missing. They must be set before the import.
LOG_VARIABLES = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
_MISSING = re.compile(r"Could not (?:load dynamic|dlopen) library '((?!libnvinfer)[^']+)'")  # TensorRT is not needed
_INFO = re.compile(r"I\d{4} |\S+ \S+: I |I tensorflow")
_LONGEST = 300  # characters of a text from a log


def last_line(log: str) -> str:
    """What TensorFlow or CUDA said last, in brackets, or which libraries are missing; and where to read on."""
    missing = ", ".join(sorted(set(_MISSING.findall(log))))
    said = [text for line in log.splitlines() if (text := line.split("] ", 1)[-1].strip()) and not _INFO.match(line)]
    reason = f"missing: {missing}" if missing else said[-1] if said else "no reason found in its log"
    return f"({printable(reason, _LONGEST)}): {DOCS}"


def hidden_text(name: str) -> str:
    """Says that a GPU is hidden, and what to do."""
    return f"{name} is hidden by CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r}: unset it"


# Distributions that make TensorFlow compute on what halfstep can neither identify nor observe.
_UNSUPPORTED = {
    "tensorflow-rocm": "AMD GPUs",
    "tensorflow-metal": "Apple GPUs",
    "intel-extension-for-tensorflow": "Intel GPUs",
    "tensorflow-tpu": "TPUs",
}
_AMD_DEVICE = Path("/dev/kfd")  # of the driver that ROCm uses


def unsupported_accelerator() -> str | None:
    """Says that this machine has, or its TensorFlow is made for, an accelerator other than NVIDIA's; else None."""
    for distribution, what in _UNSUPPORTED.items():
        if any(metadata.distributions(name=distribution)):
            return unsupported_text(what, f"{distribution} is installed")
    return unsupported_text("AMD GPUs", f"{_AMD_DEVICE} exists") if _AMD_DEVICE.exists() else None


def unsupported_text(what: str, evidence: str) -> str:
    """Says that a kind of accelerator is not supported, and how it was noticed."""
    return f"{what} are not supported, only NVIDIA GPUs ({evidence})"
