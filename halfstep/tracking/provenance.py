"""Tags with the origin of a run: the machine, the commit, and the checkout that wrote it."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from halfstep.errors import CommandError
from halfstep.inputs.head_digests import read_head_digests
from halfstep.machine import fingerprint
from halfstep.system import files
from halfstep.system.commands import git

CHECKOUT_TAG = "halfstep.checkout"
FOLDER_TAG = "halfstep.folder"


def writer_tags() -> dict[str, str]:
    """The checkout for which a run is written, and the working folder relative to it.

    Raises:
        CorruptFileError: `.halfstep/fleet.json` is not what the fleet writes.
    """
    return checkout_tag() | {FOLDER_TAG: _folder()}


def checkout_tag() -> dict[str, str]:
    """The user's checkout as a tag: on a node of a fleet, the one that the fleet works for."""
    head = read_head_digests()
    return {CHECKOUT_TAG: head.checkout if head is not None else checkout_id()}


def checkout_id() -> str:
    """The random identifier of the user's checkout; created if it has none, or if it is a copy of one elsewhere."""
    path, here = files.original_root() / files.WORK_DIR / "checkout", str(files.original_root().resolve())
    with suppress(OSError, ValueError):
        identifier, root = path.read_text(encoding="utf-8", errors="surrogateescape").split(" ", 1)
        if root == here:
            return identifier
    identifier = uuid.uuid4().hex
    with files.atomic_path(path) as temporary_path:
        temporary_path.write_text(f"{identifier} {here}", encoding="utf-8", errors="surrogateescape")
    return identifier


def is_of_this_folder(tags: Mapping[str, str]) -> bool:
    """Whether a run of this checkout was written in this working folder, or in one that is gone."""
    folder = tags.get(FOLDER_TAG, ".")
    return folder == _folder() or not (files.original_root() / folder).is_dir()


def _folder() -> str:
    """The working folder relative to the checkout; on a node, where each job has another, that of the head."""
    return "." if read_head_digests() is not None else os.path.relpath(Path.cwd(), files.original_root())


def context_tags() -> dict[str, str]:
    """The machine, the DVC experiment, and the commit.

    Raises:
        DataError: `data/environment.json` is missing.
        CorruptFileError: `data/environment.json` is damaged.
    """
    machine = fingerprint.read()
    tags = {"device": str(machine["device"]), "environment": fingerprint.digest(machine)}
    if name := os.environ.get("DVC_EXP_NAME"):
        tags["dvc.exp_name"] = name
    return tags | git_tags()


def git_tags() -> dict[str, str]:
    """The commit, and whether tracked files differ from it. `dvc.lock` is ignored, because the pipeline writes it.

    In a copy of the checkout that the fleet made, they are the head's; in the workspace of `halfstep judge` those of
    the folder in which it was called, whose code is judged.
    """
    if (head := read_head_digests()) is not None:
        return head.git
    folder = files.judged_folder()
    commit = _git("rev-parse", "HEAD", folder=folder)
    if commit is None:
        return {}
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)dvc.lock", folder=folder)
    return {"git.commit": commit, "git.dirty": str(bool(changed)).lower()}


def commit_text() -> str | None:
    """The first ten digits of the commit, with `+` where tracked files differ from it; None without one."""
    tags = git_tags()
    commit = tags.get("git.commit")
    return commit and commit[:10] + ("+" if tags["git.dirty"] == "true" else "")


def _git(*arguments: str, folder: Path | None) -> str | None:
    try:
        return git(*arguments, folder=folder).strip()
    except CommandError as error:
        if "dubious ownership" in str(error) and (remedy := re.search(r"git config .*safe\.directory.*", str(error))):
            print(f"git: this checkout belongs to another user, and runs have no commit: run `{remedy[0]}`", flush=True)
        return None
