"""Images that another process has verified are opened without reading them again, and with cheap checks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from halfstep.errors import CorruptFileError
from halfstep.system import files
from halfstep.tasks.images import arrays


@pytest.fixture
def prepared(tmp_path: Path, prepared_template: Path) -> Path:
    return Path(shutil.copytree(prepared_template, tmp_path / "prepared"))


def test_quick_check_does_not_read_the_images(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = files.verify_manifest(prepared)
    read, sha256_file = [], files.sha256_file
    monkeypatch.setattr(files, "sha256_file", lambda path: read.append(path.name) or sha256_file(path))  # type: ignore[func-returns-value]
    arrays.open_prepared(prepared, digest)
    assert not {"train_images.npy", "validation_images.npy", "test_images.npy"} & set(read)
    assert {"train_labels.npy", "test_labels.npy", "info.json"} <= set(read)


def assert_rejected(prepared: Path, name: str, content: bytes) -> None:
    digest = files.verify_manifest(prepared)
    (prepared / name).write_bytes(content)
    with pytest.raises(CorruptFileError, match=name.replace(".", r"\.")) as caught:
        arrays.open_prepared(prepared, digest)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fraction", [0.0, 0.999])
def test_truncated_images_are_rejected(fraction: float, prepared: Path) -> None:
    content = (prepared / "train_images.npy").read_bytes()
    assert_rejected(prepared, "train_images.npy", content[: int(len(content) * fraction)])


def test_images_of_another_split_are_rejected(prepared: Path) -> None:
    assert_rejected(prepared, "train_images.npy", (prepared / "test_images.npy").read_bytes())


@pytest.mark.parametrize("name", ["train_labels.npy", "info.json", "manifest.json"])
def test_flipped_bit_in_a_small_file_is_rejected(name: str, prepared: Path) -> None:
    content = bytearray((prepared / name).read_bytes())
    content[-5] ^= 1
    assert_rejected(prepared, name, bytes(content))


def test_images_that_changed_after_the_check_are_rejected(prepared: Path) -> None:
    digest = files.verify_manifest(prepared)
    (prepared / "class_counts.csv").write_text("other")
    files.write_manifest(prepared)
    with pytest.raises(CorruptFileError, match="was changed while a stage was reading it: run `dvc repro` again"):
        arrays.open_prepared(prepared, digest)
