"""Caches the sha256 of the user's files by size, time and inode, so that unchanged files are not read again."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from halfstep import files

DATABASE = files.WORK_DIR / "contents.db"  # in the original checkout; it may be removed at any time
# Instead of a sha256.
_OF_DVC = re.compile(r"/files/md5/[0-9a-f]{2}/[0-9a-f]{30}$")  # an object in a cache of DVC
UNREADABLE, DANGLING, IRREGULAR, OUTSIDE = (
    "unreadable",
    "a link to nothing",
    "not a regular file",
    "a link that leads out",
)
FIRST_NOTE_S, NEXT_NOTE_S = 5.0, 30.0
# A file that changes again within the resolution of its modification time would not be read again.
SETTLED_NS = 2 * 10**9
BUSY_S = 2.0  # seconds to wait for another process that writes
_STORE_S = 5.0
_THREADS = 4
_PIECE = 50  # files that a thread reads before it takes the next
_CHUNK_BYTES = 2**18
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})


class _File(NamedTuple):
    """A file of a folder. `state` changes when it is written."""

    name: str
    state: str
    sha256: str


class Contents:
    """Reads the user's files. A context manager, which ends its threads.

    Prints a line on standard error if that takes more than `FIRST_NOTE_S` seconds, and every `NEXT_NOTE_S`.

    Args:
        label: what the lines call the files, such as `data.path`.
        root: links that lead out of this folder are not followed; None: all are.
    """

    def __init__(self, label: str, root: Path | None = None) -> None:
        self.label = label
        self._root = None if root is None else root.resolve()
        self._memory = _Memory(files.original_root() / DATABASE)
        self._pool = ThreadPoolExecutor(_THREADS, "contents")
        self._ended = threading.Event()
        self._files_read, self._bytes_read = 0, 0  # about: several threads count

    def __enter__(self) -> Self:
        threading.Thread(target=self._report, daemon=True, name="progress").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)
        self._memory.close()

    def of(self, folder: Path, names: Iterable[str]) -> dict[str, str]:
        """By name, the sha256 of each file, or one of `UNREADABLE`, `DANGLING`, `IRREGULAR` and `OUTSIDE`.

        What is removed meanwhile is absent.

        Raises:
            OSError: a file cannot be read, for another reason than its permissions.
        """
        known = self._memory.load(folder)
        digests: dict[str, str] = {}
        unread: list[tuple[str, str]] = []
        for name in names:
            state = _state(folder / name, self._root)
            if state is None:
                continue
            if state in (UNREADABLE, DANGLING, IRREGULAR, OUTSIDE):
                digests[name] = state
            elif (name, state) in known:
                digests[name] = known[name, state]
            else:
                unread.append((name, state))
        return digests | self._read_all(folder, unread)

    def _read_all(self, folder: Path, unread: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Reads files, given by name and state. What was read is remembered even if this ends early."""
        digests: dict[str, str] = {}
        settled: list[_File] = []
        pieces = [unread[first : first + _PIECE] for first in range(0, len(unread), _PIECE)]
        store_at = time.monotonic() + _STORE_S
        try:
            for piece in self._pool.map(lambda some: [self._read(folder, *item) for item in some], pieces):
                for file, is_settled in filter(None, piece):
                    digests[file.name] = file.sha256
                    settled += [file] if is_settled else []
                if time.monotonic() >= store_at:
                    self._memory.store(folder, settled)
                    settled, store_at = [], time.monotonic() + _STORE_S
        finally:
            self._memory.store(folder, settled)
        return digests

    def _read(self, folder: Path, name: str, state: str) -> tuple[_File, bool] | None:
        """A file with its sha256, and whether it may be remembered; None if it was removed."""
        digest = hashlib.sha256()
        try:
            with (folder / name).open("rb", buffering=0) as stream:
                # Once `_ended` is set nobody waits for the result.
                while not self._ended.is_set() and (chunk := stream.read(_CHUNK_BYTES)):
                    digest.update(chunk)
                    self._bytes_read += len(chunk)
                after = os.fstat(stream.fileno())
        except PermissionError:
            return _File(name, state, UNREADABLE), False
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        self._files_read += 1
        is_settled = _as_text(after) == state and after.st_mtime_ns < time.time_ns() - SETTLED_NS
        return _File(name, state, digest.hexdigest()), is_settled

    def _report(self) -> None:
        wait_s = FIRST_NOTE_S
        while not self._ended.wait(wait_s):
            wait_s = NEXT_NOTE_S
            if self._bytes_read:
                print(
                    f"{self.label}: files are identified by their contents: {self._files_read:,} read so far "
                    f"({self._bytes_read / 2**30:.1f} GiB); the next time, only what has changed is read",
                    file=sys.stderr,
                    flush=True,
                )


def _state(path: Path, root: Path | None) -> str | None:
    """What changes when a file is written, as text, or what there is instead of a file to read; None for nothing."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return _state_of_link(path, root)
    except PermissionError:
        return UNREADABLE
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    return _as_text(status) if stat.S_ISREG(status.st_mode) else IRREGULAR


def leads_out(path: Path | str, root: Path) -> bool:
    """Whether a link leads out of a resolved folder; not if it is one of `dvc add`, which leads into DVC's cache."""
    target = os.path.realpath(path)
    return not Path(target).is_relative_to(root) and _OF_DVC.search(target) is None


def _state_of_link(path: Path, root: Path | None) -> str:
    if root is not None and leads_out(path, root):
        return OUTSIDE
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in _GONE | {errno.ELOOP}:
            return DANGLING
        raise
    return _as_text(status) if stat.S_ISREG(status.st_mode) else IRREGULAR


def _as_text(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


class _Memory:
    """A table of what files contained. Whatever is wrong with it, the files are read instead."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        with suppress(OSError):  # a read-only disk
            path.parent.mkdir(parents=True, exist_ok=True)
        with self._tolerant():
            self._connection = sqlite3.connect(path, timeout=BUSY_S)
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS contents "
                "(folder BLOB, name BLOB, state TEXT, sha256 TEXT, PRIMARY KEY (folder, name)) WITHOUT ROWID"
            )

    def load(self, folder: Path) -> dict[tuple[str, str], str]:
        """The sha256 of the known files of a folder, by name and state."""
        digests: dict[tuple[str, str], str] = {}
        query = "SELECT name, state, sha256 FROM contents WHERE folder = ?"
        with self._tolerant():
            if self._connection is not None:
                rows = self._connection.execute(query, (_key(folder),))
                digests = {(os.fsdecode(name), state): sha256 for name, state, sha256 in rows}
        return digests

    def store(self, folder: Path, known: Iterable[_File]) -> None:
        """Remembers files, in one transaction."""
        rows = [(_key(folder), os.fsencode(file.name), file.state, file.sha256) for file in known]
        with self._tolerant():
            if self._connection is not None and rows:
                with self._connection:
                    self._connection.executemany("INSERT OR REPLACE INTO contents VALUES (?, ?, ?, ?)", rows)

    def close(self) -> None:
        """Closes the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError:  # locked by another process, read-only, or the disk is full
            pass
        except sqlite3.DatabaseError:  # it is damaged
            self.close()
            with suppress(OSError):
                self._path.unlink()


def _key(folder: Path) -> bytes:
    return hashlib.blake2b(os.fsencode(folder.absolute()), digest_size=16).digest()
