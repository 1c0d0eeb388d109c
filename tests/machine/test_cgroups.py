"""Limits in trees with the literal lines of real systems, and limits that this machine sets on a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages import files
from stages.machine import cgroups

V2_MOUNT = "35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
HOST_V1_MOUNTS = """\
31 23 0:27 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:28 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec,relatime shared:10 - cgroup2 cgroup2 rw,nsdelegate
37 31 0:33 / /sys/fs/cgroup/cpuset rw,nosuid,nodev,noexec,relatime shared:17 - cgroup cgroup rw,cpuset
38 31 0:34 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:18 - cgroup cgroup rw,cpu,cpuacct
"""
HOST_V1_GROUPS = "4:cpu,cpuacct:/user.slice\n3:cpuset:/\n1:name=systemd:/user.slice/user-1000.slice/session-2.scope\n"
USER_SLICE = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-u42.scope"
POD = "/kubepods/burstable/pod7f6c2d7e-1f6d-4d37-9d0c-2f8d4d0b1c55/6c1d1e7f0b"
POD_MOUNT = f"""\
1490 1485 0:130 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,mode=755
1497 1490 0:34 {POD} /sys/fs/cgroup/cpu,cpuacct ro,nosuid,nodev,noexec,relatime master:18 - cgroup cgroup rw,cpu,cpuacct
"""
CPU_V1 = "sys/fs/cgroup/cpu,cpuacct"


def v1(folder: str, quota_us: int) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota_us}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


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
        (HOST_V1_GROUPS, HOST_V1_MOUNTS, v1(CPU_V1, -1) | v1(f"{CPU_V1}/user.slice", 400000), 4.0),
        (HOST_V1_GROUPS, HOST_V1_MOUNTS, v1(CPU_V1, -1) | v1(f"{CPU_V1}/user.slice", -1), None),
        (f"4:cpu,cpuacct:{POD}\n0::/\n", POD_MOUNT, v1(CPU_V1, 150000), 1.5),
        ("4:cpu,cpuacct:/\n", POD_MOUNT, v1(CPU_V1, 150000), 1.5),
        ("1:cpu:/a:b\n", HOST_V1_MOUNTS, v1(f"{CPU_V1}/a:b", 50000), 0.5),
        ("", V2_MOUNT, v2("", "250000 100000"), 2.5),
        ("0::/\n", "", v2("", "250000 100000"), 2.5),
        ("", "", v1("sys/fs/cgroup/cpu", 400000), 4.0),
        ("0::/\n", V2_MOUNT, v2("", "100 100000"), 0.01),
        ("0::/\n", V2_MOUNT, v2("", "100000 0"), None),
        ("0::/\n", V2_MOUNT, v2("", "text"), None),
        ("text\n::\n", "35 24 - cgroup2\n - \ntext\n", {}, None),
    ],
    ids=[
        "docker v2",
        "docker v2 without a limit",
        "root group of v2, which has no cpu.max",
        "systemd without a limit",
        "systemd scope",
        "systemd slice above",
        "tightest of several",
        "another group",
        "outside of the namespace",
        "group that is gone",
        "mounted elsewhere, with a space",
        "v1 child group",
        "v1 without a limit",
        "kubernetes v1, host's path",
        "kubernetes v1, namespace",
        "colon in the name",
        "no list of groups",
        "no list of mounts, v2",
        "no list of mounts, v1",
        "tiny quota",
        "period of 0",
        "no numbers",
        "damaged lists",
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


MEMORY_V1_MOUNT = HOST_V1_MOUNTS + (
    "39 31 0:35 / /sys/fs/cgroup/memory rw,nosuid,nodev,noexec,relatime shared:19 - cgroup cgroup rw,memory\n"
)
MEMORY_V1_GROUPS = f"{HOST_V1_GROUPS}9:memory:/user.slice/user-1000.slice\n0::/user.slice\n"
MEMORY_V1 = "sys/fs/cgroup/memory"
NO_LIMIT_V1 = 9223372036854771712


def memory_v1(group: str, limit: int, used: int) -> dict[str, str]:
    return {
        f"{MEMORY_V1}{group}/memory.limit_in_bytes": f"{limit}\n",
        f"{MEMORY_V1}{group}/memory.stat": f"cache 9000\nrss 1\ntotal_cache 9000\ntotal_rss {used}\n",
    }


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
        (
            MEMORY_V1_GROUPS,
            MEMORY_V1_MOUNT,
            memory_v1("", NO_LIMIT_V1, 9000) | memory_v1("/user.slice/user-1000.slice", 5000, 1000),
            4000,
        ),
        (
            MEMORY_V1_GROUPS,
            MEMORY_V1_MOUNT,
            memory_v1("/user.slice", 6000, 5500) | memory_v1("/user.slice/user-1000.slice", 5000, 1000),
            500,
        ),
        (MEMORY_V1_GROUPS, MEMORY_V1_MOUNT, memory_v1("", NO_LIMIT_V1, 9000), None),
        (MEMORY_V1_GROUPS, HOST_V1_MOUNTS, memory_v1("", 5000, 1000), None),
        ("", "", memory_v1("", 5000, 1000), 4000),
        ("0::/\n", V2_MOUNT, {"sys/fs/cgroup/memory.max": "5000", "sys/fs/cgroup/memory.stat": "text"}, None),
    ],
    ids=[
        "docker v2",
        "v2 without a limit",
        "systemd scope",
        "least memory left",
        "another group",
        "v1 child group",
        "v1 group above",
        "v1 without a limit",
        "v1, not mounted",
        "no list of mounts, v1",
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


@pytest.fixture(params=[("cpu", "cpu.cfs_quota_us", 50_000), ("memory", "memory.limit_in_bytes", 2**29)])
def limited_group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A control group of this machine (v1) with half a core or 512 MiB, with another without a limit in it."""
    controller, file, limit = request.param
    outer = Path("/sys/fs/cgroup") / controller / "halfstep-test"
    try:
        (outer / "inner").mkdir(parents=True)
        (outer / file).write_text(str(limit))
    except OSError as error:
        pytest.skip(f"control groups cannot be created here ({error.strerror})")
    yield outer / "inner"
    (outer / "inner").rmdir()
    outer.rmdir()


def test_limit_of_a_real_group_of_its_own(limited_group: Path, root: Path) -> None:
    check = (
        "import os; from pathlib import Path\n"
        f"Path({str(limited_group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        "from stages.machine.cgroups import cpu_quota_cores, free_memory_bytes\n"
        "print(cpu_quota_cores(), free_memory_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True, check=True)
    cores, free_bytes = done.stdout.split()
    if "cpu" in limited_group.parts:
        assert cores == "0.5"
    else:
        assert 2**29 - 2**26 < int(free_bytes) <= 2**29
