"""Protects uncommitted edits while DVC makes an experiment of the workspace.

For a moment, `dvc exp run --temp` stashes the changes of the workspace, writes the parameters of the experiment into
it, and resets it. If it is killed then, the edits are in a stash and HEAD is detached. So they are copied before, and
the next `dvc repro` or `python -m stages.advise` puts them back.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from stages import files
from stages.errors import AdviceError
from stages.locking import is_alive

FOLDER = files.WORK_DIR / "workspace"
_STATE = "state.json"
_STASHED_EXPERIMENT = "refs/exps/stash"
_LOCKS = (".dvc/tmp/rwlock", ".dvc/tmp/exps/rwlock")  # of DVC
_OLD_LOCK_S = 60.0  # such a lock is held for milliseconds
State = dict[str, Any]


def git(*arguments: str) -> str:
    """Output of a git command.

    Raises:
        AdviceError: there is no git, no repository or no commit; or the command fails.
    """
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise AdviceError("git is not installed, which experiments of DVC need") from None
    if done.returncode:
        raise AdviceError(f"git {arguments[0]}: {' '.join(done.stderr.split())[:200]}")
    return done.stdout


def require_commit() -> None:
    """Raises an AdviceError without a commit, from which experiments are made."""
    try:
        git("rev-parse", "--verify", "--quiet", "HEAD")
    except AdviceError:
        raise AdviceError(
            "experiments of DVC need a git repository with a commit: run `git init`, `git add --all` and `git commit`"
        ) from None


def protect() -> None:
    """Copies the files that differ from the last commit, and what an experiment writes."""
    release()
    _unlock_experiments(older_than_s=_OLD_LOCK_S)
    changed = git("diff", "--name-only", "-z", "HEAD").split("\0")
    names = sorted({name for name in (*changed, "params.yaml", "dvc.lock") if name})
    root = Path(git("rev-parse", "--show-toplevel").strip())
    state: State = {"root": str(root), "head": _branch(), "files": {}, "pid": os.getpid()}
    for number, name in enumerate(names):
        path = root / name
        state["files"][name] = str(number) if path.is_file() else None
        if path.is_file():
            (FOLDER / "files").mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, FOLDER / "files" / str(number))
    files.write_json(FOLDER / _STATE, state)


def hold(pid: int) -> None:
    """Notes the process that makes the experiment: as long as it lives, nothing is put back."""
    if (state := _state()) is not None:
        files.write_json(FOLDER / _STATE, state | {"pid": pid})


def is_as_before() -> bool:
    """Whether the workspace has what was copied; true where nothing was."""
    state = _state()
    return state is None or not (_lost(state) or _is_detached(state))


def release() -> None:
    """Drops the copies."""
    shutil.rmtree(FOLDER, ignore_errors=True)


def recover() -> list[str]:
    """Puts back what an experiment that was killed has left changed, and returns the names of these files.

    Does nothing while one is being made.
    """
    state = _state()
    if state is None or (state["pid"] != os.getpid() and _is_running(state["pid"])):
        return []
    lost, root = _lost(state), Path(state["root"])
    for name in lost:
        copy = state["files"][name]
        if copy is None:
            (root / name).unlink(missing_ok=True)
        else:
            shutil.copy2(FOLDER / "files" / copy, root / name)
    for path in _LOCKS:
        _free(root / path)
    for name in ("index.lock", "HEAD.lock"):  # of git, which was killed, too
        _git_path(name).unlink(missing_ok=True)
    _unlock_experiments()
    if _is_detached(state):
        git("symbolic-ref", "HEAD", state["head"])
    with suppress(AdviceError):  # the experiment itself: the next one would run it, too
        git("update-ref", "-d", _STASHED_EXPERIMENT)
    release()
    return lost


def _state() -> State | None:
    with suppress(OSError, ValueError):
        return dict(json.loads((FOLDER / _STATE).read_text(encoding="utf-8")))
    return None


def _lost(state: State) -> list[str]:
    root = Path(state["root"])
    found = []
    for name, copy in state["files"].items():
        path = root / name
        before = None if copy is None else (FOLDER / "files" / copy).read_bytes()
        if (path.read_bytes() if path.is_file() else None) != before:
            found.append(name)
    return found


def _is_detached(state: State) -> bool:
    return bool(state["head"]) and _branch() is None


def _branch() -> str | None:
    """What HEAD names; None if it is detached."""
    try:
        return git("symbolic-ref", "--quiet", "HEAD").strip()
    except AdviceError:
        return None


def _free(path: Path) -> None:
    """Frees locks of DVC whose processes have ended, which DVC takes for alive as long as the system lists them."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        held = json.loads(path.read_text(encoding="utf-8"))
        write = {name: owner for name, owner in held.get("write", {}).items() if _is_running(owner["pid"])}
        read = {
            name: [owner for owner in owners if _is_running(owner["pid"])]
            for name, owners in held.get("read", {}).items()
        }
        read = {name: owners for name, owners in read.items() if owners}
        path.write_text(json.dumps({"write": write, "read": read}), encoding="utf-8")


def _unlock_experiments(older_than_s: float = 0.0) -> None:
    """Removes the locks of references and objects that DVC left behind where it was killed while writing one.

    git writes objects without such locks.
    """
    for lock in (*_git_path("refs/exps").rglob("*.lock"), *_git_path("objects").glob("??/*.lock")):
        with suppress(FileNotFoundError):
            if time.time() - lock.stat().st_mtime >= older_than_s:
                lock.unlink()


def _git_path(name: str) -> Path:
    return Path(git("rev-parse", "--git-path", name).strip())


def _is_running(pid: int) -> bool:
    try:
        return is_alive(psutil.Process(pid))
    except psutil.Error:
        return False
