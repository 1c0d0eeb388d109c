"""What a Ray worker runs on a node: it makes a clone of the head's checkout, and starts a program of the clone in it.

Ray sends this module by value, so it imports the standard library only: a node has no code of halfstep before it has
the clone, and may have another release installed.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

REF = "refs/halfstep/fleet"
_SHARED_VARIABLES = ("HALFSTEP_CHECKPOINTS", "MLFLOW_TRACKING_URI")  # whether a node has them, not their values
# Ray's own; those of a stage; and what would make a training take the job that started Ray for its hosts.
_NOT_PASSED_ON = ("RAY_", "DVC_ROOT", "DVC_STAGE", "SLURM_", "TF_CONFIG")
_TAIL = 20  # lines


class Events:
    """Collects what the nodes report until the head takes it. An actor on the head's machine."""

    def __init__(self) -> None:
        self._events: list[tuple[str, str, str]] = []

    def put(self, job: str, kind: str, text: str) -> None:
        """Adds one event of a job."""
        self._events.append((job, kind, text))

    def take(self) -> list[tuple[str, str, str]]:
        """Returns the events since the last call, in the order in which they came."""
        taken, self._events = self._events, []
        return taken


def describe(packages: list[str], probe: str | None) -> dict[str, Any]:
    """Describes this node: the versions of `packages` (None: not installed), and whether it sees the file `probe`."""
    variables = node_environment()
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "variables": {name: bool(variables.get(name)) for name in _SHARED_VARIABLES},
        "sees_probe": probe is None or os.path.isfile(probe),  # noqa: PTH113  Path.is_file raises an error
    }


def run(parcel: dict[str, Any], order: dict[str, Any], events: Any) -> dict[str, Any]:
    """Runs a program of the clone, and returns its exit status and the files that it wrote.

    Args:
        parcel: what `stages.fleet.parcel.build` returns.
        order: `name`, `module`, `arguments`, `collect` (files and folders relative to the clone), `gpus`, `threads`
            (None: not limited) and `variables` (added to the environment).
        events: handle of the actor `Events`.

    Returns:
        `host`, `status`, `reason` (the last line that the program printed; empty if its status is 0) and `files`
        (content by relative path).
    """
    host = socket.gethostname()
    events.put.remote(order["name"], "started", host)
    result: dict[str, Any] = {"host": host, "status": 1, "reason": "", "files": {}}
    try:
        with locked_slot(folder_of(parcel["checkout"])) as (clone, lock):
            work = update(clone, parcel)
            result["status"], result["reason"] = _run(work, order, events, lock)
            result["files"] = dict(_collected(work, order["collect"])) if result["status"] == 0 else {}
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or b"").decode(errors="replace").strip().splitlines() or [""]
        result["reason"] = f"{' '.join(map(str, error.cmd[:2]))}: {lines[-1]}"
    except OSError as error:
        result["reason"] = f"{error.filename or 'a file'}: {error.strerror or error}"
    return result


def folder_of(checkout: str) -> Path:
    """Folder of the clones of a checkout on this node."""
    base = node_environment().get("HALFSTEP_FLEET") or "~/.cache/halfstep/fleet"
    return Path(os.path.expanduser(base)) / socket.gethostname() / checkout  # noqa: PTH111  raises no error


@contextmanager
def locked_slot(folder: Path) -> Iterator[tuple[Path, int]]:
    """Locks the first clone that no other task uses; yields its folder and the descriptor of the lock.

    Programs that inherit the descriptor keep the lock after the Ray worker has died, until they have ended, too.
    """
    for number in range(10_000):
        slot = folder / f"slot-{number}"
        slot.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f"slot-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield slot, descriptor
        finally:
            os.close(descriptor)
        return
    raise OSError(f"{folder}: all clones are in use")


def update(clone: Path, parcel: dict[str, Any]) -> Path:
    """Makes `clone` equal to the head's commit with its tracked changes. Returns the folder that has `dvc.yaml`.

    What git ignores stays: DVC's outputs, `.halfstep/` and a tracking store.
    """
    if not (clone / ".git").exists():
        _git(clone, "init", "--quiet")
    if not _has(clone, parcel["tree"]):
        bundle = clone / ".git" / "fleet.bundle"
        bundle.write_bytes(parcel["bundle"])
        _git(clone, "fetch", "--quiet", "--force", str(bundle), f"+{REF}:{REF}")
        bundle.unlink()
    _git(clone, "update-ref", "--no-deref", "HEAD", parcel["commit"])  # an interrupted update leaves no branch behind
    _git(clone, "read-tree", "--reset", "-u", f"{parcel['tree']}^{{tree}}")
    _git(clone, "clean", "--quiet", "-d", "--force")
    work = clone / parcel["prefix"]
    for name, content in parcel["files"].items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    cache = json.dumps(str(clone.parent / "cache"))
    config = f'{parcel["dvc_config"]}[cache]\n    dir = {cache}\n    type = "reflink,hardlink,copy"\n'
    (work / ".dvc" / "config.local").write_text(config, encoding="utf-8")
    return work


def node_environment() -> dict[str, str]:
    """The environment in which `ray start` ran: that of the raylet, which is the parent of a Ray worker.

    Ray adds variables to that of a worker, such as OMP_NUM_THREADS, which could change results and timings.
    """
    try:
        pairs = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        found = dict(os.fsdecode(pair).partition("=")[::2] for pair in pairs if b"=" in pair)
    except OSError:
        found = dict(os.environ)
    return {name: value for name, value in found.items() if not name.startswith(_NOT_PASSED_ON)}


def _run(work: Path, order: dict[str, Any], events: Any, lock: int) -> tuple[int, str]:
    command = [sys.executable, "-u", "-m", order["module"], *order["arguments"]]
    process = subprocess.Popen(
        [sys.executable, "-m", "stages.fleet.supervisor", *command],
        cwd=work,
        env=_environment(order),
        stdin=subprocess.PIPE,  # the supervisor reads its end when this process dies
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(lock,),
    )
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=_TAIL)
    for raw in process.stdout:
        if line := raw.decode(errors="replace").rstrip():
            tail.append(line)
            events.put.remote(order["name"], "line", line)
    status = process.wait()
    return status, tail[-1] if status and tail else ""


def _environment(order: dict[str, Any]) -> dict[str, str]:
    """The node's own environment, with this Python first on the path, the GPUs that Ray chose, and limited threads."""
    found = node_environment()
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", os.defpath)])
    installed = Path("/proc/driver/nvidia/gpus")
    gpus = len(list(installed.iterdir())) if installed.is_dir() else 0
    if order["gpus"] == 0 and gpus:
        found["CUDA_VISIBLE_DEVICES"] = "-1"
    elif order["gpus"] < gpus and "CUDA_VISIBLE_DEVICES" in os.environ:  # of all GPUs, the fingerprint needs no list
        found["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    if (threads := order["threads"]) and threads < len(os.sched_getaffinity(0)):
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            found.setdefault(name, str(threads))
    return found | order["variables"]


def _collected(work: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        base = work / name
        for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
            if path.is_file():
                yield path.relative_to(work).as_posix(), path.read_bytes()


def _git(folder: Path, *arguments: str) -> None:
    environment = node_environment()
    for name in [name for name in environment if name.startswith("GIT_")]:
        del environment[name]
    subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True)


def _has(clone: Path, commit: str) -> bool:
    command = ["git", "cat-file", "-e", f"{commit}^{{tree}}"]
    return subprocess.run(command, cwd=clone, check=False, capture_output=True).returncode == 0


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
