from __future__ import annotations

import os
from pathlib import Path

import pytest

from stages.digests import model_digest, source_digest
from stages.params import DataParams, ModelParams

FOLDER = DataParams(source="folder", path="pictures")


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "pictures" / name / "1.png").write_text(name)
    return tmp_path / "pictures"


def test_same_directory_has_the_same_digest(pictures: Path) -> None:
    assert source_digest(FOLDER) == source_digest(FOLDER)
    assert source_digest(FOLDER)["files"] == 2
    absolute = DataParams(source="folder", path=str(pictures))
    assert source_digest(absolute) == source_digest(FOLDER)


def test_added_renamed_modified_or_removed_file_changes_the_digest(pictures: Path) -> None:
    digests = [source_digest(FOLDER)["sha256"]]
    (pictures / "cat" / "2.png").write_text("x")
    digests.append(source_digest(FOLDER)["sha256"])
    (pictures / "cat" / "2.png").rename(pictures / "dog" / "2.png")
    digests.append(source_digest(FOLDER)["sha256"])
    os.utime(pictures / "dog" / "2.png", ns=(0, 0))
    digests.append(source_digest(FOLDER)["sha256"])
    (pictures / "dog" / "2.png").unlink()
    (pictures / "cat" / "1.png").unlink()
    digests.append(source_digest(FOLDER)["sha256"])
    assert len(set(digests)) == 5


def test_names_that_are_not_utf8_and_broken_links(pictures: Path) -> None:
    before = source_digest(FOLDER)["sha256"]
    (Path(os.fsdecode(os.fsencode(pictures) + b"/cat/\xff.png"))).write_text("x")
    (pictures / "dog" / "link.png").symlink_to("no_such")
    assert source_digest(FOLDER)["sha256"] != before


def test_other_sources_have_only_a_name() -> None:
    assert source_digest(DataParams(source="digits", path="no_such")) == {"source": "digits"}


def test_user_model_is_identified_by_its_source_code(tmp_path: Path) -> None:
    assert model_digest(ModelParams(name="resnet20")) == {"name": "resnet20"}
    own = ModelParams(name="own:build")
    (tmp_path / "own.py").write_text("def build(): ...")
    first = model_digest(own)
    assert first["sha256"] == model_digest(own)["sha256"]
    (tmp_path / "own.py").write_text("def build(): pass")
    assert model_digest(own)["sha256"] != first["sha256"]


def test_user_model_is_identified_by_the_helpers_that_it_imports(tmp_path: Path) -> None:
    own = ModelParams(name="own:build")
    (tmp_path / "own.py").write_text("def build():\n    from helper import layer")
    (tmp_path / "helper.py").write_text("layer = 1")
    (tmp_path / "other.py").write_text("x = 1")
    first = model_digest(own)
    assert first["files"] == ["helper.py", "own.py"]
    (tmp_path / "other.py").write_text("x = 2")
    os.utime(tmp_path / "helper.py", ns=(0, 0))
    assert model_digest(own) == first
    (tmp_path / "helper.py").write_text("layer = 2")
    assert model_digest(own)["sha256"] != first["sha256"]


def test_digest_of_a_model_does_not_depend_on_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text("import helper")
        (tmp_path / folder / "helper.py").write_text("x = 1")
        monkeypatch.chdir(tmp_path / folder)
        digests.append(model_digest(ModelParams(name="own:build")))
    assert digests[0] == digests[1]
