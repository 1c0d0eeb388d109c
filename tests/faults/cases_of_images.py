"""What `prepare` rejects: unusable folders, files that are not images, full disks."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halfstep.system import files
from tests.faults.cases import Arrange, Case

_FOLDER = {"data": {"source": "folder", "path": "pictures", "image_size": 8}}
_SYNTHETIC = {"source": "synthetic", "synthetic_images": 40, "synthetic_classes": 2, "image_size": 8}
_FEW = {"data": _SYNTHETIC}
_NOT_AN_IMAGE = "not an image of a known format (JPEG, PNG, BMP, GIF, WEBP, TIFF)"


def draw(root: Path) -> Path:
    """Draws a folder with eight pictures of cats and eight of dogs."""
    for label, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.random.default_rng((label, number)).integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
    return root


def encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def bad_picture(name: str, reason: str, content: bytes = b"", file: str = "x.png") -> Case:
    """A picture that cannot be used, with `data.max_bad_fraction` 0."""

    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        (draw(root / "pictures") / "cat" / file).write_bytes(content)

    return Case(f"a picture: {name}", "prepare", (f"({reason}",), _FOLDER, arrange)


def rejected(name: str, fragment: str, arrange: Arrange | None, params: dict[str, Any] = _FEW, **others: Any) -> Case:
    return Case(name, "prepare", (fragment,), params, arrange, **others)


def _prepared_file(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / files.PREPARED).write_text("")


def _labels_folder(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / files.PREPARED / "train_labels.npy").mkdir(parents=True)


def _no_environment(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / files.ENVIRONMENT_FILE).unlink()


def _store_text(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "mlflow.db").write_text("not a database" * 100)


CASES = [
    bad_picture("empty", "empty file"),
    bad_picture("an icon, whose parser is not used", _NOT_AN_IMAGE, encoded("ICO")),
    bad_picture("a name with a line break", "empty file", file="two\nlines.png"),
    bad_picture("a name that is not UTF-8", "empty file", file=os.fsdecode(b"\xff.png")),
    bad_picture("a name with terminal control characters", "empty file", file="\x1b[2J.png"),
    rejected("data/prepared is a file", "data/prepared: cannot be written (File exists)", _prepared_file),
    rejected("an output is a folder", "train_labels.npy: cannot be written (Is a directory)", _labels_folder),
    rejected("environment has not run", "data/environment.json is missing: run `dvc repro`", _no_environment),
    rejected("the tracking store was overwritten", "mlflow.db cannot be used", _store_text),
    rejected(
        "params.yaml is wrong without `environment`", "train.epochs is -1", None, {"train": {"epochs": -1}}, status=2
    ),
]
