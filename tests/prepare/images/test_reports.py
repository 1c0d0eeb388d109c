"""The reports on prepared images, with folders whose names are code in a spreadsheet or cannot be drawn."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from halfstep.errors import printable
from halfstep.params.schema import DataParams
from halfstep.prepare.images.pipeline import prepare
from halfstep.results.prepared import PreparedInfo
from tests.hostile_names import NAMES
from tests.prepare.images.conftest import Draw

FOLDERS = [name for name in NAMES if "/" not in name and len(name.encode()) < 256]


@pytest.fixture
def pictures(tmp_path: Path, draw: Draw) -> Path:
    """Six images for each of `FOLDERS`, and one that is damaged."""
    for label, name in enumerate(FOLDERS):
        for number in range(6):
            draw(tmp_path / "pictures" / name / f"{number}.png", 100 * label + number)
        (tmp_path / "pictures" / name / "=bad.png").write_bytes(b"")
    return tmp_path / "pictures"


def prepared(pictures: Path, directory: Path) -> PreparedInfo:
    params = {"source": "folder", "path": str(pictures), "image_size": 8, "max_bad_fraction": 1.0}
    return prepare(DataParams.model_validate(params), directory)


def first_column(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row[0] for row in csv.reader(file)][1:]


def test_reports_of_any_class_names(pictures: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    info = prepared(pictures, tmp_path / "out")
    assert PreparedInfo.read(tmp_path / "out" / "info.json") == info
    assert info.classes == tuple(printable(name) for name in sorted(FOLDERS))
    assert capfd.readouterr().err == ""


def test_spreadsheet_computes_no_name(pictures: Path, tmp_path: Path) -> None:
    info = prepared(pictures, tmp_path / "out")
    classes = first_column(tmp_path / "out" / "class_counts.csv")
    assert [name.removeprefix("'") if name[1:] in info.classes else name for name in classes] == list(info.classes)
    assert [name for name in classes if name[0] in "=@＝"] == []  # noqa: RUF001
    assert {'\'=HYPERLINK("http:x","y")', "'@SUM(A1)", "-1", "+1", "'single' \"double\""} <= set(classes)
    rejected = first_column(tmp_path / "out" / "rejected.csv")
    assert len(rejected) == len(FOLDERS)
    assert [path for path in rejected if path[0] in "=@＝+-"] == []  # noqa: RUF001
