"""What travels to a node: exactly this commit with its tracked changes, `dvc.lock`, and the digests of the inputs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages import files
from stages.errors import FleetError, one_line
from stages.fleet import remote
from stages.fleet.bootstrap import REF
from stages.inputs.head_digests import HEAD_DIGESTS, HeadDigests
from stages.tracking import provenance

_DIGESTS = {"source": files.SOURCE_FILE, "model": files.MODEL_FILE, "task": files.TASK_FILE}
# A commit made from the same changes is the same, so that a node has it already.
_AUTHOR = {f"GIT_{role}_{key}": "halfstep" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
_DATE = "2000-01-01T00:00:00Z"


def build() -> dict[str, Any]:
    """Packs the checkout in the working folder, after `prepare` has run.

    Returns:
        `commit`, `tree` (a commit that also has the tracked changes), `changes` (sha256 of these; empty without any),
        `checkout` (its identifier), `prefix` (path of the working folder in the repository), `bundle` (of git), `files`
        (content by path), `dvc_config` (the remote, without secrets).

    Raises:
        FleetError: git cannot pack the commit.
        DataError: `environment` has not written the digests.
    """
    commit = git("rev-parse", "HEAD")
    tree = _with_changes() or commit
    return {
        "commit": commit,
        "tree": tree,
        "changes": "" if tree == commit else hashlib.sha256(git("diff", commit, tree).encode()).hexdigest(),
        "checkout": provenance.checkout_id(),
        "prefix": git("rev-parse", "--show-prefix"),
        "bundle": _bundle(tree),
        "files": _files(),
        "dvc_config": remote.configured().as_config(),
    }


def _with_changes() -> str:
    """A commit of the tracked files as they are; empty if they do not differ from the newest commit.

    `git status` also makes git look at files that were only touched, which make `git stash create` fail.
    """
    if not git("status", "--porcelain", "--untracked-files=no"):
        return ""
    return git("stash", "create", variables=_AUTHOR | {"GIT_AUTHOR_DATE": _DATE, "GIT_COMMITTER_DATE": _DATE})


def git(*arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """Runs git in the working folder and returns its output.

    Raises:
        FleetError: git is not installed, or fails.
    """
    environment = os.environ | (variables or {})
    try:
        done = subprocess.run(["git", *arguments], env=environment, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise FleetError("git is not installed, and the fleet sends a git commit to the nodes; install git") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
        raise FleetError(f"git {arguments[0]} failed: {one_line(lines[0], 300)}")
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def _bundle(tree: str) -> bytes:
    with _reference(tree), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.bundle"
        git("bundle", "create", "--quiet", str(path), REF)
        return path.read_bytes()


@contextmanager
def _reference(commit: str) -> Iterator[None]:
    """A bundle needs a reference. The next one replaces it, if this process is killed before it removes it."""
    git("update-ref", REF, commit)
    try:
        yield
    finally:
        git("update-ref", "-d", REF)


def _files() -> dict[str, bytes]:
    digests = {name: files.read_json(path) for name, path in _DIGESTS.items()}
    marker = HeadDigests(**digests, checkout=provenance.checkout_id()).model_dump_json().encode()
    lock = Path("dvc.lock")
    return {str(HEAD_DIGESTS): marker} | ({str(lock): lock.read_bytes()} if lock.is_file() else {})
