"""Finds damaged objects in DVC's cache: DVC restores them without checking."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

LOCK_FILE = Path("dvc.lock")


def damaged_copy(root: Path, directory: Path, name: str) -> Path | None:
    """Finds the damaged object in DVC's cache that a file of a stage's output was restored from.

    Args:
        root: the checkout that contains the cache.
        directory: the output, as `dvc.lock` in the working directory names it.
        name: path of the file, relative to `directory`.

    Returns:
        None if the object is intact or cannot be found, for example because the cache is in another place.
    """
    import yaml  # which the environment of a user's code may lack

    try:
        lock = yaml.safe_load(LOCK_FILE.read_text(encoding="utf-8"))
        outs = [out for stage in lock["stages"].values() for out in stage.get("outs", ())]
        (folder_md5,) = {out["md5"] for out in outs if Path(out["path"]) == directory}
        listing = _object(root, folder_md5)
        if not _is_intact(listing, folder_md5):
            return listing
        entries = json.loads(listing.read_text(encoding="utf-8"))
        (md5,) = {entry["md5"] for entry in entries if entry["relpath"] == name}
        return None if _is_intact(_object(root, md5), md5) else _object(root, md5)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return None


def _object(root: Path, md5: str) -> Path:
    return root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]


def _is_intact(path: Path, md5: str) -> bool:
    """Whether an object matches its name. The object of a directory is a listing, and its name ends in `.dir`."""
    with path.open("rb") as stream:
        digest = hashlib.md5(stream.read(), usedforsecurity=False)
    return digest.hexdigest() == md5.removesuffix(".dir")
