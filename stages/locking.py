"""One writer at a time, which ends with the pipeline that started it.

DVC locks the outputs of a stage for as long as `dvc repro` itself lives. Where it is killed, the stage that it has
started lives on, and the next `dvc repro` would start a second one on the same outputs.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import psutil

from stages.errors import BusyError
from stages.files import SCRATCH

WAIT_S = 10.0  # a stage whose pipeline has just been killed ends within this time
_POLL_S = 0.5
_SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh", "busybox"}
# Who inherits the children of a process that has ended.
_FOSTER_PARENTS = {"init", "systemd", "launchd", "tini", "docker-init", "dumb-init", "catatonit"}
_held: set[Path] = set()


@contextmanager
def only_writer(stage: str) -> Iterator[None]:
    """Holds the outputs of a stage, named as DVC names it; under DVC, sees to it that it ends with its pipeline.

    The kernel keeps the lock, on a file in this working folder: it is free once its holder has ended, however it ended.

    Raises:
        BusyError: another process is at work on the same stage, here, and does not end.
        SystemExit: the pipeline has ended already.
    """
    if "DVC_STAGE" in os.environ:  # whoever starts a stage by hand may leave
        _end_with_the_pipeline(stage)
    path = lock_file(stage)
    stream = _waited_for(path)
    if stream is None:
        raise BusyError(
            f"{stage} is being run by {_holder(path)}; wait for it or end it: two writers would spoil the results"
        )
    with stream:
        _sign(stream, stage)
        _held.add(path.resolve())
        try:
            yield
        finally:
            _held.discard(path.resolve())


def lock_file(stage: str, folder: Path = Path()) -> Path:
    """What the process that runs a stage in a working folder holds."""
    return folder / SCRATCH / "locks" / f"{stage}.lock"


def is_free(stage: str, folder: Path = Path()) -> bool:
    """Whether no other process runs a stage in a working folder."""
    path = lock_file(stage, folder)
    if path.resolve() in _held or not path.exists():
        return True
    stream = try_lock(path)
    if stream is None:
        return False
    stream.close()
    return True


def try_lock(path: Path) -> TextIO | None:
    """Locks a file, made where it is missing, for as long as what is returned stays open; None if it is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            stream.close()
            return None
        # a file system without locks: then there is no more than DVC's own
    return stream


def _waited_for(path: Path) -> TextIO | None:
    deadline = time.monotonic() + WAIT_S
    while (stream := try_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return stream


def _sign(stream: TextIO, stage: str) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    stream.truncate(0)
    stream.write(json.dumps({"stage": stage, "pid": os.getpid(), "host": socket.gethostname(), "since": since}))
    stream.flush()


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_text(encoding="utf-8"))
        return f"process {who['pid']} on {who['host']} since {who['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _end_with_the_pipeline(stage: str) -> None:
    pipeline = _pipeline()
    if pipeline is None:
        print(f"{stage}: the pipeline that started it has ended, and so does it", file=sys.stderr)
        raise SystemExit(128 + signal.SIGTERM)
    threading.Thread(target=_watch, args=(pipeline, stage), daemon=True, name="pipeline").start()


def _pipeline() -> psutil.Process | None:
    """The nearest ancestor that is no shell: DVC starts a stage through one. None if it has ended."""
    try:
        process = psutil.Process().parent()
        while process is not None and process.name() in _SHELLS:
            process = process.parent()
        return None if process is None or process.name() in _FOSTER_PARENTS else process
    except psutil.NoSuchProcess:
        return None


def _watch(pipeline: psutil.Process, stage: str) -> None:
    while _lives(pipeline):
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    print(f"{stage}: the pipeline that started it (process {pipeline.pid}) has ended, and so does it", file=sys.stderr)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
