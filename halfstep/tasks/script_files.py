"""The files of a script, up to its call of `fit`: it reads and writes as it does for its user, one process at a time.

Processes that run a script at once would write, unpack or remove what another one reads.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from halfstep.system import files

_CODE = (".py", ".pyc", ".so", ".pth")
_OF_GIT = f"{os.sep}.git{os.sep}"  # as MLflow reads it for the commit of a run
_SYSTEM = ("/usr/", "/lib", "/etc/", "/sys/", "/opt/", "/dev/", "/proc/", sys.base_prefix, sys.prefix)
_MOST_READ = 10_000
_LARGEST_READ = 1_000_000_000  # bytes of a file that is hashed at each start
_OF_A_LIBRARY = ".dist-info" + os.sep
_CACHES = (".keras", ".cache", ".config", ".matplotlib")  # in the home folder


class _Reads:
    """Notes the files that Python opens (PEP 578); what libraries in C open it does not see."""

    def __init__(self) -> None:
        self.is_active = self.is_installed = False
        self.temporary = ""  # folder
        self.ignored: tuple[str, ...] = ()
        self.settings = os.sep  # how hidden files in the home folder begin
        self.found: set[str] = set()
        self.written: set[str] = set()

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook."""
        if not self.is_active or event != "open" or isinstance(arguments[0], int) or len(self.found) >= _MOST_READ:
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if (
            path.endswith(_CODE)
            or _OF_GIT in path
            or _OF_A_LIBRARY in path
            or path.startswith((*self.ignored, *_SYSTEM))
            or (path.startswith(self.settings) and os.sep not in path[len(self.settings) :])
        ):
            return
        if (arguments[2] or 0) & os.O_ACCMODE != os.O_RDONLY:
            self.written.add(path)
        elif path not in self.written and os.path.isfile(path):  # noqa: PTH113  pathlib would raise for odd names
            self.found.add(path)


_reads = _Reads()


def files_read(*, temporary: bool = False) -> frozenset[str]:
    """Absolute paths of the data files that Python has read in the blocks of `one_at_a_time`, but what it has written.

    Code, caches and results of halfstep are left out, and temporary files unless asked for.
    """
    return frozenset(path for path in _reads.found if temporary or not path.startswith(_reads.temporary))


def files_read_in(folders: Iterable[Path]) -> list[str]:
    """Those in the folders that are small enough to be looked at again at each start."""
    roots = [os.path.realpath(folder) for folder in folders]
    inside = (Path(path) for path in sorted(files_read()) if any(path.startswith(f"{root}{os.sep}") for root in roots))
    return [str(path) for path in inside if path.is_file() and path.stat().st_size <= _LARGEST_READ]


@contextmanager
def one_at_a_time(script: str, root: Path) -> Iterator[None]:
    """In the block no other process of this checkout runs the script; what it reads is noted.

    Args:
        script: as the parameters name it.
        root: the checkout.
    """
    if not _reads.is_installed:
        sys.addaudithook(_reads.check)
        _reads.is_installed = True
    ours = [root / name for name in ("data", "mlruns", "mlflow.db", files.WORK_DIR)]
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  Path.home raises an error where there is none
    _reads.temporary = os.path.realpath(tempfile.gettempdir()) + os.sep
    _reads.settings = f"{os.path.realpath(home)}{os.sep}."
    _reads.ignored = tuple(map(os.path.realpath, (*ours, *(home / name for name in _CACHES))))
    name = hashlib.sha256(script.encode(errors="surrogateescape")).hexdigest()[:16]
    folder = root / files.WORK_DIR / "script"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as lock:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        _reads.is_active = True
        try:
            yield
        finally:
            _reads.is_active = False
