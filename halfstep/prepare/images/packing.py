"""Stores images that do not fit in memory: in a temporary file first, and then in `.npy` files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from halfstep.prepare.images.decoding import ImageForm, Images
from halfstep.prepare.images.source import images_per_batch
from halfstep.system.files import atomic_path

DIGEST_BYTES = hashlib.sha256().digest_size


class ImageBuffer:
    """Images of one form in a binary file, which are appended and then read in any order."""

    def __init__(self, file: IO[bytes], form: ImageForm) -> None:
        self._file = file
        self._form = form
        self._digests = bytearray()  # sha256 of each image's pixels

    def __len__(self) -> int:
        return len(self._digests) // DIGEST_BYTES

    def append(self, images: Images) -> None:
        """Appends images, (n, height, width, channels) uint8."""
        self._file.write(images.tobytes())
        for image in images:
            self._digests += hashlib.sha256(image.tobytes()).digest()

    def chunks(self, indices: NDArray[np.int64]) -> Iterator[Images]:
        """Yields the images at `indices`, in that order, a few megabytes at a time."""
        step = images_per_batch(self._form, most=1024)
        for start in range(0, len(indices), step):
            yield self._gather(indices[start : start + step])

    def _gather(self, indices: NDArray[np.int64]) -> Images:
        images = np.empty((len(indices), *self._form.shape), dtype=np.uint8)
        for row, index in enumerate(indices.tolist()):  # no memory map: its pages would count as memory
            self._file.seek(index * self._form.bytes_per_image)
            images[row] = np.frombuffer(self._file.read(self._form.bytes_per_image), np.uint8).reshape(self._form.shape)
        return images

    def groups(self) -> NDArray[np.int64]:
        """Group numbers, (n,) int64, in the order of first appearance. Images with equal pixels share a number."""
        digests = np.frombuffer(self._digests, dtype=f"V{DIGEST_BYTES}")
        _, first, by_digest = np.unique(digests, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[by_digest]


def write_images(path: Path, chunks: Iterator[Images], count: int, form: ImageForm) -> None:
    """Writes `count` images as a C-ordered uint8 `.npy` file of shape (count, height, width, channels)."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, *form.shape)}
    with atomic_path(path) as temporary_path, temporary_path.open("wb") as file:
        npy.write_array_header_1_0(file, header)
        file.writelines(chunk.tobytes() for chunk in chunks)


def write_labels(path: Path, labels: NDArray[np.int32]) -> None:
    """Writes (n,) int32 labels as a `.npy` file."""
    with atomic_path(path) as temporary_path, temporary_path.open("wb") as file:
        npy.write_array(file, labels, allow_pickle=False)
