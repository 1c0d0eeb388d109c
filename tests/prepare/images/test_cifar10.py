"""The format of the archive, and the download to Keras's cache, with a small archive of the same format."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from stages.errors import DataError
from stages.prepare.images.batches import ImageBatch
from stages.prepare.images.cifar10 import CACHE_NAME, Archive, ArrayUnpickler, find_archive, read_batches
from stages.prepare.images.decoding import ImageForm
from stages.prepare.images.sources import Cifar10
from stages.prepare.images.splitting import TEST, TRAIN

IMAGES_PER_MEMBER = 4
MEMBERS = ("data_batch_4", "data_batch_1", "test_batch", "data_batch_3", "data_batch_2", "data_batch_5")


def member_content(number: int) -> dict[bytes, object]:
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (IMAGES_PER_MEMBER, 3 * 32 * 32), dtype=np.uint8)
    return {b"data": pixels, b"labels": [number, 1, 2, 3], b"filenames": [b"x.png"] * IMAGES_PER_MEMBER}


def archive_bytes() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for number, name in enumerate(("readme.html", *MEMBERS)):
            content = pickle.dumps(member_content(number), protocol=4) if number else b"<html>"
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """An archive with a `file:` URL, and an empty Keras cache."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    content = archive_bytes()
    (tmp_path / "server.tar.gz").write_bytes(content)
    return Archive((tmp_path / "server.tar.gz").as_uri(), hashlib.sha256(content).hexdigest())


def unreachable(archive: Archive) -> Archive:
    return Archive("http://127.0.0.1:9/cifar-10-python.tar.gz", archive.sha256)


def test_archive_is_downloaded_once_to_the_cache_of_keras(archive: Archive, tmp_path: Path) -> None:
    path = find_archive(archive)
    assert path == tmp_path / "keras" / "datasets" / CACHE_NAME
    assert [entry.name for entry in path.parent.iterdir()] == [CACHE_NAME]
    assert find_archive(unreachable(archive)) == path


@pytest.mark.parametrize("name", [CACHE_NAME, "cifar-10-batches-py.tar.gz", "cifar-10-python.tar.gz"])
def test_cached_archive_needs_no_network(name: str, archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "keras" / "datasets").mkdir(parents=True)
    (tmp_path / "keras" / "datasets" / name).write_bytes(archive_bytes())
    assert find_archive(unreachable(archive)).name == name


def test_damaged_cached_archive_is_replaced(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "keras" / "datasets").mkdir(parents=True)
    (tmp_path / "keras" / "datasets" / CACHE_NAME).write_bytes(archive_bytes()[:100])
    assert len(list(read_batches(find_archive(archive)))) == 6


def test_error_without_network_names_the_remedy(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"cannot be downloaded \(.*\); download the file \(sha256 .* by hand"
    ) as caught:
        find_archive(unreachable(archive))
    assert f"(sha256 {archive.sha256}) to {tmp_path}/keras/datasets/cifar-10-python.tar.gz" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "keras" / "datasets").iterdir()) == []


def test_download_with_an_unexpected_sha256_is_refused_and_removed(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unexpected sha256"):
        find_archive(Archive(archive.url, "0" * 64))
    assert list((tmp_path / "keras" / "datasets").iterdir()) == []


def test_cache_folder_that_cannot_be_created_is_a_data_error(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "keras").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot be stored in"):
        find_archive(archive)


def test_planes_are_converted_to_pixels(archive: Archive) -> None:
    batches = {batch.name: batch for batch in read_batches(find_archive(archive))}
    assert list(batches) == list(MEMBERS)
    planes = np.asarray(member_content(3)[b"data"]).reshape(IMAGES_PER_MEMBER, 3, 32, 32)
    assert batches["test_batch"].images[2, 5, 7].tolist() == planes[2, :, 5, 7].tolist()
    assert batches["test_batch"].labels.tolist() == [3, 1, 2, 3]


def test_official_test_images_are_the_test_set(archive: Archive) -> None:
    source = Cifar10(ImageForm(side_px=32, grey=False, max_pixels=10**6), archive)
    batches: list[ImageBatch] = list(source.batches())
    given = np.concatenate([batch.given for batch in batches])
    assert given.tolist() == [TRAIN] * 8 + [TEST] * 4 + [TRAIN] * 12
    assert batches[0].images.shape == (IMAGES_PER_MEMBER, 32, 32, 3)
    assert batches[0].names[0] == "data_batch_4[0]"


class Malicious:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("exit 1",))


def test_pickle_cannot_call_functions() -> None:
    with pytest.raises(pickle.UnpicklingError, match="system is not allowed"):
        ArrayUnpickler(io.BytesIO(pickle.dumps(Malicious()))).load()
