"""CPU quotas and memory limits of the control groups of this process (cgroup v2 and v1).

A limit may be set on the group of the process or on any group above it: a container, a systemd slice, a session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
_V2 = "cgroup2"
_UNLIMITED = 2**62  # bytes: v1 without a limit has the largest multiple of a page below 2**63
_ESCAPED = re.compile(r"\\([0-7]{3})")  # a space in a mount point is \040


@dataclass(frozen=True)
class _Mount:
    """A mounted hierarchy: `folder` shows its group `group`."""

    version: str
    group: PurePosixPath
    folder: Path


def cpu_quota_cores() -> float | None:
    """The tightest CPU quota of the groups of this process, in cores; None without a limit."""
    quotas = [quota for folder in _folders("cpu") if (quota := _quota_cores(folder)) is not None]
    return max(round(min(quotas), 2), 0.01) if quotas else None


def free_memory_bytes() -> int | None:
    """The least memory that a group of this process has left; None without a limit. Page caches count as free."""
    return min((free for folder in _folders("memory") if (free := _free_bytes(folder)) is not None), default=None)


def _folders(controller: str) -> Iterator[Path]:
    """The folders of the own group and of the groups above it, as far as they are mounted."""
    mounts, own = list(_mounts(controller)), _own_groups(controller)
    for mount in mounts:
        yield from _upwards(mount, own.get(mount.version, PurePosixPath("/")))
    if not mounts:  # some sandboxes have the files, but no list of mounts
        yield from (ROOT / "sys/fs/cgroup", ROOT / "sys/fs/cgroup" / controller)


def _upwards(mount: _Mount, group: PurePosixPath) -> Iterator[Path]:
    inner = group.relative_to(mount.group) if group.is_relative_to(mount.group) else PurePosixPath()
    if ".." in inner.parts:  # a group outside of the namespace of this process
        inner = PurePosixPath()
    yield mount.folder / inner
    yield from (mount.folder / above for above in inner.parents)


def _own_groups(controller: str) -> dict[str, PurePosixPath]:
    """The group of this process by version, from lines such as `0::/user.slice` and `4:cpu,cpuacct:/docker/1f`."""
    groups = {}
    for line in _lines("proc/self/cgroup"):
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            groups[_V2] = PurePosixPath(path)
        elif controller in controllers.split(","):
            groups["cgroup"] = PurePosixPath(path)
    return groups


def _mounts(controller: str) -> Iterator[_Mount]:
    """The mounted hierarchies with a controller. The fields are described in proc_pid_mountinfo(5)."""
    for line in _lines("proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, (version, *_, options) = before.split(), (*after.split(), "", "")[:3]
        if len(fields) > 4 and (version == _V2 or (version == "cgroup" and controller in options.split(","))):
            group, folder = (_ESCAPED.sub(lambda code: chr(int(code[1], 8)), field) for field in fields[3:5])
            yield _Mount(version, PurePosixPath(group), ROOT / folder.lstrip("/"))


def _lines(path: str) -> list[str]:
    try:
        return (ROOT / path).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _quota_cores(folder: Path) -> float | None:
    try:
        cores = _quotient(folder)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or `max`
        return None
    return cores if cores > 0 else None  # v1: -1 without a limit


def _quotient(folder: Path) -> float:
    if (folder / "cpu.max").exists():
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
    else:
        quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8")
        period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8")
    return int(quota) / int(period)


def _free_bytes(folder: Path) -> int | None:
    with suppress(OSError, ValueError, KeyError):  # no such file, or `max`
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
        if (folder / "memory.max").exists():
            return int((folder / "memory.max").read_text(encoding="utf-8")) - int(stat["anon"])
        limit = int((folder / "memory.limit_in_bytes").read_text(encoding="utf-8"))
        return limit - int(stat["total_rss"]) if limit < _UNLIMITED else None
    return None
