"""Checkpoint files: written atomically, and verified by their sha256."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from halfstep.errors import DataError
from halfstep.system import files
from halfstep.train.epochs import Epoch

MAX_KEPT = 2  # if the newest is damaged, the one before it is used
_STATE = "state"


@dataclass(frozen=True)
class Checkpoint:
    """State of a training after a step, or after the validation at the end of an epoch. The default is the start.

    Attributes:
        step: number of steps done, over all epochs.
        epochs: the epochs that have ended.
        train_time_s: seconds in `fit` so far, over all sessions.
        epoch_time_s: the part of `train_time_s` that belongs to the current epoch.
        not_finite_step: first step of the current epoch, from 0, whose loss was not finite; None if all were.
        arrays: values of all variables of the network, the optimizer and the metrics.
    """

    step: int = 0
    epochs: tuple[Epoch, ...] = ()
    train_time_s: float = 0.0
    epoch_time_s: float = 0.0
    not_finite_step: int | None = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Content of an uncompressed `.npz` file, without pickle."""
        state = {name: value for name, value in vars(self).items() if name not in ("arrays", "epochs")}
        text = json.dumps(state | {"epochs": [asdict(row) for row in self.epochs]})
        buffer = io.BytesIO()
        named: dict[str, Any] = {_STATE: np.frombuffer(text.encode(), np.uint8), **self.arrays}
        np.savez(buffer, allow_pickle=False, **named)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Checkpoint:
        """Inverse of `to_bytes`."""
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        state = json.loads(arrays.pop(_STATE).tobytes())
        epochs = tuple(Epoch(**row) for row in state.pop("epochs"))
        return cls(epochs=epochs, arrays=arrays, **state)


class Checkpoints:
    """The newest checkpoints of one training, in one folder.

    A file name consists of the step, the number of epochs, and the sha256 of the content: a damaged file is not used.
    Another thread writes the files, so that the training continues meanwhile. Before the first one is saved, the object
    can be sent to another process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._warned = False

    def newest(self) -> Checkpoint | None:
        """Returns the newest intact checkpoint, or None. Removes each damaged one and prints a line."""
        for path in reversed(self._paths()):
            try:
                content = path.read_bytes()
            except FileNotFoundError:  # another process has found the damage, too
                continue
            if hashlib.sha256(content).hexdigest() == path.stem.rpartition("-")[2]:
                return Checkpoint.from_bytes(content)
            print(f"{path} is damaged (its sha256 differs) and is not used", file=sys.stderr)
            path.unlink()
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Starts to write a checkpoint, after the previous one is written: only one is kept in memory."""
        self.flush()
        self._writer = self._writer or ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending = self._writer.submit(self._write, checkpoint)

    def flush(self) -> None:
        """Waits until all checkpoints are written."""
        if self._pending is not None:
            self._pending.result()

    def remove(self) -> None:
        """Removes all checkpoints. Call it after the results of the training are written."""
        self.flush()
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # not empty: it contains those of another training
            self._folder.parent.rmdir()

    def _write(self, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint and removes the oldest. A full disk gives a warning, and the training continues."""
        content = checkpoint.to_bytes()
        digest = hashlib.sha256(content).hexdigest()
        path = self._folder / f"{checkpoint.step:012d}-{len(checkpoint.epochs):06d}-{digest}.npz"
        try:
            with files.atomic_path(path) as temporary_path:
                temporary_path.write_bytes(content)
        except DataError as error:
            if not self._warned:
                print(f"checkpoint not saved: {error}; the training continues", file=sys.stderr)
            self._warned = True
            return
        for old in self._paths()[:-MAX_KEPT]:
            old.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]*.npz"))
