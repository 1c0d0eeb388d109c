"""The properties of a machine that change a timing. `profile` depends on them, so timings are not reused elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from stages import cgroups, files

# Libraries whose version changes the speed of a step.
_LIBRARIES = ("tensorflow", "keras", "numpy", "xprof")
_CUDA_LIBRARIES = re.compile(r"nvidia-(cudnn|cublas|cuda-runtime|cuda-nvcc|nccl)-cu\d+")
# Variables that change which kernels run, on how many threads, or in which precision.
_SETTINGS = re.compile(
    r"OMP_.*|KMP_.*|TF_NUM_INT(RA|ER)OP_THREADS|TF_ENABLE_ONEDNN_OPTS|ONEDNN_.*|DNNL_.*|NVIDIA_TF32_OVERRIDE"
    r"|TF_XLA_FLAGS|XLA_FLAGS|TF_GPU_.*|TF_CUDNN_.*|TF_DETERMINISTIC_OPS|TF_ENABLE_AUTO_MIXED_PRECISION.*"
    r"|TF_FORCE_GPU_ALLOW_GROWTH|TF_DISABLE_.*|TF_ENABLE_MKL_.*|TF_MKL_.*|CUDA_VISIBLE_DEVICES|CUDA_MODULE_LOADING"
)
# Instruction sets that decide whether 16-bit arithmetic runs in hardware.
_PRECISION_FLAGS = ("f16c", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "avx_ne_convert")


def fingerprint() -> dict[str, Any]:
    """Describes this machine. Two calls on the same machine with the same software return the same.

    Returns:
        `device` (name of the device that TensorFlow would train on), `cpu` (model, usable cores, quota in cores, memory
        in GiB, instruction sets), `gpus` (one entry each; empty without a driver), `versions`, `settings`, and the
        `sha256` of all of these.
    """
    devices = gpus()
    cpu = _cpu()
    return files.with_checksum(
        {
            "device": _device(cpu, devices),
            "cpu": cpu,
            "gpus": devices,
            "versions": _versions(),
            "settings": _settings(os.environ),
        }
    )


def read(path: Path = files.ENVIRONMENT_FILE) -> dict[str, Any]:
    """Reads the description that `environment` wrote.

    Raises:
        DataError: the file is missing.
        CorruptFileError: the checksum differs.
    """
    return files.read_verified_json(path)


def trained_on() -> str:
    """Names what may change the result of a training: the processor, and the versions of TensorFlow and Keras."""
    devices, versions = gpus(), _versions()
    processor = str(devices[0]["name"]) if devices else _cpu()["model"]
    return "; ".join([processor, *(f"{name} {versions[name]}" for name in ("tensorflow", "keras") if name in versions)])


def digest(value: Mapping[str, Any]) -> str:
    """Short name of a fingerprint: the first 12 hexadecimal digits of the sha256 of its JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _device(cpu: Mapping[str, Any], gpus: list[dict[str, Any]]) -> str:
    if gpus:
        return f"{len(gpus)} x {gpus[0]['name']}" if len(gpus) > 1 else str(gpus[0]["name"])
    return f"{cpu['model']}, {cpu['usable_cores']} cores"


def _cpu() -> dict[str, Any]:
    described = _proc_cpuinfo()
    facts: dict[str, Any] = {
        "model": described.get("model name") or platform.processor() or platform.machine(),
        "usable_cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "instruction_sets": [flag for flag in _PRECISION_FLAGS if flag in described.get("flags", "").split()],
    }
    quota = cgroups.cpu_quota_cores()
    return facts | ({"quota_cores": quota} if quota is not None else {})


def _proc_cpuinfo() -> dict[str, str]:
    try:
        first, *_ = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def usable_cores() -> int:
    """Number of cores that this process may run on, without regard to a quota."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[dict[str, Any]]:
    """Describes the GPUs that the NVIDIA driver reports through NVML; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        return [_gpu(pynvml, index, driver, cuda) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return [{"name": f"unknown ({error})"}]
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, index: int, driver: str, cuda: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return {
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
        "memory_gib": round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30),
        "compute_capability": f"{major}.{minor}",
        "driver": driver,
        "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
    }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _versions() -> dict[str, str]:
    installed = {name: version for name in _LIBRARIES if (version := _version(name))}
    cuda = {
        name: distribution.version
        for distribution in metadata.distributions()
        if (name := (distribution.name or "").lower()) and _CUDA_LIBRARIES.fullmatch(name)
    }
    return {"python": platform.python_version(), **installed, **dict(sorted(cuda.items()))}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _settings(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(variables.items()) if _SETTINGS.fullmatch(name)}
