"""The folders of checkpoints: locked, and valid only for the inputs that produced them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halfstep.inputs import digests
from halfstep.inputs.own_code import code_digest
from halfstep.machine import fingerprint
from halfstep.params.schema import Params
from halfstep.system import files, locking
from halfstep.system.interpreters import versions_of
from halfstep.train.checkpoint_files import Checkpoints

FOLDER_VARIABLE = "HALFSTEP_CHECKPOINTS"  # of each machine
SHARED_WAIT_S = 120.0  # a file server notices within this time that a machine has died, and frees its locks
_WITHOUT_EFFECT = {"variants", "seeds", "checkpoint_every", "require_gpu"}  # do not change the result of a training
_RELEASES = ("tensorflow", "keras", "numpy")


def folder_of(training: str) -> Path:
    """The folder of a training's checkpoints: in `HALFSTEP_CHECKPOINTS`, or in the user's checkout.

    A relative `HALFSTEP_CHECKPOINTS` is relative to the original checkout.
    """
    shared = os.environ.get(FOLDER_VARIABLE) or str(files.WORK_DIR / "checkpoints")
    return files.original_root() / os.path.expanduser(shared) / training  # noqa: PTH111  raises no error


@contextmanager
def opened(training: str, key: str) -> Iterator[Checkpoints | None]:
    """Opens the checkpoints of a training, in the user's checkout or in `HALFSTEP_CHECKPOINTS`.

    Those of the checkout with another `key` are removed. A folder that machines share may also have those of other
    checkouts, which stay.

    DVC experiments may run the same training at the same time: the second process gets None, and saves no checkpoints.
    In a shared folder it first waits, because the machine that ran the training may not have ended it yet.
    """
    shared, folder = bool(os.environ.get(FOLDER_VARIABLE)), folder_of(training)
    mine = folder / key[:16]
    for other in folder.iterdir() if folder.is_dir() and not shared else ():
        if other != mine:
            _remove_unless_locked(other)
    lock = locking.try_lock(_lock_of(mine), wait_s=SHARED_WAIT_S if shared else 0.0)
    if lock is None:
        print(f"{training}: another process runs the same training; this one saves no checkpoints", file=sys.stderr)
        yield None
        return
    with lock:
        for partial in mine.glob(".*.npz"):  # a process was killed while it wrote them
            partial.unlink()
        kept = Checkpoints(mine)
        try:
            yield kept
        finally:
            kept.flush()


def checkpoint_key(settings: Params, variant: str, seed: int, data_sha256: str) -> str:
    """Digest of everything that determines a training's result: parameters, data, variant, seed, code and releases."""
    python = settings.variants[variant].python
    releases = fingerprint.versions() if python is None else versions_of(python)
    parts = {
        "model": digests.model_digest(settings.model),
        "task": digests.task_digest(settings.variants[variant].task_of(settings.task), settings.train.batch_size, seed),
        "train": settings.train.model_dump(mode="json", exclude=_WITHOUT_EFFECT),
        "variant": settings.variants[variant].model_dump(mode="json"),
        "name": variant,
        "seed": seed,
        "data": data_sha256,
        "code": code_digest("train"),
        "releases": {name: releases.get(name) for name in _RELEASES},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _lock_of(folder: Path) -> Path:
    return folder / ".lock"


def _remove_unless_locked(folder: Path) -> None:
    lock = locking.try_lock(_lock_of(folder)) if folder.is_dir() else None
    if lock is not None:
        with lock:
            shutil.rmtree(folder, ignore_errors=True)
