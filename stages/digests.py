"""Digests of inputs outside the pipeline: the user's images and the source of the user's model.

DVC cannot depend on a folder that may be missing or that `params.yaml` names, so the stages depend on these digests.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.errors import DataError
from stages.files import resolve_data_path, sha256_file
from stages.params import DataParams, ModelParams

OWN_MODEL = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")


def source_digest(data: DataParams) -> dict[str, Any]:
    """Identifies the images of `data.path` by the name, size and modification time of each file.

    Returns:
        `source`, and for `folder` the number of `files` and the `sha256` of their listing. The files are not read:
        listing a million files takes seconds, reading them hours. Hidden files and folders are ignored, as in
        `prepare`. What is removed or renamed meanwhile is left out: the next `dvc repro` finds another digest.

    Raises:
        DataError: a folder cannot be listed.
    """
    if data.source != "folder":
        return {"source": data.source}
    listing = hashlib.sha256()
    count = 0
    for line in _listing(resolve_data_path(data.path)):
        listing.update(line.encode("utf-8", "surrogateescape"))
        count += 1
    return {"source": data.source, "files": count, "sha256": listing.hexdigest()}


def model_digest(model: ModelParams) -> dict[str, Any]:
    """Returns the model's `name`, and for the user's own model the `sha256` of the file that defines it."""
    path = own_model_file(model.name)
    return {"name": model.name} | ({"sha256": sha256_file(path)} if path else {})


def _listing(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root, onerror=functools.partial(_refuse_unless_removed, root)):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(folder) / name
            try:
                status = path.lstat()
                yield f"{path.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n"
            except PermissionError:  # `prepare` lists such files with the reason
                yield f"{path.relative_to(root)}\0unreadable\n"
            except (FileNotFoundError, NotADirectoryError):
                continue


def _refuse_unless_removed(root: Path, error: OSError) -> None:
    removed = isinstance(error, FileNotFoundError | NotADirectoryError)
    if removed and error.filename != str(root):
        return
    advice = "run `dvc repro` again" if removed else "change its permissions, or move it out of the folder"
    raise DataError(f"data.path: {error.filename!r} cannot be read ({error.strerror}); {advice}") from error


def own_model_file(name: str, root: Path | None = None) -> Path | None:
    """Source file of the user's own model; None if `name` does not have the form `package.module:function`.

    Imports nothing: the module may import TensorFlow, which takes seconds.
    """
    match = OWN_MODEL.fullmatch(name)
    if not match:
        return None
    return module_file(match["module"], root or Path.cwd())


def module_file(module: str, root: Path) -> Path | None:
    """Source file of a module in `root` or on Python's path; None if there is no such file."""
    relative = Path(*module.split("."))
    for folder in (root, *map(Path, sys.path)):
        for candidate in (folder / relative.with_suffix(".py"), folder / relative / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None
