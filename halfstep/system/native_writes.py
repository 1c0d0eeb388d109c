"""Reports what TensorFlow and h5py are about to write in C++, where no event of Python is raised.

Imports neither: a process that has not imported them writes nothing by them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from halfstep.system import sealing

_FILE_IO = "tensorflow.python.lib.io._pywrap_file_io"
_SAVER = "tensorflow.python.checkpoint.checkpoint"
_H5PY_READS = 0x0000 | 0x0040  # read only, also beside a writer


def _changed(path: Any, *_: Any, **__: Any) -> None:
    if _is_local(path):
        sealing.before_change(path)


def _made_folder(path: Any, *_: Any, **__: Any) -> None:
    """And the folders above it that do not exist."""
    name = os.path.abspath(os.fsdecode(path))
    missing = []
    while _is_local(path) and not os.path.lexists(name):
        missing.append(name)
        name = os.path.dirname(name)
    for folder in reversed(missing):
        sealing.before_change(folder)


def _removed_tree(path: Any, *_: Any, **__: Any) -> None:
    if _is_local(path):
        sealing.before_removal(os.fsdecode(path))


def _renamed(source: Any, target: Any, *_: Any, **__: Any) -> None:
    if os.path.isdir(source):
        sealing.before_move(os.fsdecode(source), os.fsdecode(target))
    else:
        _changed(source)
        _changed(target)


def _copied(_: Any, target: Any, *__: Any, **___: Any) -> None:
    _changed(target)


def _opened_by_h5py(name: Any, flags: int = 1, *_: Any, **__: Any) -> None:
    if flags & ~_H5PY_READS:
        _changed(name)
    else:
        sys.audit("open", os.fsdecode(name), None, os.O_RDONLY)


def _saved(_: Any, file_prefix: Any, *__: Any, **___: Any) -> None:
    if _is_local(file_prefix):
        sealing.before_writing(os.fsdecode(file_prefix))


def _logged(logdir: Any, *_: Any, **__: Any) -> None:
    if _is_local(logdir):
        sealing.before_writing(os.path.join(os.fsdecode(logdir), "events.out.tfevents"))


@cache
def report() -> None:
    """From now on, what these libraries are about to write is reported, in this process."""
    file_io, h5f = sys.modules.get(_FILE_IO), sys.modules.get("h5py.h5f")
    saver = getattr(sys.modules.get(_SAVER), "TrackableSaver", None)
    summary = getattr(sys.modules.get("tensorflow"), "summary", None)
    places: list[tuple[Any, str, Callable[..., None]]] = [
        *((file_io, name, _changed) for name in ("WritableFile", "WriteStringToFile", "DeleteFile")),
        *((file_io, name, _made_folder) for name in ("CreateDir", "RecursivelyCreateDir")),
        (file_io, "RenameFile", _renamed),
        (file_io, "CopyFile", _copied),
        (file_io, "DeleteRecursively", _removed_tree),
        (h5f, "open", _opened_by_h5py),
        (h5f, "create", _changed),
        (saver, "save", _saved),
        (summary, "create_file_writer", _logged),
    ]
    for place, name, reported in places:
        if place is not None:
            setattr(place, name, _reporting(getattr(place, name), reported))


def _reporting(original: Callable[..., Any], reported: Callable[..., None]) -> Callable[..., Any]:
    @wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        reported(*arguments, **keywords)
        return original(*arguments, **keywords)

    return call


def _is_local(path: Any) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and "://" not in os.fsdecode(path)
