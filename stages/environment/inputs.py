"""Digests of what lies outside of the pipeline: the user's images and the source of the user's own model.

DVC cannot depend on a folder that may be missing or that `params.yaml` may move, so the stages depend on these digests.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.environment.named import own_model_file
from stages.files import resolve_data_path, sha256_file
from stages.params import DataParams, ModelParams


def source_digest(data: DataParams) -> dict[str, Any]:
    """What the images of `data.path` are, told by the name, size and time of change of each file.

    Returns:
        `source`, and for `folder` the number of `files` and the `sha256` of their listing. Contents are not read: a
        listing of a million files takes seconds, their contents hours.
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
    """The model's name, and for the user's own the `sha256` of the file that defines it."""
    path = own_model_file(model.name)
    return {"name": model.name} | ({"sha256": sha256_file(path)} if path else {})


def _listing(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            status = path.lstat()
            yield f"{path.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n"
