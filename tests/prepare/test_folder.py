"""Which files of a folder are meant."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.errors import DataError
from stages.prepare.folder import list_images, printable
from stages.prepare.splitting import TEST, TRAIN, UNASSIGNED, VALIDATION


def split_up(root: Path, *names: str) -> Path:
    """Makes `root` the first of several splits with the same classes in each."""
    above = root.with_name("split")
    for name in names:
        shutil.copytree(root, above / name)
    return above


def test_classes_and_files_are_sorted_by_name(pictures: Path, draw: Callable[..., Path]) -> None:
    for name in ("10", "2"):
        draw(pictures / name / "a.png", 1)
        draw(pictures / name / "b.png", 2)
    listing = list_images(pictures)
    assert listing.classes == ("10", "2", "cat", "dog")
    assert [file.path for file in listing.files[:5]] == ["10/a.png", "10/b.png", "2/a.png", "2/b.png", "cat/00.png"]
    assert {file.given for file in listing.files} == {UNASSIGNED}
    assert [file.label for file in listing.files[2:5]] == [1, 1, 2]


def test_folders_within_a_class_are_walked(pictures: Path, draw: Callable[..., Path]) -> None:
    draw(pictures / "cat" / "kittens" / "small" / "x.png", 5)
    listing = list_images(pictures)
    assert ("cat/kittens/small/x.png", 0) in [(file.path, file.label) for file in listing.files]
    assert listing.classes == ("cat", "dog")


def test_hidden_things_and_litter_are_not_seen(pictures: Path, draw: Callable[..., Path]) -> None:
    draw(pictures / ".thumbnails" / "a.png", 1)
    draw(pictures / "cat" / ".hidden.png", 2)
    draw(pictures / "cat" / ".git" / "b.png", 3)
    (pictures / "cat" / "Thumbs.db").write_bytes(b"x")
    (pictures / "README.md").write_text("about")
    listing = list_images(pictures)
    assert (len(listing.files), listing.classes) == (30, ("cat", "dog"))


@pytest.mark.parametrize("validation", ["validation", "val", "Val"])
def test_splits_above_the_classes_are_respected(validation: str, pictures: Path) -> None:
    root = split_up(pictures, "train", validation, "test")
    (root / "labels.csv").write_text("beside the splits")
    (root / "train" / "labels.csv").write_text("beside the classes")
    listing = list_images(root)
    assert listing.classes == ("cat", "dog")
    assert [file.given for file in listing.files] == [TRAIN] * 30 + [VALIDATION] * 30 + [TEST] * 30
    assert listing.files[30].path == f"{validation}/cat/00.png"


def test_a_class_may_be_called_train(pictures: Path, draw: Callable[..., Path]) -> None:
    for number in range(3):
        draw(pictures / "train" / f"{number}.png", number)
    assert list_images(pictures).classes == ("cat", "dog", "train")


def test_links_are_followed_within_the_folder_only(pictures: Path, tmp_path: Path, draw: Callable[..., Path]) -> None:
    outside = draw(tmp_path / "outside" / "secret.png", 7)
    (pictures / "cat" / "a_inside.png").symlink_to(pictures / "dog" / "00.png")
    (pictures / "cat" / "b_outside.png").symlink_to(outside)
    (pictures / "cat" / "c_relative.png").symlink_to("../../outside/secret.png")
    (pictures / "cat" / "d_folder").symlink_to(outside.parent)
    (pictures / "cat" / "e_circle").symlink_to("..")
    (pictures / "cat" / "f_nothing.png").symlink_to("gone.png")
    (pictures / "cat" / "g_itself.png").symlink_to("g_itself.png")
    listing = list_images(pictures)
    assert "cat/a_inside.png" in [file.path for file in listing.files]
    assert {rejection.path: rejection.reason for rejection in listing.rejected} == {
        "cat/b_outside.png": "a link that leads out of the folder",
        "cat/c_relative.png": "a link that leads out of the folder",
        "cat/d_folder": "a link that leads out of the folder",
        "cat/e_circle": "a link to a folder",
        "cat/f_nothing.png": "a link to nothing",
        "cat/g_itself.png": "a link to nothing",
    }
    assert all(rejection.is_bad for rejection in listing.rejected)


def test_the_root_itself_may_be_a_link(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pictures)
    assert len(list_images(tmp_path / "link").files) == 30


def test_strange_names_stay_on_one_line_and_are_found(pictures: Path, draw: Callable[..., Path]) -> None:
    shown = pictures / "cat" / "two\nlines.png"
    draw(shown, 3)
    broken = Path(os.fsdecode(os.fsencode(pictures / "cat") + b"/\xff.png"))
    draw(pictures / "cat" / "x.png", 4).rename(broken)
    names = {file.name: file.path for file in list_images(pictures).files}
    assert names["cat/two\\nlines.png"] == "cat/two\nlines.png"
    assert (pictures / names["cat/\\xff.png"]).exists()
    assert printable("Übung ✓") == "Übung ✓"


def missing(root: Path) -> Path:
    return root / "nowhere"


def a_file(root: Path) -> Path:
    return root / "cat" / "00.png"


def empty(root: Path) -> Path:
    (root / "empty").mkdir()
    return root / "empty"


def pictures_alone(root: Path) -> Path:
    return root / "cat"


def one_class(root: Path) -> Path:
    shutil.rmtree(root / "dog")
    return root


def empty_class(root: Path) -> Path:
    (root / "bird").mkdir()
    return root


def single_image(root: Path) -> Path:
    (root / "bird").mkdir()
    shutil.copy(root / "cat" / "00.png", root / "bird")
    return root


def linked_class(root: Path) -> Path:
    (root / "bird").symlink_to(root / "cat")
    return root


def linked_split(root: Path) -> Path:
    """A split that lies outside, which no link may lead to."""
    above = split_up(root, "train")
    (above / "test").symlink_to(root)
    return above


def no_train(root: Path) -> Path:
    return split_up(root, "val", "test")


def something_beside(root: Path) -> Path:
    return split_up(root, "train", "test", "annotations")


def two_of_a_kind(root: Path) -> Path:
    return split_up(root, "train", "val", "validation")


def splits_without_classes(root: Path) -> Path:
    (root / "dog").rename(root / "test")
    (root / "cat").rename(root / "train")
    return root


def class_only_in_test(root: Path) -> Path:
    above = split_up(root, "train", "test")
    (above / "test" / "cat").rename(above / "test" / "bird")
    return above


def class_missing_in_test(root: Path) -> Path:
    above = split_up(root, "train", "test")
    shutil.rmtree(above / "test" / "cat")
    return above


UNUSABLE: list[tuple[Callable[[Path], Path], str]] = [
    (missing, "does not exist; give the folder that holds one sub-folder for each class"),
    (a_file, "is not a folder; give the folder"),
    (empty, "holds no class folders; give at least 2"),
    (pictures_alone, "holds no class folders; give at least 2"),
    (one_class, "holds one class folder alone ('cat'); give at least 2"),
    (empty_class, "class 'bird' has 0 images in "),
    (single_image, "class 'bird' has 1 images in "),
    (linked_class, "'bird' in .* is a link; links to folders are not followed"),
    (linked_split, "'test' in .* is a link; links to folders are not followed"),
    (no_train, "holds the folders test, val; allowed are train with any of"),
    (something_beside, "holds the folders annotations, test, train; allowed are"),
    (two_of_a_kind, "holds the folders train, val, validation; allowed are"),
    (splits_without_classes, "train holds no class folders; give at least 2"),
    (class_only_in_test, "'bird' in .*test is no class of .*train; add training images"),
    (class_missing_in_test, "class 'cat' has 0 images in .*test, and needs at least 1"),
]


@pytest.mark.parametrize(("arrange", "expected"), UNUSABLE)
def test_a_folder_that_cannot_be_used(arrange: Callable[[Path], Path], expected: str, pictures: Path) -> None:
    root = arrange(pictures)
    with pytest.raises(DataError, match=expected.replace("(", r"\(").replace(")", r"\)")) as caught:
        list_images(root)
    assert str(caught.value).startswith("data.path: ")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no such permissions")
def test_a_folder_without_permission(pictures: Path) -> None:
    (pictures / "cat").chmod(0)
    is_root = os.geteuid() == 0  # root may read everything, so become nobody for a while
    if is_root:
        pictures.parent.parent.chmod(0o755)
        pictures.parent.parent.parent.chmod(0o755)
        os.seteuid(65534)
    try:
        with pytest.raises(DataError, match=r"cannot be read \(Permission denied\); give yourself permission"):
            list_images(pictures)
    finally:
        if is_root:
            os.seteuid(0)
        (pictures / "cat").chmod(0o755)
