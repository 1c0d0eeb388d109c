"""Digests of inputs outside the pipeline: the user's images and the source of the user's model.

DVC cannot depend on a folder that may be missing or that `params.yaml` names, so the stages depend on these digests.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.files import resolve_data_path, sha256_file
from stages.own_model import own_model_files
from stages.params import DataParams, ModelParams


def source_digest(data: DataParams) -> dict[str, Any]:
    """Identifies the images of `data.path` by the name, size and modification time of each file.

    Returns:
        `source`, and for `folder` the number of `files` and the `sha256` of their listing. The files are not read:
        listing a million files takes seconds, reading them hours.
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
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            status = path.lstat()
            yield f"{path.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n"
