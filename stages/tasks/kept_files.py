"""Keeps the files that exist from being changed by a script, which runs once for each training and measurement.

Python reports what is opened, removed and renamed (PEP 578). What child processes and libraries in C write, such as
HDF5, it does not see.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from stages import files
from stages.errors import one_line

_CREATED = files.WORK_DIR / "script" / "created.txt"  # paths that scripts have created, and may write again
_COMMANDS = files.WORK_DIR / "script" / "commands.json"  # exit status of each command that a script has run
_CODE = (".py", ".pyc", ".so", ".pth")
_SYSTEM = ("/usr/", "/lib", "/etc/", "/sys/", "/opt/", sys.base_prefix)
_MOST_READ = 10_000
_CACHES = (".keras", ".cache", ".config", ".matplotlib")  # in the home folder


class ChangesFileError(BaseException):
    """The script would change a file; `except Exception` in the script does not catch it."""


class _Guard:
    """What may be written."""

    def __init__(self) -> None:
        self.is_active = self.is_installed = False
        self.allowed: tuple[str, ...] = ()
        self.created: set[str] = set()
        self.read: set[str] = set()
        self.record: Path = _CREATED

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook."""
        if not self.is_active:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int):
                return
            if (flags or 0) & os.O_ACCMODE == os.O_RDONLY:
                self._note(path)
            else:
                self._require_new(path, "write")
        elif event == "os.remove":
            self._require_new(arguments[0], "remove")
        elif event in ("os.rename", "os.truncate", "shutil.rmtree"):
            for path in arguments[:2] if event == "os.rename" else arguments[:1]:
                self._require_new(path, "change")

    def _note(self, name: Any) -> None:
        """Remembers a file that is read, unless it is code or a part of the system."""
        path = os.path.realpath(os.fsdecode(name))
        is_data = not path.endswith(_CODE) and not path.startswith((*self.allowed, *_SYSTEM))
        if is_data and len(self.read) < _MOST_READ and path not in self.created and os.path.isfile(path):  # noqa: PTH113
            self.read.add(path)

    def _require_new(self, name: Any, what: str) -> None:
        try:
            path = os.path.realpath(os.fsdecode(name))
        except (TypeError, ValueError):
            return
        if path.startswith(self.allowed) or path in self.created:
            return
        if not os.path.lexists(path):
            self._add(path)
        elif os.path.isfile(path) or os.path.isdir(path):  # noqa: PTH112, PTH113  pathlib would raise for odd names
            raise ChangesFileError(
                f"it would {what} {one_line(path, 200)}, which exists: halfstep runs a script several times, and "
                "changes no file of yours; move it away, or let the script write elsewhere"
            )

    def _add(self, path: str) -> None:
        self.created.add(path)
        self.is_active = False  # writing the record is no change of the script
        with suppress(OSError), self.record.open("a", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(f"{path}\n")
        self.is_active = True


_guard = _Guard()


def files_read() -> frozenset[str]:
    """Absolute paths of the data files that Python has read in the blocks of `existing_files_kept`."""
    return frozenset(_guard.read)


@contextmanager
def existing_files_kept(root: Path, *, is_first: bool) -> Iterator[None]:
    """In the block, to change a file raises `ChangesFileError`.

    Files that a script has created before, temporary files, caches, and results of halfstep are not kept.

    Args:
        root: the checkout.
        is_first: whether this process runs the commands of `os.system`; others take over what they returned.
    """
    if not _guard.is_installed:
        sys.addaudithook(_guard.check)
        _guard.is_installed = True
    _guard.record = root.absolute() / _CREATED
    _guard.record.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        _guard.created |= set(_guard.record.read_text(encoding="utf-8", errors="surrogateescape").splitlines())
    ours = [root / name for name in ("data", "mlruns", "mlflow.db", files.WORK_DIR)]
    caches = [Path.home() / name for name in _CACHES]
    folders = [*ours, *caches, Path(tempfile.gettempdir()), Path("/dev"), Path("/proc"), Path(sys.prefix)]
    _guard.allowed = tuple(os.path.realpath(path) for path in folders)
    _guard.is_active = True
    try:
        with _unpacked_once(), _commands_once(root.absolute() / _COMMANDS, is_first=is_first):
            yield
    finally:
        _guard.is_active = False


@contextmanager
def _unpacked_once() -> Iterator[None]:
    """In the block, archives are not unpacked over files of the same size: another process may read these."""
    unzip, untar = zipfile.ZipFile._extract_member, tarfile.TarFile.makefile  # type: ignore[attr-defined]

    def unzip_once(self: zipfile.ZipFile, member: Any, folder: Any, *arguments: Any) -> Any:
        found = member if isinstance(member, zipfile.ZipInfo) else self.getinfo(member)
        path = Path(folder, found.filename)
        return str(path) if _has_size(path, found.file_size) else unzip(self, member, folder, *arguments)

    def untar_once(self: tarfile.TarFile, member: tarfile.TarInfo, path: Any) -> None:
        if not _has_size(Path(path), member.size):
            untar(self, member, path)

    unzips = mock.patch.object(zipfile.ZipFile, "_extract_member", unzip_once)
    with unzips, mock.patch.object(tarfile.TarFile, "makefile", untar_once):
        yield


@contextmanager
def _commands_once(record: Path, *, is_first: bool) -> Iterator[None]:
    """In the block, `os.system` does not run a command again: it may unpack or remove what another process reads."""
    if is_first:
        record.unlink(missing_ok=True)
    run = os.system

    def run_once(command: str) -> int:
        known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
        name = hashlib.sha256(f"{Path.cwd()}\0{command}".encode(errors="surrogateescape")).hexdigest()
        if name not in known:
            known[name] = run(command)
            files.write_json(record, known)
        return int(known[name])

    with mock.patch.object(os, "system", run_once):
        yield


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
