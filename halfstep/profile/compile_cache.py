"""Compiled programs of XLA that outlive their process: later ones that time the same arm load them.

TensorFlow names a program by its operations alone, not by its own version, the device or `XLA_FLAGS`, and loads what
has that name. So a folder is named by a digest of all of these. With a damaged file `fit` ends early without an error,
so each has a checksum, and what has none is removed before a process starts. A training never loads: its result must
not depend on a cache, nor its time on what ran before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from halfstep.errors import HalfstepError
from halfstep.machine import fingerprint
from halfstep.profile.records import FirstStep
from halfstep.profile.repeats import inputs_of
from halfstep.system import files, locking
from halfstep.system.interpreters import versions_of
from halfstep.tasks.trial import Trial

FOLDER = files.WORK_DIR / "xla"
MOST_BYTES = 2 * 2**30  # of all folders; the oldest leave first
LEAST_FREE_BYTES = 2**30  # of the disk: a program that cannot be written ends its process
_CONTENTS, _LOCK = "contents.json", ".lock"


@contextmanager
def opened(trial: Trial, number: str, occasion: str | None = None) -> Iterator[Trial]:
    """The trial with a folder for its programs, which no other process uses until the block ends.

    Without one where another process uses it, and where it cannot be written or the disk is almost full: then each
    process compiles anew.

    Args:
        trial: of an arm.
        number: tells compilations of the same trial apart.
        occasion: of the measurement; each compiles for itself.
    """
    lock = None
    with suppress(OSError, HalfstepError):
        folder = files.original_root() / FOLDER / f"{_digest(trial, occasion)}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free >= LEAST_FREE_BYTES:
            lock = locking.try_lock(folder / _LOCK)
    if lock is None:
        yield trial
        return
    with lock:
        sums = _contents(folder).get("sha256", {})
        _remove([path for path in _programs(folder) if sums.get(path.name) != files.sha256_file(path)])
        trial = replace(trial, programs=folder)
        try:
            yield trial
        finally:
            keep(trial)
            with suppress(OSError):
                _remove_oldest(folder)
                if not _programs(folder):
                    shutil.rmtree(folder)


def has_programs(trial: Trial) -> bool:
    """Whether a process of this trial finds programs to load."""
    return trial.programs is not None and bool(_programs(trial.programs))


def keep(trial: Trial, first_step: FirstStep | None = None) -> None:
    """Notes what was compiled so far, so that a run that is killed later finds it again.

    Args:
        trial: whose programs they are.
        first_step: of the process that has compiled them; None: as noted before.
    """
    folder = trial.programs
    if folder is None:
        return
    before = _contents(folder)
    after = before | ({"first_step": asdict(first_step)} if first_step else {})
    with suppress(OSError, HalfstepError):
        known = before.get("sha256", {})
        after["sha256"] = {path.name: known.get(path.name) or files.sha256_file(path) for path in _programs(folder)}
        if after != before and after["sha256"]:
            with files.atomic_path(folder / _CONTENTS) as temporary_path:
                temporary_path.write_text(json.dumps(after, indent=1), encoding="utf-8")


def compiled(trial: Trial) -> FirstStep | None:
    """The first step of the process that has compiled these programs; None if it is not known."""
    noted = None if trial.programs is None else _contents(trial.programs).get("first_step")
    return FirstStep(**noted) if noted else None


def without(trial: Trial) -> Trial:
    """The trial without its programs, which are removed: a process has failed with them."""
    if trial.programs is not None:
        _remove(_programs(trial.programs))
    return replace(trial, programs=None)


def _digest(trial: Trial, occasion: str | None) -> str:
    """Of everything that may decide what is compiled, so that one folder has the programs of one arm."""
    python, no_matter = trial.variant.python, {"seeds", "variants"}
    if trial.task.script is not None:  # which has its own schedule of the learning rate
        no_matter.add("epochs")
    parts = {
        **inputs_of(trial.prepared_sha256),
        "now": [fingerprint.versions(), fingerprint.settings(os.environ), fingerprint.cpu_flags()],
        "variant": trial.variant.model_dump(mode="json"),
        "task": [part.model_dump(mode="json") for part in (trial.task, trial.model)],
        "train": trial.train.model_dump(mode="json", exclude=no_matter),
        "occasion": occasion,
        "python": None if python is None else versions_of(python),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _programs(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name not in (_CONTENTS, _LOCK)] if folder.is_dir() else []


def _contents(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / _CONTENTS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


def _remove_oldest(mine: Path) -> None:
    """Removes folders until all fit."""
    sizes = {path: sum(one.stat().st_size for one in _programs(path)) for path in mine.parent.iterdir()}
    left = sum(sizes.values())
    for path in sorted(sizes, key=lambda path: path.stat().st_mtime):
        if left <= MOST_BYTES:
            return
        if path != mine and (lock := locking.try_lock(path / _LOCK)) is not None:
            with lock, suppress(OSError):
                shutil.rmtree(path)
                left -= sizes[path]
