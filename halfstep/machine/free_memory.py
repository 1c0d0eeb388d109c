"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

from halfstep.machine import cgroups


def free_bytes() -> int:
    """Memory that is free on the machine, and in the control groups of this process."""
    free, in_groups = _available_bytes(), cgroups.free_memory_bytes()
    return free if in_groups is None else min(free, in_groups)


def _available_bytes() -> int:
    """Memory that is free on the machine."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        import psutil

        return int(psutil.virtual_memory().available)
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
