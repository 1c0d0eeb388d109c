"""CPU quotas and memory limits of the control groups of this process (cgroup v2).

A limit may be set on the group of the process or on any group above it: a container, a systemd slice, a session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = Path("/")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # a space in a mount point is \040


def cpu_quota_cores() -> float | None:
    """The tightest CPU quota of the groups of this process, in cores; None without a limit."""
    quotas = [quota for folder in _folders() if (quota := _quota_cores(folder)) is not None]
    return max(round(min(quotas), 2), 0.01) if quotas else None


def free_memory_bytes() -> int | None:
    """The least memory that a group of this process has left; None without a limit. Page caches count as free."""
    return min((free for folder in _folders() if (free := _free_bytes(folder)) is not None), default=None)


def _folders() -> Iterator[Path]:
    """The folders of the own group and of the groups above it, as far as they are mounted."""
    own = next((PurePosixPath(line[3:]) for line in _lines("proc/self/cgroup") if line.startswith("0::")), None)
    mounts = list(_mounts())
    for group, folder in mounts:
        inner = own.relative_to(group) if own is not None and own.is_relative_to(group) else PurePosixPath()
        if ".." in inner.parts:  # a group outside of the namespace of this process
            inner = PurePosixPath()
        yield folder / inner
        yield from (folder / above for above in inner.parents)
    if not mounts:  # some sandboxes have the files, but no list of mounts
        yield ROOT / "sys/fs/cgroup"


def _mounts() -> Iterator[tuple[PurePosixPath, Path]]:
    """The group that each mounted hierarchy shows, and its folder: the fields of proc_pid_mountinfo(5)."""
    for line in _lines("proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 4 and after.startswith("cgroup2 "):
            group, folder = (_ESCAPED.sub(lambda code: chr(int(code[1], 8)), field) for field in fields[3:5])
            yield PurePosixPath(group), ROOT / folder.lstrip("/")


def _lines(path: str) -> list[str]:
    try:
        return (ROOT / path).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _quota_cores(folder: Path) -> float | None:
    with suppress(OSError, ValueError, ZeroDivisionError):  # no such file, or `max`
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        return int(quota) / int(period)
    return None


def _free_bytes(folder: Path) -> int | None:
    with suppress(OSError, ValueError, KeyError):  # no such file, or `max`
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
        return int((folder / "memory.max").read_text(encoding="utf-8")) - int(stat["anon"])
    return None
