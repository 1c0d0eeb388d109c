"""Tries the GPU before any work, in a process of its own, so that a training does not die of what is known by then."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfstep.errors import HalfstepError, one_line
from halfstep.machine import fingerprint, gpu_failures
from halfstep.machine.gpus import nvml
from halfstep.params.schema import Params
from halfstep.system import files
from halfstep.system.commands import run_program
from halfstep.system.imports import search_path

LIMIT_S = 600.0  # the driver may have to compile the kernels first
PASSED = files.WORK_DIR / "gpu.json"  # not an output: DVC must not run a stage because of it
_CREATED = re.compile(r"name: (?P<name>[^,]+), pci bus id: (?P<bus>[0-9A-Fa-f:.]+)")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_REFUSING_MODES = {2: "prohibited", 3: "exclusive-process"}  # NVML_COMPUTEMODE_*


@dataclass(frozen=True)
class GpuTrial:
    """What the process printed, and how it ended.

    Attributes:
        status: the exit status, negative for a signal; None if it was stopped at the time limit.
        events: the JSON objects on its standard output.
        log: the end of its standard error.
    """

    status: int | None
    events: tuple[Mapping[str, Any], ...]
    log: str

    def last(self, key: str) -> Any:
        """The last value of `key` in the events; None without one."""
        return next((event[key] for event in reversed(self.events) if key in event), None)


def check(params: Params, machine: Mapping[str, Any]) -> None:
    """Tries the GPU that a program sees, unless it was tried before, and prints warnings.

    Args:
        params: the parameters; the data types and XLA are those of the listed variants.
        machine: the fingerprint of this machine.

    Raises:
        HalfstepError: the GPU cannot be used although it is required, or TensorFlow would use it and fail.
    """
    if not machine["gpus"]:
        if text := gpu_failures.unsupported_accelerator():
            _warn([f"{text}; computing on the CPU"])
        return
    name, command = str(machine["gpus"][0]["name"]), operations(params)
    key = _key(machine, command)
    bus = _passed_on(key)
    if bus is None:
        trial = run(command)
        created = _CREATED.search(trial.log)  # with several GPUs, CUDA's first may be another than the driver's
        name, bus = created.group("name", "bus") if created else (name, "")
        warnings = judge(trial, name, required=params.train.require_gpu)
        _warn(warnings)
        if not warnings:
            files.write_json(PASSED, {"key": key, "bus": bus})
    if problem := mode_problem(name, compute_mode(bus)):
        raise HalfstepError(problem)


def operations(params: Params, device: str = "GPU") -> list[str]:
    """The command that tries a device: in float32, in the types of the listed variants, under XLA if one may use it."""
    listed = [params.variants[name] for name in params.train.variants]
    dtypes = dict.fromkeys(["float32", *(variant.dtype_policy.compute.name for variant in listed)])
    xla = ["--xla"] if any(variant.xla is not False for variant in listed) else []
    return [sys.executable, "-m", "halfstep.environment.gpu_operations", "--device", device, *xla, *dtypes]


def run(command: Sequence[str], limit_s: float = LIMIT_S) -> GpuTrial:
    """Runs the process that tries the device, for `limit_s` seconds at most."""
    ended = run_program(command, limit_s, gpu_failures.LOG_VARIABLES | search_path())
    return GpuTrial(ended.status, tuple(_events(ended.stdout.splitlines())), ended.stderr)


def _events(lines: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        with suppress(ValueError):  # a line that a library prints
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def judge(trial: GpuTrial, name: str, *, required: bool) -> list[str]:
    """Warnings about a GPU that was tried.

    Raises:
        HalfstepError: it cannot be used although it is `required`, or TensorFlow lists it and it fails.
    """
    step, error = trial.last("step"), trial.last("error")
    why = gpu_failures.last_line(f"{trial.log}\n{error or ''}")
    if step is None and trial.status:
        lines = trial.log.strip().splitlines() or [f"status {trial.status}"]
        raise HalfstepError(f"TensorFlow cannot be imported: {one_line(lines[-1], 500)}")
    if trial.status != 0:
        raise HalfstepError(
            f"{name} does not work: {step or 'the import of TensorFlow'} {_ending(trial.status)} {why}; "
            f"{_without_xla(step)}{gpu_failures.ON_THE_CPU}"
        )
    if trial.last("devices") == 0:
        text = f"TensorFlow cannot use {name} {why}"
        if required:
            raise HalfstepError(f"train.require_gpu is true, and {text}")
        return [f"{text}; computing on the CPU"]
    if trial.last("traced") is False:
        return [f"{name} is timed, but cannot be traced, so that reasons will be missing {why}"]
    return []


def _ending(status: int | None) -> str:
    if status is None:
        return f"takes longer than {LIMIT_S:.0f} s"
    if status < 0:
        return f"ends the process with {signal.Signals(-status).name}"
    return "fails"


def _without_xla(step: str | None) -> str:
    return "`xla: false` in the entries of variants avoids XLA; " if step and step.endswith("under XLA") else ""


def mode_problem(name: str, mode: int | None) -> str | None:
    """What is wrong with the compute mode of a GPU: `profile` needs several processes on it; None if nothing is."""
    if mode is None or mode not in _REFUSING_MODES or (mode == 3 and _mps_runs()):
        return None
    return (
        f"{name} is in {_REFUSING_MODES[mode]} mode, and profile runs several processes on it: "
        "`sudo nvidia-smi -c DEFAULT`, or start NVIDIA's MPS (`nvidia-cuda-mps-control -d`)"
    )


def _mps_runs() -> bool:
    """Whether the control daemon of NVIDIA's multi-process service, which admits several processes, has its pipe."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps", "control").exists()  # noqa: S108


def compute_mode(bus: str) -> int | None:
    """The compute mode of the GPU at this address of the PCI bus, as NVML's number; None if it is unknown."""
    with nvml() as library:
        if library is None:
            return None
        try:
            return int(library.nvmlDeviceGetComputeMode(library.nvmlDeviceGetHandleByPciBusId(bus.encode())))
        except library.NVMLError:
            return None


def _key(machine: Mapping[str, Any], command: Sequence[str]) -> str:
    """Changes with the machine, its software, its start, the container and what was tried."""
    boot = _BOOT_ID.read_text(encoding="utf-8").strip() if _BOOT_ID.exists() else ""
    state = {"machine": machine["sha256"], "boot": boot, "host": platform.node(), "command": list(command)}
    return fingerprint.digest(state)


def _passed_on(key: str) -> str | None:
    """Address of the GPU that passed; None if it has not passed in this state, or with a warning."""
    try:
        record = json.loads(PASSED.read_text(encoding="utf-8"))
        return str(record["bus"]) if record["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _warn(texts: Sequence[str]) -> None:
    for text in texts:
        print(f"warning: {text}", file=sys.stderr)
