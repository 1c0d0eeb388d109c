"""The examples on which a script's models are compared: stored once by `prepare`, halved into validation and test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import TaskError
from halfstep.system import files
from halfstep.tensorflow_import import keras, tf

ARRAYS, STRUCTURE = "examples.npz", "examples.json"
_SPLIT_SEED = 0


@dataclass(frozen=True)
class Batch:
    """Examples with what the loss weighs them by.

    Attributes:
        x, y: arrays, or dicts, tuples and lists of them.
        sample_weight: as the script gives it; None without.
        counts: which positions count by the model's mask; None without one.
    """

    x: Any
    y: Any
    sample_weight: Any = None
    counts: Any = None

    def __len__(self) -> int:
        return len(keras.tree.flatten(self.x)[0])

    def rows(self, chosen: NDArray[np.int64]) -> Batch:
        """Some of the examples."""
        return Batch(*(mapped(lambda leaf: leaf[chosen], part) for part in self.parts()))

    def parts(self) -> tuple[Any, Any, Any, Any]:
        """The attributes in their order."""
        return self.x, self.y, self.sample_weight, self.counts


def mapped(function: Callable[[Any], Any], values: Any) -> Any:
    """The structure with `function` applied to each array; None stays None."""
    return keras.tree.map_structure(lambda leaf: None if leaf is None else function(leaf), values)


def as_array(value: Any) -> np.ndarray:
    """A tensor as an array that needs no pickle: strings are UTF-8 of a fixed length.

    Raises:
        TaskError: it is ragged or sparse.
    """
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        raise TaskError(f"has examples of type {type(value).__name__}, which cannot be stored as arrays")
    array = np.asarray(value)
    if array.dtype.kind not in "OU":
        return array
    texts = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    return np.array(texts, np.bytes_).reshape(array.shape)


def sha256(batches: Iterable[Any]) -> str:
    """A sha256 of batches of any structure, with their shapes and types; empty without any."""
    digest = None
    for batch in batches:
        digest = digest or hashlib.sha256()
        for leaf in tf.nest.flatten(batch, expand_composites=True):
            if leaf is not None:
                array = as_array(leaf)
                digest.update(f"{array.shape} {array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest() if digest else ""


def set_sha256(batches: Iterable[Batch]) -> str:
    """A sha256 of the examples in any order and in any batches; empty without any."""
    digests: list[bytes] = []
    for batch in batches:
        leaves = [leaf for leaf in keras.tree.flatten(batch.parts()) if leaf is not None]
        for number in range(len(batch)):
            digest = hashlib.sha256()
            for leaf in leaves:
                digest.update(f"{leaf.dtype}".encode() + np.ascontiguousarray(leaf[number]).tobytes())
            digests.append(digest.digest())
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest() if digests else ""


def write(folder: Path, batches: Sequence[Batch]) -> None:
    """Writes batches of one structure."""
    arrays: dict[str, np.ndarray] = {}
    structure = None
    for number, batch in enumerate(batches):
        names: list[str] = []

        def named(leaf: np.ndarray, names: list[str] = names, number: int = number) -> str:
            names.append(f"{number}.{len(names)}")
            arrays[names[-1]] = leaf
            return names[-1].partition(".")[2]

        parts = [_encoded(mapped(named, part)) for part in batch.parts()]
        if structure not in (None, parts):
            raise TaskError("has batches of different structures")
        structure = parts
    files.write_json(folder / STRUCTURE, {"batches": len(batches), "parts": structure})
    with files.atomic_path(folder / ARRAYS) as path:
        np.savez(path, **arrays)  # type: ignore[arg-type]  # its first parameters have other names


def read(folder: Path) -> list[Batch]:
    """Reads what `write` wrote."""
    described = files.read_json(folder / STRUCTURE)
    with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
        return [
            Batch(
                *(_decoded(part, lambda leaf, number=number: arrays[f"{number}.{leaf}"]) for part in described["parts"])
            )
            for number in range(described["batches"])
        ]


def halves(batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """The examples for validation and for the test: a random half each, the same for all seeds and variants."""
    total = sum(map(len, batches))
    in_test = np.zeros(total, bool)
    in_test[np.random.default_rng(_SPLIT_SEED).permutation(total)[total // 2 :]] = True
    split: tuple[list[Batch], list[Batch]] = [], []
    start = 0
    for batch in batches:
        chosen = in_test[start : start + len(batch)]
        start += len(batch)
        for half, rows in zip(split, (np.flatnonzero(~chosen), np.flatnonzero(chosen)), strict=True):
            if len(rows):
                half.append(batch.rows(rows))
    size = max(map(len, batches))
    return _rebatched(split[0], size), _rebatched(split[1], size)


def _rebatched(batches: list[Batch], size: int) -> list[Batch]:
    """Batches of one size, for which TensorFlow traces once; the same ones where their shapes differ otherwise."""
    shapes = {tuple(np.shape(leaf)[1:] for leaf in keras.tree.flatten(batch.parts())) for batch in batches}
    if len(shapes) != 1:
        return batches
    whole = Batch(*keras.tree.map_structure(_joined, *(batch.parts() for batch in batches)))
    return [whole.rows(np.arange(first, min(first + size, len(whole)))) for first in range(0, len(whole), size)]


def _joined(*leaves: Any) -> Any:
    return None if leaves[0] is None else np.concatenate(leaves)


def as_dataset(elements: Sequence[Any]) -> tf.data.Dataset:
    """Batches of arrays of one structure as a dataset. Sizes in which they differ are unknown."""
    specs = [keras.tree.map_structure(tf.type_spec_from_value, element) for element in elements]
    signature = keras.tree.map_structure(_common, *specs)

    def again() -> Iterator[Any]:
        return iter(elements)

    dataset = tf.data.Dataset.from_generator(again, output_signature=signature)
    # without it Keras says at the end of each epoch that the input ran out of data
    return dataset.apply(tf.data.experimental.assert_cardinality(len(elements))).prefetch(1)


def _common(*specs: tf.TensorSpec) -> tf.TensorSpec:
    sizes = zip(*(spec.shape[1:] for spec in specs), strict=True)
    return tf.TensorSpec((None, *(size[0] if len(set(size)) == 1 else None for size in sizes)), specs[0].dtype)


def _encoded(value: Any) -> Any:
    """Nested containers with names at their leaves as JSON."""
    if isinstance(value, dict):
        return {"dict": {name: _encoded(item) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        return {type(value).__name__ if type(value) in (list, tuple) else "tuple": [_encoded(item) for item in value]}
    return value


def _decoded(value: Any, leaf: Any) -> Any:
    if not isinstance(value, dict):
        return None if value is None else leaf(value)
    ((kind, items),) = value.items()
    if kind == "dict":
        return {name: _decoded(item, leaf) for name, item in items.items()}
    decoded = [_decoded(item, leaf) for item in items]
    return decoded if kind == "list" else tuple(decoded)
