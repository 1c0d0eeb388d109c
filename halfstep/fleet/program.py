"""What runs on a node: an actor for each job, which copies the tree that Ray brought and starts a program in the copy.

Ray sends this module by value, so it imports the standard library only: a node may lack what halfstep needs.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

LOST = 75  # EX_TEMPFAIL of sysexits.h: the status of a program that can be tried again
NODE_FAULT = 74  # EX_IOERR: the status of a program that this node cannot run
STOP_S = 60.0  # for a program to save its checkpoint
# Libraries quote it, and DVC and shutil then name two files, as in "'from' -> 'to'".
_REASONS = "|".join(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))
_DISK_FULL = re.compile(rf"(?P<reason>{_REASONS})(?:: '[^']*' -> '(?P<target>[^']*)')?")
# Ray's own; those of a stage; and what would make a training take the job that started Ray for its hosts.
_NOT_PASSED_ON = ("RAY_", "DVC_ROOT", "DVC_STAGE", "SLURM_", "TF_CONFIG", "PYTHONPATH")


class Program:
    """An actor that runs one program. `stop` is called while `run` waits, in another thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = threading.Lock()
        self._stopped = False

    def run(
        self, order: dict[str, Any], contents: dict[str, bytes], versions: dict[str, str]
    ) -> Iterator[tuple[Any, ...]]:
        """Runs the program.

        Args:
            order: the fields of the `Job`, `variables` (added to the environment) and `checkout` (identifier of the
                head's checkout).
            contents: files that are written into the copy of the tree, by relative path.
            versions: of Python (major and minor) and of packages that the node must have.

        Yields:
            `("started", host, node)`; `("line", text)` for each line that the program prints;
            `("fault", reason)` if this node cannot run it, or `("ended", status, reason, files)`, where `reason` is the
            last line of a program that failed.
        """
        import ray

        yield "started", socket.gethostname(), ray.get_runtime_context().get_node_id()
        try:
            _require_versions(versions)
            with _copied_tree(order["checkout"], contents) as work:
                ended = yield from self._run(work, order)
        except (_NodeError, OSError) as fault:
            yield "fault", _explained(fault, _home(order["checkout"]))
        else:
            yield "ended", *ended

    def stop(self) -> None:
        """Ends the program and what it has started, and waits for that. A training saves a checkpoint."""
        with self._starts:
            self._stopped = True
        for number, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, 5.0)):
            ends_s = time.monotonic() + seconds
            with suppress(ProcessLookupError):  # none of them runs any more
                if self._process is not None:
                    os.killpg(self._process.pid, number)
                    while time.monotonic() < ends_s:
                        os.killpg(self._process.pid, 0)
                        time.sleep(0.1)

    def _run(self, work: Path, order: dict[str, Any]) -> Generator[tuple[Any, ...], None, tuple[int, str]]:
        command = [sys.executable, "-u", "-m", "halfstep.fleet.node", *order["arguments"]]
        with self._starts:
            if self._stopped:
                return LOST, "it was ended"
            self._process = subprocess.Popen(
                command,
                cwd=work,
                env=_environment(work, order),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the shell of `ray start --block` reaches all processes of its own
            )
        assert self._process.stdout is not None
        last = ""
        for raw in self._process.stdout:
            if line := raw.decode(errors="replace").rstrip():
                last = line
                yield "line", line
        status = self._process.wait()
        if status == NODE_FAULT:
            raise _NodeError(last)
        return LOST if status < 0 else status, last if status else ""


class _NodeError(Exception):
    """This node cannot run the program."""


def _explained(fault: Exception, home: Path) -> str:
    """Why this node cannot run the program. A full disk is named in place of the file that was copied to it."""
    if full := _DISK_FULL.search(str(fault)):
        place = Path(full["target"] or home).resolve()  # which may be gone
        disk = next(folder for folder in (place, *place.parents) if folder.is_mount())
        return f"the disk {disk} is full ({full['reason']}): free some space there"
    if isinstance(fault, shutil.Error):
        return str(fault.args[0][0][-1])
    if isinstance(fault, OSError):
        return f"{fault.filename or 'a file'}: {fault.strerror or fault}"
    return str(fault)


def _require_versions(expected: Mapping[str, str]) -> None:
    for name, version in expected.items():
        installed = version_of(name)
        if installed != version:
            has = f"has {name} {installed}" if installed else f"does not have {name}"
            advice = "install requirements.txt in the environment in which `ray start` runs"
            raise _NodeError(f"it {has}, and {version} is needed: {advice}")


def version_of(name: str) -> str | None:
    """The version of a package here, None without it; of `python` its major and minor version."""
    if name == "python":
        return ".".join(platform.python_version_tuple()[:2])
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def node_environment() -> dict[str, str]:
    """The environment in which `ray start` ran: that of the raylet, which is the parent of a Ray worker.

    Ray adds variables to that of a worker, such as OMP_NUM_THREADS, which could change results and timings.
    """
    try:
        pairs = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        environment = dict(os.fsdecode(pair).partition("=")[::2] for pair in pairs if b"=" in pair)
    except OSError:
        environment = dict(os.environ)
    return {name: value for name, value in environment.items() if not name.startswith(_NOT_PASSED_ON)}


def _home(checkout: str) -> Path:
    """Folder of a checkout on this node: its DVC cache, its checkpoints, and the copies of the tree."""
    base = node_environment().get("HALFSTEP_FLEET") or "~/.cache/halfstep/fleet"
    return Path(os.path.expanduser(base)) / socket.gethostname() / checkout  # noqa: PTH111  raises no error


@contextmanager
def _copied_tree(checkout: str, contents: Mapping[str, bytes]) -> Iterator[Path]:
    """A copy of the tree in the worker's folder, which all workers of the node share. It is removed in the end."""
    home = _home(checkout)
    home.mkdir(parents=True, exist_ok=True)
    for left in home.glob("work-*"):  # of workers that were killed
        if not Path(f"/proc/{left.name.split('-')[1]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"work-{os.getpid()}-", dir=home))
    try:
        shutil.copytree(Path.cwd(), work, dirs_exist_ok=True)
        for name, content in contents.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(content)
        with (work / ".dvc" / "config.local").open("a", encoding="utf-8") as config:
            config.write(f'[cache]\n    dir = "{home / "cache"}"\n    type = "reflink,hardlink,copy"\n')
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _environment(work: Path, order: Mapping[str, Any]) -> dict[str, str]:
    """The node's own environment, with this Python first on the path, the GPUs that Ray chose, and limited threads."""
    environment = node_environment()
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    environment["DVC_SITE_CACHE_DIR"] = str(work / ".dvc" / "tmp" / "site")  # DVC would keep a folder for each copy
    environment.setdefault("HALFSTEP_CHECKPOINTS", str(work.parent / "checkpoints"))
    installed = Path("/proc/driver/nvidia/gpus")
    gpus = len(list(installed.iterdir())) if installed.is_dir() else 0
    if order["gpus"] == 0 and gpus:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    elif order["gpus"] < gpus and "CUDA_VISIBLE_DEVICES" in os.environ:  # of all GPUs, the fingerprint needs no list
        environment["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    if (threads := order["threads"]) and threads < len(os.sched_getaffinity(0)):
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            environment.setdefault(name, str(threads))
    return environment | order["variables"]
