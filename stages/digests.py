"""Digests of inputs outside the pipeline: the user's images and the source of the user's model.

DVC cannot depend on a folder that may be missing or that `params.yaml` names, so the stages depend on these digests.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.files import resolve_data_path, sha256_file
from stages.params import DataParams, ModelParams

OWN_MODEL = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")


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
    """Returns the model's `name`, and for the user's own model the `sha256` of the file that defines it."""
    path = own_model_file(model.name)
    return {"name": model.name} | ({"sha256": sha256_file(path)} if path else {})


def _listing(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            status = path.lstat()
            yield f"{path.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n"


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
            if os.path.isfile(candidate):  # noqa: PTH113  Path.is_file raises an error for a long name
                return candidate
    return None
