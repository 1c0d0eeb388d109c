"""The prepared images as arrays, mapped from their files. Does not import TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halfstep.errors import CorruptFileError
from halfstep.results.prepared import PreparedInfo
from halfstep.system import files

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """One split: memory-mapped images, uint8 `(n, height, width, channels)`, and labels, int32 `(n,)`."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class PreparedImages:
    """The prepared images, and the sha256 of their manifest."""

    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    sha256: str


def open_prepared(directory: Path = files.PREPARED, verified_sha256: str | None = None) -> PreparedImages:
    """Opens the output of `prepare` after verifying every file against the manifest.

    Args:
        directory: folder of the prepared images.
        verified_sha256: sha256 of the manifest, as `files.verify_manifest` returned it in the parent process. Of the
            packed images, which may be gigabytes, only the sizes are then checked; all other files are verified again.

    Raises:
        DataError: there are no prepared images.
        CorruptFileError: a file was changed after it was written.
    """
    digest = (
        files.verify_manifest(directory) if verified_sha256 is None else _verify_small_files(directory, verified_sha256)
    )
    info = PreparedInfo.read(directory / "info.json")
    splits = {name: _open_split(directory, name) for name in SPLITS}
    return PreparedImages(**splits, classes=info.classes, image_shape=info.image_shape, sha256=digest)


def views_of_one_image(directory: Path, examples: int, seed: int) -> PreparedImages:
    """`examples` views of one random image, which take no memory until they are batched, as every split.

    Args:
        directory: folder of the prepared images, for their shape and classes.
        examples: number of views.
        seed: seed of the image and of the labels.
    """
    info, draw = PreparedInfo.read(directory / "info.json"), np.random.default_rng(seed)
    image = draw.integers(0, 256, (1, *info.image_shape), np.uint8)
    labels = draw.integers(0, len(info.classes), examples, np.int32)
    split = Split(np.broadcast_to(image, (examples, *info.image_shape)), labels)
    return PreparedImages(**dict.fromkeys(SPLITS, split), classes=info.classes, image_shape=info.image_shape, sha256="")


def _verify_small_files(directory: Path, expected_sha256: str) -> str:
    names = files.read_manifest(directory)
    digest = files.sha256_file(directory / files.MANIFEST)
    if digest != expected_sha256:
        raise CorruptFileError(f"{directory} was changed while a stage was reading it: run `dvc repro` again")
    for name in names:
        if name not in {f"{split}_images.npy" for split in SPLITS}:
            files.verified(directory, name)
    return digest


def _open_split(directory: Path, name: str) -> Split:
    path = directory / f"{name}_images.npy"
    labels = np.load(directory / f"{name}_labels.npy", allow_pickle=False)
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
        is_complete = path.stat().st_size == images.offset + images.nbytes and len(images) == len(labels)
    except (OSError, ValueError, EOFError):  # truncated, or without a valid header
        is_complete = False
    if not is_complete:
        raise CorruptFileError(f"{path} does not have its original size: run `dvc repro -f -s prepare`")
    return Split(images, labels)
