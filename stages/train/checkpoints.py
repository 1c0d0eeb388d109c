"""Checkpoints as files: written whole, told by their digest, and tied to what made them."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import stages
from stages import files, locking
from stages.environment import inputs
from stages.errors import DataError
from stages.params import Params
from stages.train.callbacks import Epoch

KEPT = 2  # where the newest is damaged, the one before it serves
_CODE = ("train", "models", "dataset.py", "precision.py", "recipe.py")
_WITHOUT_EFFECT = {"variants", "seeds", "checkpoint_every", "require_gpu"}  # on the result of one training
_RELEASES = ("tensorflow", "keras", "numpy")
_STATE = "state"


@dataclass(frozen=True)
class Checkpoint:
    """A training after a step, or after the validation that follows an epoch's last step; by default, its beginning.

    Attributes:
        step: steps done, over all epochs.
        epochs: rows of the epochs that have ended.
        train_time_s: seconds spent in `fit` up to here, over all sittings.
        epoch_time_s: of these, the part that belongs to the epoch that has not ended.
        not_finite_step: first step of that epoch, from 0, whose loss was not finite; None if all were.
        run_id: the MLflow run of the training.
        arrays: every variable of the network, the optimizer and the metrics.
    """

    step: int = 0
    epochs: tuple[Epoch, ...] = ()
    train_time_s: float = 0.0
    epoch_time_s: float = 0.0
    not_finite_step: int | None = None
    run_id: str | None = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As an uncompressed `.npz` file, without pickle."""
        state = {name: value for name, value in vars(self).items() if name not in ("arrays", "epochs")}
        text = json.dumps(state | {"epochs": [asdict(row) for row in self.epochs]})
        buffer = io.BytesIO()
        named: dict[str, Any] = {_STATE: np.frombuffer(text.encode(), np.uint8), **self.arrays}
        np.savez(buffer, allow_pickle=False, **named)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Checkpoint:
        """The checkpoint that `to_bytes` was called on."""
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        state = json.loads(arrays.pop(_STATE).tobytes())
        epochs = tuple(Epoch(**row) for row in state.pop("epochs"))
        return cls(epochs=epochs, arrays=arrays, **state)


class Checkpoints:
    """The newest checkpoints of one training, in a folder of its own.

    A file's name holds the step, the number of epochs, and the sha256 of its content: it is whole or it is not used.
    They are written in a thread, while the training goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._under_way: Future[None] | None = None
        self._warned = False

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; a line for each newer one that is not."""
        for path in reversed(self._paths()):
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() == _digest_in(path):
                return Checkpoint.from_bytes(content)
            print(f"{path} is damaged (its sha256 differs): it is not used", file=sys.stderr)
            path.unlink()
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Begins to write a checkpoint, once the one before is written; no more than one waits in memory."""
        self.flush()
        self._under_way = self._writer.submit(self._write, checkpoint)

    def flush(self) -> None:
        """Waits until all are written."""
        if self._under_way is not None:
            self._under_way.result()

    def remove(self) -> None:
        """Removes them all, once the results of the training are safely written."""
        self.flush()
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # not empty: another training's lie there
            self._folder.parent.rmdir()

    def _write(self, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint and removes the oldest; a disk that is full costs one line and no training."""
        content = checkpoint.to_bytes()
        digest = hashlib.sha256(content).hexdigest()
        path = self._folder / f"{checkpoint.step:012d}-{len(checkpoint.epochs):06d}-{digest}.npz"
        try:
            with files.atomic_path(path) as beside:
                beside.write_bytes(content)
        except DataError as error:
            if not self._warned:
                print(f"no checkpoint is kept: {error}; the training goes on", file=sys.stderr)
            self._warned = True
            return
        for old in self._paths()[:-KEPT]:
            old.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]*.npz"))


def _digest_in(path: Path) -> str:
    return path.stem.rpartition("-")[2]


@contextmanager
def opened(training: str, key: str) -> Iterator[Checkpoints | None]:
    """The checkpoints of a training that `key` made, in the checkout that the user works in; others' are removed.

    Experiments of DVC that run at the same time may train the very same thing: the second gets None, and keeps none.
    """
    folder = files.original_root() / files.SCRATCH / "checkpoints" / training
    mine = folder / key[:16]
    for other in folder.iterdir() if folder.is_dir() else ():
        if other != mine:
            _remove_unless_locked(other)
    stream = locking.try_lock(_lock_of(mine))
    if stream is None:
        print(f"{training}: another process trains the same: this one keeps no checkpoints", file=sys.stderr)
        yield None
        return
    with stream:
        for left_over in mine.glob(".*.npz"):  # a process was killed while it wrote them
            left_over.unlink()
        kept = Checkpoints(mine)
        try:
            yield kept
        finally:
            kept.flush()


def key_of(settings: Params, variant: str, seed: int, data_sha256: str) -> str:
    """Digest of all that a training's result hangs on: parameters, data, variant, seed, code and releases."""
    parts = {
        "model": inputs.model_digest(settings.model),
        "train": settings.train.model_dump(mode="json", exclude=_WITHOUT_EFFECT),
        "variant": settings.variants[variant].model_dump(mode="json"),
        "name": variant,
        "seed": seed,
        "data": data_sha256,
        "code": _code_digest(),
        "releases": {name: metadata.version(name) for name in _RELEASES},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _code_digest() -> str:
    root = Path(stages.__file__).parent
    named = [root / name for name in _CODE]
    paths = sorted(path for entry in named for path in ([entry] if entry.is_file() else entry.rglob("*.py")))
    lines = [f"{path.relative_to(root)}\0{files.sha256_file(path)}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _lock_of(folder: Path) -> Path:
    return folder / ".lock"


def _remove_unless_locked(folder: Path) -> None:
    stream = locking.try_lock(_lock_of(folder)) if folder.is_dir() else None
    if stream is not None:
        with stream:
            shutil.rmtree(folder, ignore_errors=True)
