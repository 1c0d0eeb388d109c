"""A full disk is reported before any work; if it fills up during a write, the old file is unchanged."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halfstep.errors import DataError, TrackingError
from halfstep.params.schema import DataParams, TrackingParams
from halfstep.prepare.images.pipeline import prepare
from halfstep.system import files
from halfstep.tracking.tracker import Tracker

SIZE_KIB = 256


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 256 KiB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_KIB}k", "tmpfs", str(mount_point)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"a file system cannot be mounted here ({error})")
    if mounted.returncode:
        pytest.skip(f"a file system may not be mounted here ({mounted.stderr.strip()})")
    yield mount_point
    subprocess.run(["umount", str(mount_point)], check=True)


def text(path: Path) -> None:
    files.write_text(path, "x" * (SIZE_KIB << 10))


def in_small_pieces(path: Path) -> None:
    with files.atomic_path(path) as temporary_path, temporary_path.open("wb") as stream:
        for _ in range(SIZE_KIB):
            stream.write(b"x" * 1024)


@pytest.mark.parametrize("write", [text, in_small_pieces])
def test_old_file_is_unchanged_if_the_disk_fills_up(write: Callable[[Path], None], small_disk: Path) -> None:
    path = small_disk / "file.npy"
    path.write_text("old")
    with pytest.raises(DataError, match=r"file\.npy: cannot be written \(.*; the old file is unchanged") as caught:
        write(path)
    assert "\n" not in str(caught.value)
    assert path.read_text() == "old"
    assert [entry.name for entry in small_disk.iterdir()] == ["file.npy"]


@pytest.mark.parametrize("left_bytes", [0, 64 << 10])
def test_store_that_does_not_fit(left_bytes: int, small_disk: Path) -> None:
    """MLflow's tables take more than the disk has; a new file does not even fit."""
    (small_disk / "other").write_bytes(b"x" * ((SIZE_KIB << 10) - left_bytes))
    with pytest.raises(TrackingError, match=r"mlflow\.db: No space left on device; free some disk space, then run"):
        Tracker(TrackingParams(uri=f"sqlite:///{small_disk}/mlflow.db"))


def test_images_that_do_not_fit_are_refused_before_writing(small_disk: Path) -> None:
    data = DataParams(source="synthetic", synthetic_images=1000, synthetic_classes=2, image_size=16)
    with pytest.raises(DataError, match=r"1\.5 MiB are needed and 0\.2 MiB are free; free some disk space, or lower"):
        prepare(data, small_disk / "prepared")
    assert list((small_disk / "prepared").iterdir()) == []


def test_disk_that_fills_up_while_images_are_written(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfstep.prepare.images.pipeline.require_free_space", lambda *_: None)
    data = DataParams(source="synthetic", synthetic_images=1000, synthetic_classes=2, image_size=16)
    with pytest.raises(
        DataError, match=r"prepared: cannot be written \(No space left on device\); free disk space"
    ) as caught:
        prepare(data, small_disk / "prepared")
    assert "\n" not in str(caught.value)
    assert list((small_disk / "prepared").iterdir()) == []


def test_directory_with_enough_space_is_accepted(tmp_path: Path) -> None:
    files.require_free_space(tmp_path / "not" / "yet" / "created", 1000, "wait")
    with pytest.raises(
        DataError, match=r"created: 1073741824\.0 GiB are needed and .* are free; free some disk space, or wait"
    ):
        files.require_free_space(tmp_path / "not" / "yet" / "created", 1 << 60, "wait")


@pytest.mark.slow
def test_limit_on_the_size_of_files_gives_one_line(root: Path, tmp_path: Path, store_template: Path) -> None:
    """Every write of the stage meets the limit, in any library; this needs no separate file system."""
    store = shutil.copy(store_template, tmp_path / "mlflow.db")
    (tmp_path / "params.yaml").write_text("data: {source: synthetic, synthetic_images: 2000, image_size: 32}\n")
    program = "from stages.environment import main; main(); from stages.prepare import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root), "MLFLOW_TRACKING_URI": f"sqlite:///{store}"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("data/prepared: cannot be written (File too large)")
