"""Classes of test examples, from the targets of a task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.tensorflow_import import keras

MOST_CLASSES = 1000


def classes_of(targets: Iterable[Any]) -> NDArray[np.int64] | None:
    """The class of each example, `(examples,)`; None where the targets are no classes.

    Classes are 2 to `MOST_CLASSES` whole numbers from 0, or rows of which one is 1 and all others are 0.

    Args:
        targets: by batch.
    """
    parts = [keras.tree.flatten(batch) for batch in targets]
    if not parts or any(len(leaves) != 1 for leaves in parts):
        return None
    arrays = [np.asarray(leaf) for (leaf,) in parts]
    if any(array.dtype.kind not in "biuf" or array.shape[1:] != arrays[0].shape[1:] for array in arrays):
        return None
    whole = np.concatenate(arrays)
    if whole.ndim == 2 and whole.shape[1] > 1:
        is_one_hot = np.isin(whole, (0, 1)).all() and (whole.sum(axis=1) == 1).all()
        return whole.argmax(axis=1) if is_one_hot else None
    if whole.size != len(whole):
        return None
    values = whole.reshape(len(whole)).astype(np.float64)
    is_class = np.isfinite(values).all() and (values >= 0).all() and (values == np.floor(values)).all()
    return values.astype(np.int64) if is_class and 2 <= len(np.unique(values)) <= MOST_CLASSES else None
