"""What changes a timing, and nothing volatile: on this `profile` depends, so that no timing moves between machines."""

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

from stages import files

# Libraries whose release changes the speed of a step.
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
    """Describes this machine; two calls on one machine in one software environment are equal.

    Returns:
        `device` (the device that TensorFlow would train on, in words), `cpu` (model, usable cores, quota in cores,
        memory in bytes, instruction sets), `gpus` (one entry each; empty without a driver), `versions`, `settings`, and
        the `sha256` of all of these.
    """
    devices = gpus()
    cpu = _cpu()
    return files.sealed(
        {
            "device": _device(cpu, devices),
            "cpu": cpu,
            "gpus": devices,
            "versions": _versions(),
            "settings": _settings(os.environ),
        }
    )


def read(path: Path = files.ENVIRONMENT_FILE) -> dict[str, Any]:
    """The description that `environment` wrote.

    Raises:
        DataError: it is missing.
        CorruptFileError: it is not what was written.
    """
    return files.read_sealed(path)


def trained_on() -> str:
    """What may change a training's result, in words: the processor, and the releases of TensorFlow and Keras."""
    devices, versions = gpus(), _versions()
    processor = str(devices[0]["name"]) if devices else _cpu()["model"]
    return "; ".join([processor, *(f"{name} {versions[name]}" for name in ("tensorflow", "keras") if name in versions)])


def digest(value: Mapping[str, Any]) -> str:
    """A short, stable name for a fingerprint: the first 12 hexadecimal digits of the sha256 of its JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _device(cpu: Mapping[str, Any], gpus: list[dict[str, Any]]) -> str:
    if gpus:
        return f"{len(gpus)} x {gpus[0]['name']}" if len(gpus) > 1 else str(gpus[0]["name"])
    return f"{cpu['model']}, {cpu['usable_cores']} cores"


def _cpu() -> dict[str, Any]:
    described = _proc_cpuinfo()
    facts: dict[str, Any] = {
        "model": described.get("model name") or platform.processor() or platform.machine(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "instruction_sets": [flag for flag in _PRECISION_FLAGS if flag in described.get("flags", "").split()],
    }
    quota = _cpu_quota()
    return facts | ({"quota_cores": quota} if quota is not None else {})


def _proc_cpuinfo() -> dict[str, str]:
    try:
        first, *_ = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cpu_quota() -> float | None:
    """Cores that the control group grants (cgroup v2, then v1); None where it sets no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        try:
            group = Path("/sys/fs/cgroup/cpu")
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="utf-8").strip()
            period = (group / "cpu.cfs_period_us").read_text(encoding="utf-8").strip()
        except OSError:
            return None
    return round(int(quota) / int(period), 2) if quota.isdigit() else None


def gpus() -> list[dict[str, Any]]:
    """What the NVIDIA driver says of its devices, by NVML; empty where there is no driver."""
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
