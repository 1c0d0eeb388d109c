"""The properties of a machine that change a timing. `profile` depends on them, so timings are not reused elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from halfstep.machine import cgroups
from halfstep.machine.gpus import Gpu, Visible, visible
from halfstep.system import files, xla_flags
from halfstep.system.interpreters import TENSORFLOW_BUILDS

# Libraries whose version changes the speed of a step.
_LIBRARIES = ("keras", "numpy", "xprof")
# By name: to ask every installed package for its own takes 50 ms.
_CUDA_LIBRARIES = tuple(
    f"nvidia-{library}-cu{major}"
    for library in ("cublas", "cuda-nvcc", "cuda-runtime", "cudnn", "nccl")
    for major in range(11, 20)
)
# Variables that change which kernels run, on how many threads, or in which precision.
_SETTINGS = re.compile(
    r"OMP_.*|KMP_.*|TF_NUM_INT(RA|ER)OP_THREADS|TF_ENABLE_ONEDNN_OPTS|ONEDNN_.*|DNNL_.*|NVIDIA_TF32_OVERRIDE"
    r"|TF_XLA_FLAGS|XLA_FLAGS|TF_GPU_.*|TF_CUDNN_.*|TF_DETERMINISTIC_OPS|TF_ENABLE_AUTO_MIXED_PRECISION.*"
    r"|TF_SET_ONEDNN_.*|TF_CONV2D_.*|TF_FP16_.*|TF_FORCE_GPU_ALLOW_GROWTH|TF_DISABLE_.*|TF_ENABLE_MKL_.*|TF_MKL_.*"
    r"|CUDA_VISIBLE_DEVICES|CUDA_MODULE_LOADING"
)
# Instruction sets that decide whether 16-bit arithmetic runs in hardware.
_PRECISION_FLAGS = (
    *("f16c", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "avx_ne_convert"),
    *("asimd", "asimdhp", "bf16"),  # of ARM
)


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
            "versions": versions(),
            "settings": settings(os.environ),
        }
    )


def read(path: Path = files.ENVIRONMENT_FILE) -> dict[str, Any]:
    """Reads the description that `environment` wrote.

    Raises:
        DataError: the file is missing.
        CorruptFileError: the checksum differs.
    """
    return files.read_verified_json(path)


def trained_on(releases: Mapping[str, str]) -> str:
    """Names what may change the result of a training: the processor, and the releases of TensorFlow and Keras.

    Args:
        releases: as `versions` returns them where it trains.
    """
    devices = gpus()
    processor = str(devices[0]["name"]) if devices else _cpu()["model"]
    return "; ".join([processor, *(f"{name} {releases[name]}" for name in ("tensorflow", "keras") if name in releases)])


def digest(value: Mapping[str, Any]) -> str:
    """Short name of a fingerprint: the first 12 hexadecimal digits of the sha256 of its JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _device(cpu: Mapping[str, Any], gpus: list[dict[str, Any]]) -> str:
    names = [str(gpu["name"]) for gpu in gpus]
    if not names:
        return f"{cpu['model']}, {cpu['usable_cores']} cores"
    if len(set(names)) > 1:
        return (", " if gpus[0].get("identified", True) else " or ").join(names)
    return f"{len(names)} x {names[0]}" if len(names) > 1 else names[0]


def _cpu() -> dict[str, Any]:
    described, flags = _proc_cpuinfo(), cpu_flags()
    facts: dict[str, Any] = {
        "model": described.get("model name") or platform.processor() or platform.machine(),
        "usable_cores": usable_cores(),
        "memory_gib": round(memory_bytes() / 2**30),
        "instruction_sets": [flag for flag in _PRECISION_FLAGS if flag in flags],
    }
    quota = cgroups.cpu_quota_cores()
    return facts | ({"quota_cores": quota} if quota is not None else {})


def cpu_flags() -> list[str]:
    """Everything that this processor can do: what is compiled for one may not run on another of the same name."""
    described = _proc_cpuinfo()
    return (described.get("flags") or described.get("Features") or "").split()


@cache
def is_onednn_slow_in_float16() -> bool:
    """Whether oneDNN computes gradients of float16 convolutions with its reference code, which takes 20 times as long.

    So it does on CPUs with AVX512_FP16 and without AMX: a step of a ResNet-20 takes 45 s there in place of 2.1.
    """
    flags = cpu_flags()
    return "avx512_fp16" in flags and "amx_tile" not in flags


def _proc_cpuinfo() -> dict[str, str]:
    try:
        first, *_ = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_cores() -> int:
    """Number of cores that this process may run on, without regard to a quota."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[dict[str, Any]]:
    """Describes the GPUs that TensorFlow would use, the one that it uses first; empty without one.

    The description has the model and no UUID: on a rented machine, each start may get another GPU of the same model,
    on which the same timings hold. Where it is not known which of several models TensorFlow uses first, all are listed
    by name with `identified` false and without what they do not have in common.
    """
    visible_gpus = visible(model_only=True)
    described = [_gpu(gpu, visible_gpus) for gpu in visible_gpus.gpus]
    if visible_gpus.identified or len({gpu.model for gpu in visible_gpus.gpus}) == 1:
        return described
    capabilities = {gpu.compute_capability for gpu in visible_gpus.gpus}
    for gpu in described:
        gpu["identified"] = False
        if len(capabilities) > 1:
            gpu.pop("compute_capability", None)
    return sorted(described, key=lambda gpu: str(gpu["name"]))


def _gpu(gpu: Gpu, visible_gpus: Visible) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": gpu.name,
        "memory_gib": None if gpu.memory_bytes is None else round(gpu.memory_bytes / 2**30),
        "compute_capability": gpu.compute_capability,
        "driver": visible_gpus.driver,
        "driver_cuda": visible_gpus.driver_cuda,
        "slice_of": gpu.parent and gpu.parent.name,
        "multiprocessors": gpu.multiprocessors,
        "gpu_slices": gpu.gpu_slices,
        "compute_slices": gpu.compute_slices,
    }
    return {name: value for name, value in facts.items() if value is not None}


def versions() -> dict[str, str]:
    """The releases of this Python and of the libraries whose version changes the speed of a step."""
    names = (*_LIBRARIES, *_CUDA_LIBRARIES)
    installed = {name: version for name in names if (version := _version(name))}
    if tensorflow := next(filter(None, map(_version, TENSORFLOW_BUILDS)), None):
        installed["tensorflow"] = tensorflow
    return {"python": platform.python_version(), **installed}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def settings(variables: Mapping[str, str]) -> dict[str, str]:
    """The settings in force, without the UUIDs in `CUDA_VISIBLE_DEVICES`: `gpus` describes what they name.

    Where XLA keeps programs changes no step; `halfstep.profile.compile_cache` sets it.
    """
    found = {name: value for name, value in sorted(variables.items()) if _SETTINGS.fullmatch(name)}
    if (flags := found.pop(xla_flags.VARIABLE, None)) and (others := xla_flags.without_cache(flags)):
        found[xla_flags.VARIABLE] = others
    if (chosen := found.get("CUDA_VISIBLE_DEVICES")) is not None:
        found["CUDA_VISIBLE_DEVICES"] = re.sub(r"(GPU|MIG)-[^,]*", r"\1", chosen)
    return found
