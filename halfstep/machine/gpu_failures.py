"""What keeps TensorFlow from using a GPU: recognised in its log, or found on the machine. Imports no TensorFlow."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from halfstep.errors import printable

DOCS = "see docs/gpus.md"
ON_THE_CPU = "`CUDA_VISIBLE_DEVICES=-1 dvc repro` computes on the CPU"
# In TensorFlow's log, these variables show which libraries are missing. They must be set before the import.
LOG_VARIABLES = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
_INSTALL = 'install CUDA\'s libraries of TensorFlow: `pip install -r requirements.txt "tensorflow[and-cuda]"`'
_CUDA_FOLDER = f"{_INSTALL}, or name CUDA's folder: `XLA_FLAGS=--xla_gpu_cuda_data_dir=/usr/local/cuda`"
_FREE_MEMORY = "end the programs that use the GPU (`nvidia-smi` lists them)"
_MISSING = re.compile(r"Could not (?:load dynamic|dlopen) library '((?!libnvinfer)[^']+)'")  # TensorRT is not needed
_UNKNOWN = "no reason found in its log"
_LONGEST = 300  # characters of a text from a log


class Explanation(NamedTuple):
    """Why a GPU cannot be used, and what to do about it."""

    reason: str
    cure: str

    def __str__(self) -> str:
        return f"({self.reason}): {self.cure}"


@dataclass(frozen=True)
class GpuFailure:
    """A kind of failure: how it shows in a log, what it means, with the groups of the pattern, and what to do."""

    pattern: re.Pattern[str]
    reason: str
    cure: str


def _failure(pattern: str, reason: str, cure: str) -> GpuFailure:
    return GpuFailure(re.compile(pattern), reason, cure)


# The first that is found counts: causes stand before what follows from them. Lines of logs are in the tests.
FAILURES = (
    _failure(
        r"kernel version [\d.]+ does not match DSO version",
        "the NVIDIA driver was updated, and its old kernel module is still loaded",
        "restart the machine",
    ),
    _failure(
        r"CUDA driver version is insufficient|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|with an unsupported toolchain",
        "the NVIDIA driver is too old for this TensorFlow",
        f"install a driver of version 555 or newer; {DOCS}",
    ),
    _failure(
        r"PTX version [\d.]+ does not support target|no kernel image is available"
        r"|CUDA_ERROR_NO_BINARY_FOR_GPU|CUDA_ERROR_INVALID_PTX|CUDA_ERROR_INVALID_HANDLE",
        "this TensorFlow has no code for the GPU",
        f"its packages are built for the compute capabilities 6.0 to 9.0: use such a GPU; {DOCS}",
    ),
    _failure(
        r"devices? ?(?:\(s\) is/)?are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        "the GPU admits no further process",
        "end the other program; `sudo nvidia-smi -c DEFAULT` if the compute mode is exclusive or prohibited",
    ),
    _failure(
        r"Loaded runtime CuDNN library: (?P<found>[\d.]+) but source was compiled with: (?P<needed>[\d.]+\d)",
        "cuDNN {found} is loaded, and {needed} or newer is needed",
        f"unset LD_LIBRARY_PATH, or {_INSTALL}",
    ),
    _failure(
        r"CUDNN_STATUS_EXECUTION_FAILED_CUDART",
        "cuDNN has no code for the GPU",
        'cuDNN 9.11 and later need the compute capability 7.5: `pip install "nvidia-cudnn-cu12<9.11"`',
    ),
    _failure(
        r"CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED|ResourceExhausted|OOM when allocating",
        "its memory is used up",
        _FREE_MEMORY,
    ),
    _failure(
        r"(?i)could not create cudnn handle|failed to create cublas handle",
        "cuDNN or cuBLAS cannot be started, as if its memory is used up",
        _FREE_MEMORY,
    ),
    _failure(
        r"libdevice not found|Can't find libdevice directory",
        "XLA does not find libdevice, a part of CUDA",
        _CUDA_FOLDER,
    ),
    _failure(
        r"No PTX compilation provider is available|ptxas not found|Failed to launch ptxas",
        "XLA does not find ptxas, a part of CUDA",
        _CUDA_FOLDER,
    ),
    _failure(
        r"CUDA_ERROR_SYSTEM_NOT_READY|system not yet initialized",
        "the system that connects the GPUs is not ready",
        "start the service nvidia-fabricmanager",
    ),
    _failure(
        r"Could not (?:load dynamic|dlopen) library 'libcuda\.so",
        "missing: libcuda.so.1",
        f"install the NVIDIA driver; start a container with `--gpus all`; {DOCS}",
    ),
    GpuFailure(_MISSING, "missing: {missing}", _INSTALL),
    _failure(r"Cannot dlopen some GPU libraries", "libraries of CUDA are missing", _INSTALL),
    _failure(
        r"compute capability (?P<found>[\d.]+\d)\. The minimum required Cuda capability is (?P<needed>[\d.]+\d)",
        "its compute capability is {found}, and this TensorFlow needs {needed} or higher",
        "use another GPU",
    ),
    _failure(
        r"CUDA_ERROR_NO_DEVICE",
        "CUDA finds no GPU",
        f"check CUDA_VISIBLE_DEVICES; start a container with `--gpus all`; {DOCS}",
    ),
    _failure(
        r"not built with CUDA kernel binaries compatible with compute capability (?P<found>[\d.]+\d)",
        "this TensorFlow has no binary code for compute capability {found}, so that the driver compiles it",
        f"run `dvc repro` again, since the driver keeps what it has compiled; {DOCS}",
    ),
)
# These leave the GPU usable: the timing needs no profiler.
PROFILER_FAILURES = (
    _failure(
        r"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES|Insufficient privilege to run libcupti",
        "this user may not profile the GPU",
        "load the driver's module with NVreg_RestrictProfilingToAdminUsers=0, or start the container with "
        "`--cap-add=SYS_ADMIN`",
    ),
    _failure(r"Could not (?:load dynamic|dlopen) library '(?P<library>libcupti[^']*)'", "missing: {library}", _INSTALL),
)


def explain(log: str, failures: Sequence[GpuFailure] = FAILURES) -> Explanation:
    """Why a GPU cannot be used, according to the log of TensorFlow and of CUDA's libraries.

    Errors and warnings about CUDA are the reason where no failure is recognised.
    """
    for failure in failures:
        if match := failure.pattern.search(log):
            missing = ", ".join(sorted(set(_MISSING.findall(log))))
            reason = failure.reason.format(**match.groupdict(), missing=missing)
            return Explanation(printable(reason, _LONGEST), failure.cure)
    errors = [
        line.split("] ", 1)[-1].strip() for line in log.splitlines() if re.match(r"[EFW]\d{4} .*(cuda|GPU)", line)
    ]
    return Explanation(printable("; ".join(dict.fromkeys(errors)), _LONGEST) or _UNKNOWN, DOCS)


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
        if _is_installed(distribution):
            return unsupported_text(what, f"{distribution} is installed")
    return unsupported_text("AMD GPUs", f"{_AMD_DEVICE} exists") if _AMD_DEVICE.exists() else None


def unsupported_text(what: str, evidence: str) -> str:
    """Says that a kind of accelerator is not supported, and how it was noticed."""
    return f"{what} are not supported, only NVIDIA GPUs ({evidence})"


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
