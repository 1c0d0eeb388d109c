"""One measurement at a time on a machine: two that run side by side would measure each other."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stages.errors import ProfileError

LOCK = Path(tempfile.gettempdir()) / "halfstep-profile.lock"


@contextmanager
def alone_on_machine(lock: Path = LOCK) -> Iterator[None]:
    """Waits until no other `profile` measures on this machine, and keeps others waiting during the block.

    The kernel lets go of the lock when its holder ends, however that is. A line on standard error says whom this one
    waits for.
    """
    with _open(lock) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            line = f"profile: waiting for {_holder(stream)}: two at once would measure each other"
            print(line, file=sys.stderr, flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        _sign(stream)
        yield


def _open(lock: Path) -> IO[str]:
    """The lock's file, which the users of a machine share. In a folder for all, a link must not lead elsewhere."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(lock, flags)
    except FileNotFoundError:
        descriptor = os.open(lock, flags | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)
    except OSError as error:
        raise ProfileError(
            f"profile: {lock} cannot be opened ({error.strerror}); it keeps two measurements apart: remove it"
        ) from error
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def _sign(stream: IO[str]) -> None:
    stream.seek(0)
    stream.truncate()
    json.dump({"pid": os.getpid(), "folder": str(Path.cwd()), "since": time.strftime("%H:%M:%S")}, stream)
    stream.flush()


def _holder(stream: IO[str]) -> str:
    try:
        holder = json.loads(stream.read())
        return f"process {holder['pid']} in {holder['folder']}, which measures since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "another measurement on this machine"
