"""What files contained, in a database of DVC. Whatever is wrong with it, the files are read instead."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvc_data.hashfile.cache import Timeout  # type: ignore[attr-defined]
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.state import State, StateBase, StateNoop
from dvc_objects.fs import localfs  # type: ignore[attr-defined]

# A file that changes again within the resolution of its modification time would not be read again.
SETTLED_NS = 2 * 10**9


class Memory:
    """The sha256 of files by path, inode, size and time. Open it before you look at the files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._settled_ns = time.time_ns() - SETTLED_NS
        self._state: StateBase = StateNoop()
        with self._tolerant():
            self._state = State(tmp_dir=str(path))

    def load(self, folder: Path, states: Mapping[str, dict[str, Any]]) -> dict[str, str]:
        """The sha256 of the files of a folder that are known in these states."""
        names = {_key(folder / name): name for name in states}
        with self._tolerant():
            found = self._state.get_many(names, localfs, {key: states[name] for key, name in names.items()})
            return {names[key]: digest.value for key, _, digest in found if digest and digest.value}
        return {}

    def store(self, folder: Path, states: Mapping[str, dict[str, Any]], digests: Mapping[str, str]) -> None:
        """Remembers the sha256 of files in these states."""
        settled = [name for name in digests if states[name]["mtime"] < self._settled_ns]
        with self._tolerant():
            rows = [(_key(folder / name), HashInfo("sha256", digests[name]), states[name]) for name in settled]
            self._state.save_many(rows, localfs)

    def close(self) -> None:
        """Closes the database."""
        self._state.close()  # type: ignore[no-untyped-call]

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, Timeout, OSError):  # locked, read-only, or the disk is full
            pass
        except (sqlite3.DatabaseError, LookupError, TypeError, ValueError, AttributeError):  # it is damaged
            self._state = StateNoop()
            shutil.rmtree(self._path, ignore_errors=True)


def _key(path: Path) -> str:
    """The path as text that SQLite takes, whatever bytes it has."""
    return os.fsencode(path.absolute()).decode("latin-1")
