"""Limits in trees with the literal lines of real systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.machine import cgroups
from halfstep.system import files

V2_MOUNT = "35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
USER_SLICE = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-u42.scope"


def v2(group: str, quota: str, mount: str = "sys/fs/cgroup") -> dict[str, str]:
    return {f"{mount}{group}/cpu.max": f"{quota}\n"}


SLICES = v2("/user.slice", "max 100000") | v2(USER_SLICE, "max 100000")


@pytest.mark.parametrize(
    ("groups", "mounts", "contents", "cores"),
    [
        ("0::/\n", V2_MOUNT, v2("", "250000 100000"), 2.5),
        ("0::/\n", V2_MOUNT, v2("", "max 100000"), None),
        ("0::/\n", V2_MOUNT, {}, None),
        (f"0::{USER_SLICE}\n", V2_MOUNT, SLICES, None),
        (f"0::{USER_SLICE}\n", V2_MOUNT, SLICES | v2(USER_SLICE, "50000 100000"), 0.5),
        (f"0::{USER_SLICE}\n", V2_MOUNT, SLICES | v2("/user.slice/user-1000.slice", "150000 100000"), 1.5),
        (
            f"0::{USER_SLICE}\n",
            V2_MOUNT,
            SLICES | v2(USER_SLICE, "300000 100000") | v2("/user.slice", "20000 10000"),
            2.0,
        ),
        (f"0::{USER_SLICE}\n", V2_MOUNT, SLICES | v2("/system.slice", "10000 100000"), None),
        ("0::/../../other\n", V2_MOUNT, v2("", "100000 100000"), 1.0),
        ("0::/docker/1f (deleted)\n", V2_MOUNT, v2("/docker", "100000 100000"), 1.0),
        ("0::/box\n", V2_MOUNT.replace("/sys/fs/cgroup", "/mnt/a\\040b"), v2("/box", "70000 100000", "mnt/a b"), 0.7),
        ("", V2_MOUNT, v2("", "250000 100000"), 2.5),
        ("0::/\n", "", v2("", "250000 100000"), 2.5),
        ("0::/\n", V2_MOUNT, v2("", "100 100000"), 0.01),
        ("0::/\n", V2_MOUNT, v2("", "100000 0"), None),
        ("0::/\n", V2_MOUNT, v2("", "text"), None),
        ("text\n::\n", "35 24 - cgroup2\n - \ntext\n", {}, None),
    ],
    ids=[
        *("docker v2", "docker v2 without a limit", "root group of v2, which has no cpu.max"),
        *("systemd without a limit", "systemd scope", "systemd slice above", "tightest of several", "another group"),
        *("outside of the namespace", "group that is gone", "mounted elsewhere, with a space", "no list of groups"),
        *("no list of mounts, v2", "tiny quota", "period of 0", "no numbers", "damaged lists"),
    ],
)
def test_cpu_quota(
    groups: str,
    mounts: str,
    contents: dict[str, str],
    cores: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_tree(tmp_path, groups, mounts, contents, monkeypatch)
    assert cgroups.cpu_quota_cores() == cores


def write_tree(root: Path, groups: str, mounts: str, contents: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "ROOT", root)
    lists = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    for name, content in (contents | {name: text for name, text in lists.items() if text}).items():
        files.write_text(root / name, content)


def memory_v2(group: str, limit: str, used: int) -> dict[str, str]:
    folder = f"sys/fs/cgroup{group}"
    return {f"{folder}/memory.max": f"{limit}\n", f"{folder}/memory.stat": f"anon {used}\nfile 9000\n"}


@pytest.mark.parametrize(
    ("groups", "mounts", "contents", "free_bytes"),
    [
        ("0::/\n", V2_MOUNT, memory_v2("", "5000", 1000), 4000),
        ("0::/\n", V2_MOUNT, memory_v2("", "max", 1000), None),
        (f"0::{USER_SLICE}\n", V2_MOUNT, memory_v2(USER_SLICE, "5000", 1000), 4000),
        (
            f"0::{USER_SLICE}\n",
            V2_MOUNT,
            memory_v2(USER_SLICE, "5000", 1000) | memory_v2("/user.slice", "7000", 6000),
            1000,
        ),
        (f"0::{USER_SLICE}\n", V2_MOUNT, memory_v2("/system.slice", "5000", 1000), None),
        ("0::/\n", V2_MOUNT, {"sys/fs/cgroup/memory.max": "5000", "sys/fs/cgroup/memory.stat": "text"}, None),
    ],
    ids=[
        "docker v2",
        "v2 without a limit",
        "systemd scope",
        "least memory left",
        "another group",
        "no numbers",
    ],
)
def test_free_memory(
    groups: str,
    mounts: str,
    contents: dict[str, str],
    free_bytes: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_tree(tmp_path, groups, mounts, contents, monkeypatch)
    assert cgroups.free_memory_bytes() == free_bytes
