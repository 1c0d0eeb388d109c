"""Prepared data whose inputs changed while they were prepared: a later run with these inputs takes them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halfstep.errors import ChangedInputsError, CorruptFileError, DataError
from halfstep.inputs.own_code import code_digest
from halfstep.inputs.snapshot import Snapshot
from halfstep.params.schema import Params
from halfstep.system import files

_FOLDER = files.WORK_DIR / "prepared"


@contextmanager
def kept_if_inputs_change(settings: Params, inputs: Snapshot) -> Iterator[bool]:
    """Yields whether `data/prepared` is there, from an earlier run with these inputs; else the block makes it.

    Raises:
        ChangedInputsError: the inputs have changed in the block; `data/prepared` is moved to `.halfstep/prepared/`.
    """
    mine = files.original_root() / _FOLDER / _key(settings)
    is_there = _is_intact(mine)
    if is_there:
        shutil.rmtree(files.PREPARED, ignore_errors=True)
        shutil.move(mine, files.PREPARED)
        print("prepare: takes what an earlier run has prepared from the same inputs")
    yield is_there
    try:
        inputs.require_unchanged("with the former inputs, a run takes what is prepared")
    except ChangedInputsError:
        shutil.rmtree(mine.parent, ignore_errors=True)
        mine.parent.mkdir(parents=True)
        shutil.move(files.PREPARED, mine)
        raise


def _key(settings: Params) -> str:
    """Digest of all that decides what is prepared."""
    named = [path.read_text(encoding="utf-8") for path in (files.SOURCE_FILE, files.TASK_FILE) if path.is_file()]
    own = [] if settings.task.uses_data_and_model else [settings.train.batch_size, settings.train.seeds[0]]
    decides = [settings.task.model_dump(), settings.data.model_dump(), own, named, code_digest("prepare")]
    return hashlib.sha256(json.dumps(decides, default=str).encode()).hexdigest()[:16]


def _is_intact(folder: Path) -> bool:
    try:
        return bool(files.verify_manifest(folder))
    except (CorruptFileError, DataError):
        return False
