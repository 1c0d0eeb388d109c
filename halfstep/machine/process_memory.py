"""The memory of a process."""

from __future__ import annotations

import os
from pathlib import Path


def rss_and_shared_bytes(pid: int) -> tuple[int, int]:
    """Resident memory of a process, and the part of it that others may share, such as loaded code.

    Raises:
        OSError, psutil.Error: it has ended.
    """
    statm = Path(f"/proc/{pid}/statm")
    if Path("/proc/self/statm").exists():
        _, rss, shared, *_ = map(int, statm.read_text().split())
        page = os.sysconf("SC_PAGE_SIZE")
        return rss * page, shared * page
    import psutil  # not on Linux, and not in a user's interpreter there

    memory = psutil.Process(pid).memory_info()
    return memory.rss, getattr(memory, "shared", 0)
