"""Tags with the origin of a run: the machine, the commit, and the checkout that wrote it."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

from stages import files
from stages.commands import git
from stages.errors import CommandError
from stages.inputs.head_digests import read_head_digests
from stages.machine import fingerprint

CHECKOUT_TAG = "halfstep.checkout"
FOLDER_TAG = "halfstep.folder"
FLEET_TAG = "halfstep.fleet"


def writer_tags() -> dict[str, str]:
    """The checkout that writes a run, and the working folder relative to it, which has the lock of the process.

    A run that a fleet writes also has the identifier of the checkout that the fleet works for.

    Raises:
        CorruptFileError: `.halfstep/fleet.json` is not what the fleet writes.
    """
    return checkout_tag() | {FOLDER_TAG: os.path.relpath(Path.cwd(), files.original_root())} | _fleet_tag()


def checkout_tag() -> dict[str, str]:
    """The random identifier of the user's checkout as a tag."""
    return {CHECKOUT_TAG: checkout_id()}


def checkout_id() -> str:
    """The random identifier of the user's checkout; created if it has none."""
    path = files.original_root() / files.WORK_DIR / "checkout"
    return _known_id(path) or _new_id(path)


def _fleet_tag() -> dict[str, str]:
    head = read_head_digests()
    return {FLEET_TAG: head.checkout} if head is not None else {}


def _known_id(path: Path) -> str | None:
    """The stored identifier; None in a copy of a checkout, which must not close the runs of the original."""
    try:
        identifier, inode = path.read_text(encoding="utf-8").split()
        return identifier if inode == str(path.stat().st_ino) else None
    except (OSError, ValueError):
        return None


def _new_id(path: Path) -> str:
    identifier = uuid.uuid4().hex
    with files.atomic_path(path) as temporary_path:
        temporary_path.touch()
        temporary_path.write_text(f"{identifier} {temporary_path.stat().st_ino}", encoding="utf-8")
    return identifier


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

    In a copy of the checkout that the fleet made, they are the head's.
    """
    if (head := read_head_digests()) is not None:
        return head.git
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)dvc.lock")
    return {"git.commit": commit, "git.dirty": str(bool(changed)).lower()}


def commit_text() -> str | None:
    """The first ten digits of the commit, with `+` where tracked files differ from it; None without one."""
    tags = git_tags()
    commit = tags.get("git.commit")
    return commit and commit[:10] + ("+" if tags["git.dirty"] == "true" else "")


def _git(*arguments: str) -> str | None:
    try:
        return git(*arguments).strip()
    except CommandError as error:
        if "dubious ownership" in str(error) and (remedy := re.search(r"git config .*safe\.directory.*", str(error))):
            print(f"git: this checkout belongs to another user, and runs have no commit: run `{remedy[0]}`", flush=True)
        return None
