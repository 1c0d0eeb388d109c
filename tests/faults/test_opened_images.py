"""Images that another process has checked are opened without being read again, and still not believed blindly."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from stages import dataset, files
from stages.errors import CorruptFileError, DataError


@pytest.fixture
def prepared(tmp_path: Path, prepared_template: Path) -> Path:
    return Path(shutil.copytree(prepared_template, tmp_path / "prepared"))


def test_both_ways_give_the_same(prepared: Path) -> None:
    in_full = dataset.open_prepared(prepared)
    quick = dataset.open_prepared(prepared, files.check_manifest(prepared))
    assert (quick.sha256, quick.classes) == (in_full.sha256, in_full.classes)
    assert np.array_equal(quick.train.images, in_full.train.images)


def test_the_packed_images_are_not_read(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = files.check_manifest(prepared)
    read, sha256_file = [], files.sha256_file
    monkeypatch.setattr(files, "sha256_file", lambda path: read.append(path.name) or sha256_file(path))  # type: ignore[func-returns-value]
    dataset.open_prepared(prepared, digest)
    assert not {"train_images.npy", "validation_images.npy", "test_images.npy"} & set(read)
    assert {"train_labels.npy", "test_labels.npy", "info.json"} <= set(read)


def damaged(prepared: Path, name: str, content: bytes) -> None:
    digest = files.check_manifest(prepared)
    (prepared / name).write_bytes(content)
    with pytest.raises(CorruptFileError, match=name.replace(".", r"\.")) as told:
        dataset.open_prepared(prepared, digest)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_images_that_were_cut(share: float, prepared: Path) -> None:
    content = (prepared / "train_images.npy").read_bytes()
    damaged(prepared, "train_images.npy", content[: int(len(content) * share)])


def test_images_that_have_grown(prepared: Path) -> None:
    damaged(prepared, "train_images.npy", (prepared / "train_images.npy").read_bytes() + b"\0")


def test_images_of_another_number(prepared: Path) -> None:
    damaged(prepared, "train_images.npy", (prepared / "test_images.npy").read_bytes())


@pytest.mark.parametrize("name", ["train_labels.npy", "info.json", "manifest.json"])
def test_a_flipped_bit_in_a_small_file(name: str, prepared: Path) -> None:
    content = bytearray((prepared / name).read_bytes())
    content[-5] ^= 1
    damaged(prepared, name, bytes(content))


def test_other_images_than_those_that_were_checked(prepared: Path) -> None:
    digest = files.check_manifest(prepared)
    (prepared / "class_counts.csv").write_text("other")
    files.write_manifest(prepared)
    with pytest.raises(CorruptFileError, match="was changed while a stage was at work in it: run `dvc repro` again"):
        dataset.open_prepared(prepared, digest)


def test_nothing_prepared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.json is missing: run `dvc repro`"):
        dataset.open_prepared(tmp_path, "x")
