from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfstep.errors import DataError
from halfstep.inputs.digests import model_digest, source_digest, task_digest, tasks_digest
from halfstep.params.schema import DataParams, ModelParams, Params, TaskParams, TrainParams, Variant

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


def test_folders_without_end_are_refused(pictures: Path) -> None:
    deepest = pictures.joinpath("cat", *["d"] * 120)
    deepest.mkdir(parents=True)
    with pytest.raises(DataError, match="pictures has more than 100 folders in each other; remove them"):
        source_digest(FOLDER)


def test_added_renamed_modified_or_removed_file_changes_the_digest(pictures: Path) -> None:
    digests = [source_digest(FOLDER)["sha256"]]
    (pictures / "cat" / "2.png").write_text("x")
    digests.append(source_digest(FOLDER)["sha256"])
    (pictures / "cat" / "2.png").rename(pictures / "dog" / "2.png")
    digests.append(source_digest(FOLDER)["sha256"])
    (pictures / "dog" / "2.png").write_text("y")
    digests.append(source_digest(FOLDER)["sha256"])
    (pictures / "dog" / "2.png").unlink()
    (pictures / "cat" / "1.png").unlink()
    digests.append(source_digest(FOLDER)["sha256"])
    assert len(set(digests)) == 5


def test_copy_has_the_same_digest(pictures: Path) -> None:
    for path in pictures.rglob("*.png"):
        os.utime(path, ns=(0, 0))
    first = source_digest(FOLDER)
    shutil.copytree(pictures, pictures.with_name("copy"), copy_function=shutil.copyfile)
    pictures.rename(pictures.with_name("original"))
    pictures.with_name("copy").rename(pictures)
    assert source_digest(FOLDER) == first


def test_names_that_are_not_utf8_and_broken_links(pictures: Path) -> None:
    before = source_digest(FOLDER)["sha256"]
    (Path(os.fsdecode(os.fsencode(pictures) + b"/cat/\xff.png"))).write_text("x")
    (pictures / "dog" / "link.png").symlink_to("no_such")
    (pictures / "dog" / "loop.png").symlink_to("loop.png")
    os.mkfifo(pictures / "dog" / "pipe.png")  # to open it would block
    with_link = source_digest(FOLDER)
    assert with_link["sha256"] != before
    assert with_link["files"] == 6
    (pictures / "dog" / "no_such").write_text("target")
    assert source_digest(FOLDER)["sha256"] != with_link["sha256"]


def test_links_out_of_the_folder_are_not_followed_as_in_prepare(pictures: Path) -> None:
    pictures.with_name("outside.png").write_text("1")
    (pictures / "dog" / "link.png").symlink_to(pictures.with_name("outside.png"))
    (pictures / "dog" / "inner.png").symlink_to("1.png")
    before = source_digest(FOLDER)
    assert before["files"] == 4
    pictures.with_name("outside.png").write_text("2")
    assert source_digest(FOLDER) == before
    (pictures / "dog" / "1.png").write_text("changed")
    assert source_digest(FOLDER) != before


def test_hidden_files_and_folders_are_ignored_as_in_prepare(pictures: Path) -> None:
    before = source_digest(FOLDER)
    (pictures / "cat" / ".DS_Store").write_text("x")
    (pictures / ".Trash").mkdir()
    (pictures / ".Trash" / "1.png").write_text("x")
    assert source_digest(FOLDER) == before


