"""The user's own callbacks of a training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from halfstep.tensorflow_import import keras

# Callbacks of Keras that write files, and the attribute that says where.
_WRITERS = {
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.TensorBoard: "log_dir",
}


def redirected(callbacks: Iterable[keras.callbacks.Callback], folder: Path | None) -> list[keras.callbacks.Callback]:
    """The callbacks; those of Keras that write files do so below `folder`, or are left out if it is None.

    Trainings would otherwise write the same files. `BackupAndRestore` is always left out: a training with callbacks
    starts anew.
    """
    kept = []
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            continue
        attribute = next((name for kind, name in _WRITERS.items() if isinstance(callback, kind)), None)
        if attribute is not None:
            if folder is None:
                continue
            setattr(callback, attribute, str(folder / Path(str(getattr(callback, attribute))).name))
        kept.append(callback)
    return kept
