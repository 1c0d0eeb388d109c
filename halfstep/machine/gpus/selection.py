"""Which GPUs a CUDA program in this environment uses.

NVML counts GPUs in another way than CUDA, so GPUs are identified by UUID. `CUDA_VISIBLE_DEVICES` is read as CUDA does
(CUDA programming guide, environment variables): indices in CUDA's order, or UUIDs, also shortened; the first entry that
is none hides the rest. CUDA's order is that of the PCI bus with `CUDA_DEVICE_ORDER=PCI_BUS_ID`. Otherwise the fastest
GPU comes first and the rest is not specified, and CUDA itself is asked. A program uses one slice of a partitioned GPU,
and then no other GPU (MIG user guide, CUDA device enumeration).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from halfstep.machine.gpus import cuda, driver
from halfstep.machine.gpus.description import Gpu, Visible


def visible(variables: Mapping[str, str] = os.environ, *, model_only: bool = False) -> Visible:
    """The GPUs that a CUDA program with these environment variables uses.

    Args:
        variables: the environment of the program.
        model_only: whether it does not matter which of several GPUs of one model they are. Asking CUDA takes seconds.
    """
    with driver.nvml() as library:
        visible_gpus = select(driver.listed(library), variables, lambda: cuda.ask(variables), model_only=model_only)
        if library is None:
            return visible_gpus
        version, newest_cuda = driver.versions(library)
        return replace(visible_gpus, driver=version, driver_cuda=newest_cuda)


def are_hidden(machine: Sequence[Gpu], variables: Mapping[str, str] = os.environ) -> bool:
    """Whether `CUDA_VISIBLE_DEVICES` hides all of these GPUs, of which a program would see some without it."""

    def has_any(seen: Mapping[str, str]) -> bool:
        return bool(select(machine, seen, lambda: None).gpus)

    return "CUDA_VISIBLE_DEVICES" in variables and has_any({}) and not has_any(variables)


def select(
    machine: Sequence[Gpu],
    variables: Mapping[str, str],
    ask_cuda: Callable[[], Sequence[str] | None],
    *,
    model_only: bool = False,
) -> Visible:
    """Which GPUs of a machine CUDA shows.

    Args:
        machine: its GPUs, in the order of the PCI bus.
        variables: the environment of the program.
        ask_cuda: returns the UUIDs in CUDA's order without their prefixes; None if CUDA does not answer. Called only
            where NVML's answers leave it open.
        model_only: as in `visible`.
    """
    requested = variables.get("CUDA_VISIBLE_DEVICES")
    usable = [gpu for gpu in machine if gpu.uuid and (gpu.slices or not gpu.is_partitioned)]
    entries = [str(index) for index in range(len(usable))] if requested is None else requested.split(",")
    chosen, has_index, may_choose_slice = list[Gpu](), False, False
    for entry in map(str.strip, entries):
        gpu = _find(entry, usable)
        if gpu is None:
            break
        has_index |= entry.isdecimal()
        may_choose_slice |= len(gpu.slices) > 1  # CUDA uses the first, and NVML's order need not be CUDA's
        if gpu not in chosen:
            chosen.append(gpu)
    in_known_order = len(usable) <= 1 or not has_index or variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not chosen or (in_known_order and not may_choose_slice):
        return Visible(_as_cuda_shows(chosen))
    candidates = tuple(part for gpu in usable for part in gpu.slices) or tuple(usable)
    are_alike = len({gpu.model for gpu in candidates}) == 1
    answered = None if are_alike and model_only else ask_cuda()
    known = {gpu.uuid[4:].lower(): gpu for whole in usable for gpu in (whole, *whole.slices)}
    if answered is not None and all(name in known for name in answered):
        return Visible(tuple(known[name] for name in answered))
    return Visible(_as_cuda_shows(chosen) if are_alike else candidates, candidates)


def _find(entry: str, usable: Sequence[Gpu]) -> Gpu | None:
    """The GPU or slice that an entry of `CUDA_VISIBLE_DEVICES` names; None if it is not valid or not unique."""
    if entry.isdecimal():
        return usable[int(entry)] if int(entry) < len(usable) else None
    if old := re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", entry):  # drivers before 470
        parent, instance = _find(old[1], usable), (int(old[2]), int(old[3]))
        return next((part for part in parent.slices if part.instance == instance), None) if parent else None
    if not re.match(r"(GPU|MIG)-.", entry):
        return None
    devices = [*usable, *(part for gpu in usable for part in gpu.slices)]
    named = [gpu for gpu in devices if gpu.uuid.lower().startswith(entry.lower())]
    return named[0] if len(named) == 1 else None


def _as_cuda_shows(chosen: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The same with the first slice of partitioned GPUs: one slice alone, or GPUs that have none."""
    gpus = [gpu.slices[0] if gpu.slices else gpu for gpu in chosen]
    slices = [gpu for gpu in gpus if gpu.parent is not None]
    return tuple(slices[:1] or gpus)
