"""Locks on the outputs of a stage, on checkpoints and on the machine. The kernel frees a lock when its process ends.

DVC locks the outputs of a stage only while `dvc repro` itself runs. If `dvc repro` is killed, the stage that it started
takes some seconds to end, in which the next `dvc repro` would start a second process that writes the same outputs.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from halfstep.errors import BusyError, HalfstepError, ProfileError, printable
from halfstep.system.files import WORK_DIR
from halfstep.system.private import private_folder

WAIT_S = 10.0  # a stage whose pipeline was killed ends within this time
_POLL_S = 0.5
_FLOCK_UNSUPPORTED = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


@contextmanager
def stage_lock(stage: str) -> Iterator[None]:
    """Locks the outputs of a stage, named as in `dvc.yaml`.

    Raises:
        BusyError: another process runs the same stage in this directory and does not end within `WAIT_S`.
    """
    path = lock_file(stage)
    lock = try_lock(path, wait_s=WAIT_S)
    if lock is None:
        raise BusyError(
            f"{stage} is being run by {holder_of(path)}; wait for it or end it: both would write its results"
        )
    with lock:
        yield


@contextmanager
def machine_lock(path: Path | None = None) -> Iterator[None]:
    """Waits until no other `profile` of this user measures here: two concurrent measurements would disturb each other.

    Prints one line that names the process it waits for. Measurements of other users are not waited for, since a lock
    that all users can open could be held forever by any of them; they count as other load.

    Args:
        path: the lock file; by default, the same for all processes of this user on this machine.

    Raises:
        ProfileError: the lock file cannot be opened.
        HalfstepError: it is not a regular file.
    """
    path = path or private_folder() / "profile.lock"
    try:
        lock = try_lock(path)
        if lock is None:
            print(f"profile: waiting for {holder_of(path)}, which is measuring", file=sys.stderr, flush=True)
            lock = try_lock(path, wait_s=-1)
    except OSError as error:
        raise ProfileError(f"profile: the lock file {path} cannot be opened ({error.strerror}): remove it") from error
    assert lock is not None, "without a time limit, it waits until the lock is free"
    with lock:
        yield


def lock_file(stage: str, folder: Path = Path()) -> Path:
    """The lock file of a stage that runs in `folder`."""
    return folder / WORK_DIR / "locks" / f"{stage}.lock"


def try_lock(path: Path, wait_s: float = 0.0) -> AbstractContextManager[object] | None:
    """Locks a file, which is created if missing.

    Args:
        path: the lock file. While it is locked, its content describes the process that holds the lock.
        wait_s: seconds to wait for another process to release the lock; negative: no limit.

    Returns:
        The acquired lock as a context manager, which releases it; None if another process holds the lock. On a file
        system without locks, a context manager that does nothing: there, only DVC's own lock protects the outputs.

    Raises:
        HalfstepError: the path is not a regular file.
    """
    _require_regular_file(path)
    lock = FileLock(path, preserve_lock_file=True, on_acquired=_write_holder)
    try:
        return lock.acquire(timeout=wait_s, poll_interval=_POLL_S)
    except Timeout:
        return None
    except FileNotFoundError:  # who held it has removed the folder meanwhile
        path.parent.mkdir(parents=True, exist_ok=True)
        return try_lock(path, wait_s)
    except OSError as error:
        if error.errno not in _FLOCK_UNSUPPORTED:
            raise
        return nullcontext()


def _require_regular_file(path: Path) -> None:
    """A named pipe can be locked, but reading the holder from it would block."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise HalfstepError(f"the lock file {path} must be a regular file and is {stat.filemode(mode)}: remove it")


def _write_holder(descriptor: int) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "folder": str(Path.cwd()), "since": since}
    with suppress(OSError):  # a full disk: the message will not name the holder
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def holder_of(path: Path) -> str:
    """Names the process that has locked a file, for a message."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        command = ""
        if holder["host"] == socket.gethostname():
            with suppress(psutil.Error):
                command = f" (`{shlex.join(psutil.Process(holder['pid']).cmdline())[:100]}`)"
        text = f"process {holder['pid']}{command} on {holder['host']} in {holder['folder']} since {holder['since']}"
        return printable(text, 300)
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended may stay listed where nothing waits for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
