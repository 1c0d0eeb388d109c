"""Leaves the user's files as they were, whatever their code does in the processes that try, train and measure it.

Before such a process first changes a file, it keeps a copy, and says so in a journal. When the last of the processes
has ended, all is undone from the journal, in reverse order; so it is at the next start where they were killed: the
kernel frees their lock. New files are moved below `.halfstep/written`. What the script had made when it called `fit`,
such as a download, is lent to the next process, so that it is made once.

Seen is what Python does (PEP 578), and what `native_writes` reports of TensorFlow and h5py. Other programs that the
script starts are not seen, nor are databases. Imports the standard library alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from halfstep.system.files import (
    COMPARE,
    ENVIRONMENT_FILE,
    JUDGE,
    KEYS,
    PREPARED,
    PROFILE,
    SERVE,
    TRAIN,
    WORK_DIR,
)

WRITTEN = WORK_DIR / "written"  # new files, with their whole path
MAX_BYTES = 1_000_000_000  # of a file that is copied before it is changed
_FOLDER = WORK_DIR / "sealed"
# Of the pipeline itself, below the folder of `params.yaml`.
_RESULTS = (PREPARED, TRAIN, PROFILE, SERVE, COMPARE, KEYS, ENVIRONMENT_FILE)
_OURS = (Path("mlruns"), Path("mlflow.db"), Path(".dvc"), WORK_DIR, *_RESULTS)
_CACHES = (".keras", ".cache", ".config", ".matplotlib", ".nv", "tensorflow_datasets")  # in the home folder
_CACHE_VARIABLES = ("KERAS_HOME", "XDG_CACHE_HOME", "HF_HOME", "TFDS_DATA_DIR", "MPLCONFIGDIR", "CUDA_CACHE_PATH")
_SYSTEM = ("/dev", "/proc", "/sys")
_PATHS = {"os.remove": 1, "os.rmdir": 1, "os.truncate": None, "os.mkdir": 2, "os.utime": 3, "os.chmod": 2}
_PAIRS = {"os.rename": (2, 3), "os.link": (2, 3)}  # where the folders' descriptors are among the arguments
_FIT = "fit"
_POLL_S = 0.02


class _Seal:
    """What this process has under seal."""

    def __init__(self) -> None:
        self.root: Path | None = None
        self.is_installed = False
        self.lock: int | None = None
        self.seen: set[str] = set()
        self.users: tuple[str, ...] = ()
        self.free: tuple[str, ...] = ()
        self.free_elsewhere: tuple[str, ...] = ()
        self.busy = threading.local()

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook."""
        if self.root is None or not (event == "open" or event in _PATHS or event in _PAIRS or event == "os.symlink"):
            return
        if getattr(self.busy, "inside", False):
            return
        if event == "open":
            if isinstance(arguments[0], str | bytes | os.PathLike) and (arguments[2] or 0) & os.O_ACCMODE:
                before_change(arguments[0])
        elif event in _PAIRS:
            source, target = (_absolute(arguments[i], arguments[at]) for i, at in enumerate(_PAIRS[event]))
            if event == "os.rename" and os.path.isdir(source) and not os.path.islink(source):
                before_move(source, target)
            else:
                if event == "os.rename":
                    before_change(source, follows=False)
                before_change(target, follows=False)
        elif event == "os.symlink":
            before_change(_absolute(arguments[1], arguments[2]), follows=False)
        elif not isinstance(arguments[0], int):
            place = _PATHS[event]
            path = _absolute(arguments[0], -1 if place is None else arguments[place])
            before_change(path, follows=event in ("os.truncate", "os.utime", "os.chmod"))

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """In the block, this thread's own work is not seen."""
        before, self.busy.inside = getattr(self.busy, "inside", False), True
        try:
            yield
        finally:
            self.busy.inside = before

    def covers(self, path: str) -> bool:
        """Whether the file is to stay as it is."""
        if _below(path, self.free) or "/__pycache__" in path:
            return False
        return _below(path, self.users) or not _below(path, self.free_elsewhere)

    def note(self, *entry: Any) -> None:
        """Adds a line to the journal, which all processes share."""
        assert self.root is not None
        line = json.dumps([os.getpid(), *entry]).encode() + b"\n"
        descriptor = os.open(self.root / _FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


_seal = _Seal()


def seal(root: Path, folders: Iterable[Path | str]) -> None:
    """From now on this process leaves the user's files as they were.

    Args:
        root: folder of `params.yaml`, in which the pipeline itself writes.
        folders: of the user's code; elsewhere temporary files and caches are not covered.
    """
    root = root.resolve()
    users = tuple(os.path.realpath(folder) for folder in folders)
    if _seal.root == root:
        _seal.users += users
        return
    end()
    undo(root)
    judged = root.parts[-2:] == JUDGE.parts  # all of that folder is the pipeline's
    ours = [root] if judged else map(root.joinpath, _OURS)
    _seal.users = users
    _seal.free = tuple(os.path.realpath(path) for path in (*caches(), *ours))
    temporary = (tempfile.gettempdir(), "/tmp", "/var/tmp")  # noqa: S108
    _seal.free_elsewhere = (*_SYSTEM, *map(os.path.realpath, temporary))
    (root / _FOLDER / "copies").mkdir(parents=True, exist_ok=True)
    _seal.lock = os.open(root / _FOLDER / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(_seal.lock, fcntl.LOCK_SH)
    _seal.root = root
    if not _seal.is_installed:
        sys.addaudithook(_seal.check)
        _seal.is_installed = True
    with _seal.unseen(), open(root / _FOLDER / "lending", "w") as lending:
        fcntl.flock(lending, fcntl.LOCK_EX)  # processes that start at the same time
        _lend(root)


def caches() -> list[str]:
    """Folders of downloads and of what was compiled, which may not exist."""
    home = os.path.expanduser("~")
    named = [os.environ[name] for name in _CACHE_VARIABLES if os.environ.get(name)]
    return [*(os.path.join(home, name) for name in _CACHES), *named]


def reached_fit() -> None:
    """What is made from here on is not lent to the next process: it is a result of this one."""
    if _seal.root is not None:
        _seal.note(_FIT)
        _seal.seen.clear()


def end() -> list[str]:
    """Opens the seal of this process. Returns what `undo` does."""
    root, _seal.root = _seal.root, None
    if root is None:
        return []
    assert _seal.lock is not None
    os.close(_seal.lock)
    _seal.lock = None
    _seal.seen.clear()
    return undo(root)


def before_change(name: str | bytes | os.PathLike[Any], *, follows: bool = True) -> None:
    """Keeps what a path has now, if this process has not yet: it is about to be written, replaced or removed.

    Args:
        name: of a file, a link or a folder that may not exist.
        follows: whether the target of a link is what will change.
    """
    if _seal.root is None:
        return
    with _seal.unseen(), suppress(ValueError):  # a null byte, which Python will refuse
        path = _real(os.fsdecode(name), follows=follows)
        if path in _seal.seen or not _seal.covers(path):
            return
        _seal.seen.add(path)
        try:
            info = os.lstat(path)
        except OSError:
            _seal.note("made", path)
            return
        if stat.S_ISLNK(info.st_mode):
            _seal.note("link", path, os.readlink(path))
        elif stat.S_ISDIR(info.st_mode):
            _seal.note("folder", path, stat.S_IMODE(info.st_mode))
        elif stat.S_ISREG(info.st_mode):
            _keep(path, info)


def before_writing(prefix: str) -> None:
    """The same of all files that begin with `prefix`, some of which may be new: a checkpoint, or a log of events."""
    if _seal.root is None:
        return
    path = _real(prefix)
    folder, start = os.path.split(path)
    if _seal.covers(path):
        with _seal.unseen():
            known = [name for name in _names(folder) if name.startswith(start)]
            _seal.note("new", folder, start, known)
        for name in known:
            before_change(f"{folder}/{name}")


def before_move(source: str, target: str) -> None:
    """A folder is about to be renamed."""
    source, target = _real(source, follows=False), _real(target, follows=False)
    if _seal.covers(source) or _seal.covers(target):
        with _seal.unseen():
            _seal.note("moved", source, target)


def before_removal(folder: str) -> None:
    """A folder is about to be removed with all that is in it."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in (*names, ""):
            before_change(os.path.join(place, name).rstrip("/"), follows=False)


def undo(root: Path, wait_s: float = 0.0) -> list[str]:
    """Puts everything back, unless a process under seal still runs: then the last one, or the next start does.

    What cannot be put back has a line; its copy stays, and the next call tries again.

    Args:
        root: as of `seal`.
        wait_s: for processes that have been killed.

    Returns:
        Paths of what was written, changed or removed.
    """
    folder = root / _FOLDER
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        return []
    until_s = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until_s:
                    return []
                time.sleep(_POLL_S)
            else:
                return _undo_all(root, folder)
    finally:
        os.close(lock)


def changed_paths(root: Path) -> list[str]:
    """The paths that every `undo` had to do with since `forget_changed`."""
    return list(_read(root / _FOLDER / "changed.json"))


def forget_changed(root: Path) -> None:
    """From now on `changed_paths` is about what follows."""
    (root / _FOLDER / "changed.json").unlink(missing_ok=True)


def said(paths: Iterable[str], folder: Path, written: Path = WRITTEN) -> str:
    """One line for the user, with paths from `folder`; empty if there are none. `written` is where `WRITTEN` is."""
    place = os.path.realpath(folder)
    shown = [os.path.relpath(path, place) if _below(path, (place,)) else path for path in paths]
    if not shown:
        return ""
    more = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
    return f"your code wrote {shown[0]}{more}: all is as before, and what is new was moved to {written}/"


def _undo_all(root: Path, folder: Path) -> list[str]:
    journal = folder / "journal"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []  # a line that was cut did nothing yet
    if not lines:
        return []
    reached, lent, paths = set[int](), list[str](), dict[str, None]()
    entries, failed = list[tuple[bool, bytes]](), list[bytes]()
    for line in lines:
        process, kind, *_ = json.loads(line)
        reached |= {process} if kind == _FIT else set()
        entries += [] if kind == _FIT else [(process in reached, line)]
    for is_result, line in reversed(entries):
        _, kind, path, *details = json.loads(line)
        try:
            changed = list(_undo(root, kind, path, *details))
        except OSError as error:
            print(f"{path} is not put back yet ({error.strerror}): the next command tries again", file=sys.stderr)
            failed.append(line)
            continue
        paths |= dict.fromkeys(changed)
        if not is_result and kind in ("made", "new"):
            lent += changed
    (folder / "lent.json").write_text(json.dumps(lent))
    (folder / "changed.json").write_text(json.dumps(sorted({*changed_paths(root), *paths})))
    if failed:
        journal.write_bytes(b"".join(line + b"\n" for line in reversed(failed)))
    else:
        journal.unlink()
        shutil.rmtree(folder / "copies", ignore_errors=True)
    return sorted(paths)


def _undo(root: Path, kind: str, path: str, *details: Any) -> Iterator[str]:
    """Undoes a line of the journal, and yields the paths of what differed."""
    if kind == "kept":
        copy, marks = details
        if os.path.lexists(copy) and not _has(path, marks):
            _remove(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            shutil.move(copy, path)
            yield path
    elif kind == "link":
        if not os.path.islink(path) or os.readlink(path) != details[0]:
            _remove(path)
            os.symlink(details[0], path)
            yield path
    elif kind == "folder":
        if not os.path.lexists(path):
            os.makedirs(path)
            Path(path).chmod(details[0])
            yield path
    elif kind == "moved":
        if not os.path.lexists(path) and os.path.lexists(details[0]):
            os.rename(details[0], path)
            yield path
    elif kind == "new":
        start, known = details
        for name in _names(path):
            if name.startswith(start) and name not in known:
                yield from _moved_away(root, f"{path}/{name}")
    elif kind == "made":
        yield from _moved_away(root, path)


def keep_written(root: Path, path: str, content: str | Path) -> None:
    """Moves what the user's code has written to a path, and where its content is, to `WRITTEN`."""
    target = _place(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    shutil.move(content, target)


def _moved_away(root: Path, path: str) -> Iterator[str]:
    if not os.path.lexists(path):
        return
    if os.path.isdir(path) and not os.path.islink(path):
        for name in _names(path):
            yield from _moved_away(root, f"{path}/{name}")
        with suppress(OSError):
            os.rmdir(path)
        return
    keep_written(root, path, path)
    yield path


def _lend(root: Path) -> None:
    """Puts back what an earlier process had made before it called `fit`, as a file of this one."""
    for path in _read(root / _FOLDER / "lent.json"):
        source = _place(root, path)
        if source.is_file() and not os.path.lexists(path):
            parent = os.path.dirname(path)
            missing = []
            while not os.path.isdir(parent):
                missing.append(parent)
                parent = os.path.dirname(parent)
            for folder in reversed(missing):
                _seal.note("made", folder)
                os.mkdir(folder)
            _seal.note("made", path)
            shutil.move(source, path)


def forget_lent(root: Path) -> None:
    """The code is tried anew: what an older one has made is not lent to it."""
    (root / _FOLDER / "lent.json").unlink(missing_ok=True)


def _keep(path: str, info: os.stat_result) -> None:
    assert _seal.root is not None
    if info.st_size > MAX_BYTES or info.st_uid != os.getuid():
        why = "has more than 1 GB" if info.st_size > MAX_BYTES else f"belongs to user {info.st_uid}"
        print(f"{path} {why} and is written by your code: no copy of it is kept", file=sys.stderr, flush=True)
        return
    descriptor, copy = tempfile.mkstemp(dir=_seal.root / _FOLDER / "copies")
    os.close(descriptor)
    shutil.copy2(path, copy)
    _seal.note("kept", path, copy, _marks(info))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):  # killed while it was written
        return []


def _place(root: Path, path: str) -> Path:
    return root / WRITTEN / path.lstrip("/")


def _marks(info: os.stat_result) -> list[int]:
    return [info.st_mtime_ns, info.st_size, info.st_mode]


def _has(path: str, marks: list[int]) -> bool:
    """Whether a file is as it was when these were its time, its size and its rights."""
    try:
        return _marks(os.lstat(path)) == marks
    except OSError:
        return False


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        Path(path).unlink(missing_ok=True)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _real(name: str, *, follows: bool = True) -> str:
    if follows:
        return os.path.realpath(name)
    folder, last = os.path.split(os.path.abspath(name))
    return os.path.join(os.path.realpath(folder), last)


def _absolute(name: Any, folder: Any) -> str:
    """The path of a name in the folder of a descriptor, -1 for the working folder."""
    path = os.fsdecode(name)
    if not os.path.isabs(path) and isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    return path
