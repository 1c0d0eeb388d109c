"""Digests of inputs outside the pipeline: the user's images and the source of the user's model.

DVC cannot depend on a folder that may be missing or that `params.yaml` names, so the stages depend on these digests.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.errors import DataError
from stages.files import resolve_data_path, sha256_file
from stages.own_model import own_model_files
from stages.params import DataParams, ModelParams


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
    """Identifies the model by its name, and the user's own model also by the content of its source files.

    Returns:
        `name`, and for the user's own model the `files` and the `sha256` of their names and contents. Neither depends
        on modification times or on the folder of the checkout.
    """
    found = own_model_files(model.name)
    if not found:
        return {"name": model.name}
    lines = [f"{name}\0{sha256_file(path)}\n" for name, path in sorted(found.items())]
    return {"name": model.name, "files": sorted(found), "sha256": hashlib.sha256("".join(lines).encode()).hexdigest()}


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
