"""CIFAR-10 from the archive that Keras downloads, or from its cache, without importing Keras and TensorFlow."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import wrap_file

from stages.errors import DataError
from stages.files import atomic_path, sha256_file

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE_PX = 32
TRAIN_MEMBERS = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_MEMBER = "test_batch"
TIMEOUT_S = 15.0

CACHE_NAME = "cifar-10-batches-py-target_archive"  # Keras 3's name for the file in its cache
OTHER_CACHE_NAMES = ("cifar-10-batches-py.tar.gz", "cifar-10-python.tar.gz")  # of Keras 2, and of the download


@dataclass(frozen=True)
class Archive:
    """A download and its expected sha256."""

    url: str
    sha256: str


ARCHIVE = Archive(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)


@dataclass(frozen=True)
class ArchiveMember:
    """A file of the archive: images (n, 32, 32, 3) uint8, labels (n,) int32."""

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int32]


def find_archive(archive: Archive = ARCHIVE) -> Path:
    """Returns the path of the archive in Keras's cache, after a download if it is missing or damaged.

    Raises:
        DataError: the archive cannot be downloaded or stored, or has an unexpected sha256.
    """
    cache = _cache_folder()
    for name in (CACHE_NAME, *OTHER_CACHE_NAMES):
        if (cache / name).is_file() and sha256_file(cache / name) == archive.sha256:
            return cache / name
    _download(archive, cache / CACHE_NAME)
    return cache / CACHE_NAME


def read_batches(path: Path) -> Iterator[ArchiveMember]:
    """Yields the files of the archive in their order there. They are read in memory; nothing is unpacked to disk."""
    wanted = {f"cifar-10-batches-py/{name}" for name in (*TRAIN_MEMBERS, TEST_MEMBER)}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name in wanted else None
            if stream is not None:
                yield _parse(Path(member.name).name, ArrayUnpickler(stream, encoding="bytes").load())


class ArrayUnpickler(pickle.Unpickler):
    """Loads containers, bytes and NumPy arrays, and refuses all other objects, which could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns one of the three names that arrays need; raises `pickle.UnpicklingError` for any other."""
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.zeros(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in an array file")


def _parse(name: str, content: dict[bytes, Any]) -> ArchiveMember:
    planes = content[b"data"].reshape(-1, 3, SIDE_PX, SIDE_PX)  # (n, channel, y, x)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return ArchiveMember(name, images, np.asarray(content[b"labels"], dtype=np.int32))


def _download(archive: Archive, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(_advice(archive, f"cannot be stored in {target.parent} ({error.strerror})")) from error
    with atomic_path(target) as temporary_path:
        try:
            _copy_from_network(archive.url, temporary_path)
        except (OSError, HTTPException) as error:  # URLError and timeouts are OSErrors
            raise DataError(_advice(archive, f"cannot be downloaded ({getattr(error, 'reason', error)})")) from error
        if sha256_file(temporary_path) != archive.sha256:
            raise DataError(_advice(archive, "has an unexpected sha256 after the download"))


def _copy_from_network(url: str, target: Path) -> None:
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    with urlopen(url, timeout=TIMEOUT_S) as response, target.open("wb") as file:  # noqa: S310 - the URL is a constant
        total_bytes = int(response.headers.get("Content-Length") or 0)
        bar = wrap_file(response, total=total_bytes, description="CIFAR-10", console=console, transient=True)
        with bar as stream:
            shutil.copyfileobj(stream, file)


def _cache_folder() -> Path:
    """Where Keras keeps what it downloads."""
    return Path(os.path.expanduser(os.environ.get("KERAS_HOME", "~/.keras"))) / "datasets"  # noqa: PTH111  raises no error


def _advice(archive: Archive, problem: str) -> str:
    return (
        f"data.source = cifar10: {archive.url} {problem}; download the file (sha256 {archive.sha256}) "
        f"to {_cache_folder() / OTHER_CACHE_NAMES[-1]} by hand, or choose another data.source: digits, folder, "
        "synthetic"
    )
