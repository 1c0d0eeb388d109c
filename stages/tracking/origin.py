"""Where a run comes from: the machine, the commit, and the checkout that wrote it."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path

from stages import files
from stages.environment import fingerprint

CHECKOUT_TAG = "halfstep.checkout"
FOLDER_TAG = "halfstep.folder"


def tags() -> dict[str, str]:
    """Which checkout writes a run, and in which folder below it: there lies the lock that its process holds."""
    return checkout_tag() | {FOLDER_TAG: os.path.relpath(Path.cwd(), files.original_root())}


def checkout_tag() -> dict[str, str]:
    """The checkout that the user works in, told by a number of its own."""
    path = files.original_root() / files.SCRATCH / "checkout"
    return {CHECKOUT_TAG: _known_id(path) or _new_id(path)}


def _known_id(path: Path) -> str | None:
    """None also in a copy of a checkout, whose file is another one: it must not close the runs of the original."""
    try:
        number, inode = path.read_text(encoding="utf-8").split()
        return number if inode == str(path.stat().st_ino) else None
    except (OSError, ValueError):
        return None


def _new_id(path: Path) -> str:
    number = uuid.uuid4().hex
    with files.atomic_path(path) as beside:
        beside.touch()
        beside.write_text(f"{number} {beside.stat().st_ino}", encoding="utf-8")
    return number


def context_tags() -> dict[str, str]:
    """The machine, the experiment of DVC, and the commit."""
    machine = fingerprint.read()
    tags = {"device": str(machine["device"]), "environment": fingerprint.digest(machine)}
    if name := os.environ.get("DVC_EXP_NAME"):
        tags["dvc.exp_name"] = name
    return tags | _git_tags()


def _git_tags() -> dict[str, str]:
    """The commit, and whether tracked files differ from it; `dvc.lock` does not count: the pipeline writes it."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)dvc.lock")
    return {"git.commit": commit, "git.dirty": str(bool(changed)).lower()}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
