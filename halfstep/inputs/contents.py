"""The sha256 of the user's files. Those that have not changed are not read again."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from halfstep.system import files

MEMORY = files.WORK_DIR / "contents"  # in the original checkout; it may be removed at any time
# Instead of a sha256.
_OF_DVC = re.compile(r"/files/md5/[0-9a-f]{2}/[0-9a-f]{30}$")  # an object in a cache of DVC
UNREADABLE, DANGLING, IRREGULAR, OUTSIDE = (
    "unreadable",
    "a link to nothing",
    "not a regular file",
    "a link that leads out",
)
FIRST_NOTE_S, NEXT_NOTE_S = 5.0, 30.0
_PIECE = 500  # files that are read before they are remembered
_CHUNK_BYTES = 2**18
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class Contents(AbstractContextManager):
    """Reads the user's files.

    Prints a line on standard error if that takes more than `FIRST_NOTE_S` seconds, and every `NEXT_NOTE_S`.

    Args:
        label: what the lines call the files, such as `data.path`.
        root: links that lead out of this folder are not followed; None: all are.
    """

    def __init__(self, label: str, root: Path | None = None) -> None:
        self.label = label
        self._root = None if root is None else root.resolve()
        self._memory = None
        with suppress(ImportError):  # a variant's own interpreter has no DVC; it reads all files
            from halfstep.inputs.digest_store import Memory  # takes 0.1 s, and only those who read files need it

            self._memory = Memory(files.original_root() / MEMORY)
        self._note_at = time.monotonic() + FIRST_NOTE_S
        self._files_read, self._bytes_read = 0, 0

    def __exit__(self, *_: object) -> None:
        if self._memory is not None:
            self._memory.close()

    def of(self, folder: Path, names: Iterable[str]) -> dict[str, str]:
        """By name, the sha256 of each file, or one of `UNREADABLE`, `DANGLING`, `IRREGULAR` and `OUTSIDE`.

        What is removed meanwhile is absent.

        Raises:
            OSError: a file cannot be read, for another reason than its permissions.
        """
        found = {name: _state_of(folder / name, self._root) for name in names}
        digests = {name: state for name, state in found.items() if isinstance(state, str)}
        states = {name: state for name, state in found.items() if isinstance(state, dict)}
        if self._memory is not None:
            digests |= self._memory.load(folder, states)
        unread = [name for name in states if name not in digests]
        for first in range(0, len(unread), _PIECE):
            digests |= self._read_all(folder, {name: states[name] for name in unread[first : first + _PIECE]})
        return digests

    def _read_all(self, folder: Path, states: dict[str, dict[str, Any]]) -> dict[str, str]:
        """Reads files. What was read is remembered even if this ends early."""
        digests: dict[str, str] = {}
        unreadable: dict[str, str] = {}
        try:
            for name in states:
                try:
                    digests[name] = self._read(folder / name)
                except PermissionError:
                    unreadable[name] = UNREADABLE
                except OSError as error:
                    if error.errno not in _GONE:
                        raise
        finally:
            if self._memory is not None:
                self._memory.store(folder, states, digests)
        return digests | unreadable

    def _read(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
                self._bytes_read += len(chunk)
                if time.monotonic() >= self._note_at:
                    self._note()
        self._files_read += 1
        return digest.hexdigest()

    def _note(self) -> None:
        self._note_at = time.monotonic() + NEXT_NOTE_S
        print(
            f"{self.label}: files are identified by their contents: {self._files_read:,} read so far "
            f"({self._bytes_read / 2**30:.1f} GiB); the next time, only what has changed is read",
            file=sys.stderr,
            flush=True,
        )


def _state_of(path: Path, root: Path | None) -> dict[str, Any] | str | None:
    """What changes when a file is written, as DVC names it, or what there is instead of a file; None for nothing."""
    is_link = False
    try:
        status = path.lstat()
        if is_link := stat.S_ISLNK(status.st_mode):
            if root is not None and leads_out(path, root):
                return OUTSIDE
            status = path.stat()
    except PermissionError:
        return UNREADABLE
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return DANGLING if is_link else None
    if not stat.S_ISREG(status.st_mode):
        return IRREGULAR
    return {"type": "file", "size": status.st_size, "mtime": status.st_mtime_ns, "ino": status.st_ino}


def leads_out(path: Path | str, root: Path) -> bool:
    """Whether a link leads out of a resolved folder; not if it is one of `dvc add`, which leads into DVC's cache."""
    target = os.path.realpath(path)
    return not Path(target).is_relative_to(root) and _OF_DVC.search(target) is None
