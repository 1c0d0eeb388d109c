"""How much memory this process may still take."""

from __future__ import annotations

import psutil

from halfstep.machine import cgroups


def free_bytes() -> int:
    """Memory that is free on the machine, and in the control groups of this process."""
    free, in_groups = int(psutil.virtual_memory().available), cgroups.free_memory_bytes()
    return free if in_groups is None else min(free, in_groups)