@pytest.mark.parametrize("removed", ["pictures/cat/1.png", "pictures/dog"])
def test_what_is_removed_during_the_listing_is_left_out(
    removed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = Path.open

    def remove_first(path: Path, *arguments: Any, **others: Any) -> Any:
        (tmp_path / removed).rename(tmp_path / "renamed") if (tmp_path / removed).exists() else None
        return open_file(path, *arguments, **others)

    monkeypatch.setattr(Path, "open", remove_first)
    during = source_digest(FOLDER)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert during["files"] == 1
    assert during == source_digest(FOLDER)


def test_missing_folder_is_refused(pictures: Path) -> None:
    pictures.rename(pictures.with_name("renamed"))
    with pytest.raises(DataError, match=r"^data\.path: .*pictures' cannot be read \(No such file or directory\); run"):
        source_digest(FOLDER)


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[None]:
    """Root may read everything: become an ordinary user until the end of the test."""
    is_root = os.geteuid() == 0
    if is_root:
        for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
            folder.chmod(0o755)
        os.seteuid(65534)
    yield
    if is_root:
        os.seteuid(0)


def test_unreadable_folder_is_refused(pictures: Path, request: pytest.FixtureRequest) -> None:
    (pictures / "dog" / "small").mkdir(mode=0)
    request.getfixturevalue("as_nobody")
    with pytest.raises(DataError) as caught:
        source_digest(FOLDER)
    message = str(caught.value)
    assert message.startswith("data.path: ")
    assert message.endswith(
        "small' cannot be read (Permission denied); change its permissions, or move it out of the folder"
    )
    assert message.isprintable()


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


OWN_TASK = "lib.own:build"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository outside the checkout, with a task that imports a helper."""
    folder = tmp_path / "repository"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "own.py").write_text("import helper\nfrom halfstep.tasks import Task")
    (folder / "helper.py").write_text("x = 1")
    (folder / "other.py").write_text("x = 1")
    return folder


def own_task(folder: Path, **others: Any) -> dict[str, Any]:
    return task_digest(TaskParams(name=OWN_TASK, path=str(folder), **others), 32, 0)


def test_own_task_is_identified_by_its_files_and_by_what_it_is_called_with(repository: Path) -> None:
    first = own_task(repository, arguments={"width": 8})
    assert {name: value for name, value in first.items() if name != "sha256"} == {
        "name": OWN_TASK,
        "files": ["helper.py", "lib/own.py"],
        "arguments": {"width": 8},
        "batch_size": 32,
        "seed": 0,
        "depends": {},
    }
    (repository / "other.py").write_text("x = 2")
    os.utime(repository / "helper.py", ns=(0, 0))
    assert own_task(repository, arguments={"width": 8}) == first
    (repository / "helper.py").write_text("x = 2")
    changed = own_task(repository, arguments={"width": 8})
    assert changed | {"sha256": ""} == first | {"sha256": ""}
    assert changed["sha256"] != first["sha256"]
    repository.rename(repository.with_name("moved"))
    assert own_task(repository.with_name("moved"), arguments={"width": 8}) == changed


def test_source_of_each_variant_that_is_taken_from_another_folder_counts(repository: Path, tmp_path: Path) -> None:
    other = shutil.copytree(repository, tmp_path / "other")
    task = TaskParams(name=OWN_TASK, path=str(repository))
    before = Variant(policy="float32", task_path=str(other))
    params = Params(
        task=task, train=TrainParams(variants=("float32", "before")), variants=Params().variants | {"before": before}
    )
    digest = tasks_digest(params)
    assert digest["sha256"] == digest["variants.before.task_path"]["sha256"]
    (other / "helper.py").write_text("x = 2")
    changed = tasks_digest(params)
    assert changed["sha256"] == digest["sha256"]
    assert changed["variants.before.task_path"]["sha256"] != digest["sha256"]


def test_what_a_task_depends_on(repository: Path) -> None:
    (repository / "weights.bin").write_bytes(b"1")
    (repository / "images").mkdir()
    (repository / "images" / "1.png").write_text("x")
    paths = (str(repository / "weights.bin"), str(repository / "images"))

    def digests() -> dict[str, Any]:
        return dict(own_task(repository, depends=paths)["depends"])

    first = digests()
    assert list(first) == list(paths)
    assert first[paths[1]]["files"] == 1
    os.utime(repository / "weights.bin", ns=(0, 0))
    for ignored in (".DS_Store", "__pycache__/own.pyc"):
        (repository / "images" / ignored).parent.mkdir(exist_ok=True)
        (repository / "images" / ignored).write_text("x")
    assert digests() == first
    (repository / "weights.bin").write_bytes(b"2")
    (repository / "images" / "1.png").write_text("y")
    second = digests()
    assert all(second[path] != first[path] for path in paths)


def test_folder_whose_files_cannot_be_examined_is_listed(pictures: Path, request: pytest.FixtureRequest) -> None:
    (pictures / "dog").chmod(0o644)  # its names can be read, and nothing else
    (pictures / "cat" / "1.png").chmod(0)
    request.getfixturevalue("as_nobody")
    assert source_digest(FOLDER)["files"] == 2
