"""The listing of image folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from halfstep.errors import DataError, printable
from halfstep.prepare.images.folder import list_images
from halfstep.prepare.images.splitting import TEST, TRAIN, UNASSIGNED, VALIDATION


def split_up(root: Path, *names: str) -> Path:
    """Copies the class folders in `root` to each of the named split folders, and returns their parent."""
    parent = root.with_name("split")
    for name in names:
        shutil.copytree(root, parent / name)
    return parent


def test_classes_and_files_are_sorted_by_name(pictures: Path, draw: Callable[..., Path]) -> None:
    for name in ("10", "2"):
        draw(pictures / name / "a.png", 1)
        draw(pictures / name / "b.png", 2)
    listing = list_images(pictures)
    assert listing.classes == ("10", "2", "cat", "dog")
    assert [file.path for file in listing.files[:5]] == ["10/a.png", "10/b.png", "2/a.png", "2/b.png", "cat/00.png"]
    assert {file.given for file in listing.files} == {UNASSIGNED}
    assert [file.label for file in listing.files[2:5]] == [1, 1, 2]


def test_class_folders_are_listed_recursively(pictures: Path, draw: Callable[..., Path]) -> None:
    draw(pictures / "cat" / "kittens" / "small" / "x.png", 5)
    listing = list_images(pictures)
    assert ("cat/kittens/small/x.png", 0) in [(file.path, file.label) for file in listing.files]
    assert listing.classes == ("cat", "dog")


def test_hidden_and_system_files_are_ignored(pictures: Path, draw: Callable[..., Path]) -> None:
    draw(pictures / ".thumbnails" / "a.png", 1)
    draw(pictures / "cat" / ".hidden.png", 2)
    draw(pictures / "cat" / ".git" / "b.png", 3)
    (pictures / "cat" / "Thumbs.db").write_bytes(b"x")
    (pictures / "README.md").write_text("about")
    listing = list_images(pictures)
    assert (len(listing.files), listing.classes) == (30, ("cat", "dog"))


@pytest.mark.parametrize(
    ("training", "validation", "test"),
    [
        ("train", "validation", "test"),
        ("train", "val", "test"),
        ("Train", "Val", "Test"),
        ("Training", "Validation", "Testing"),
        ("seg_train", "seg_val", "seg_test"),
        ("training_set", "valid_set", "test_set"),
        ("TRAIN_IMAGES", "VALID-IMAGES", "TEST IMAGES"),
        ("trainset", "dev", "testset"),
    ],
)
def test_given_splits_are_used(training: str, validation: str, test: str, pictures: Path) -> None:
    root = split_up(pictures, training, validation, test)
    (root / "labels.csv").write_text("")
    (root / training / "labels.csv").write_text("")
    listing = list_images(root)
    assert listing.classes == ("cat", "dog")
    assert [file.given for file in listing.files] == [TRAIN] * 30 + [VALIDATION] * 30 + [TEST] * 30
    assert {file.path for file in listing.files if file.given == VALIDATION} >= {f"{validation}/cat/00.png"}


@pytest.mark.parametrize("names", [("seg_train/seg_train", "seg_test/seg_test"), ("data/train", "data/val")])
def test_folder_that_only_wraps_another_is_passed_through(names: tuple[str, str], pictures: Path) -> None:
    root = pictures.parent / "wrapped"
    for name in names:
        shutil.copytree(pictures, root / name)
    listing = list_images(root)
    assert listing.classes == ("cat", "dog")
    assert {file.given for file in listing.files} == {TRAIN, TEST if "test" in names[1] else VALIDATION}
    assert all((root / file.path).is_file() for file in listing.files)


def test_class_folders_in_one_folder_are_used(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "archive" / "PetImages")
    assert list_images(tmp_path / "archive").classes == ("cat", "dog")


def test_classes_that_look_like_folds_are_noted(pictures: Path, draw: Callable[..., Path]) -> None:
    folds = pictures.parent / "folds"
    for name in ("fold1", "fold2"):
        shutil.copytree(pictures, folds / name)
    assert "fold1, fold2, and each of them contains the folders cat, dog;" in str(list_images(folds).note)
    draw(folds / "fold1" / "kitten.png", 1)
    assert list_images(folds).note is None
    (folds / "fold1" / "kitten.png").unlink()
    (folds / "fold2" / "dog").rename(folds / "fold2" / "bird")
    assert list_images(folds).note is None


@pytest.mark.parametrize("name", ["valid", "training", "test", "dev"])
def test_class_with_the_name_of_a_split_has_images_in_it(name: str, pictures: Path) -> None:
    (pictures / "cat").rename(pictures / name)
    assert list_images(pictures).classes == tuple(sorted((name, "dog")))


@pytest.mark.parametrize("names", [("Training", "Testing"), ("train", "valid"), ("test_set", "training_set")])
def test_two_classes_with_the_names_of_splits_are_refused(names: tuple[str, str], pictures: Path) -> None:
    for before, name in zip(("cat", "dog"), names, strict=True):
        (pictures / before).rename(pictures / name)
    with pytest.raises(DataError, match="contains no class folders; at least 2 are needed"):
        list_images(pictures)


def test_links_of_dvc_are_images(pictures: Path, tmp_path: Path) -> None:
    """As `dvc add` makes them where `cache.type` is symlink."""
    cached = tmp_path / "cache" / "files" / "md5" / "0a" / ("b" * 30)
    cached.parent.mkdir(parents=True)
    (pictures / "cat" / "00.png").rename(cached)
    (pictures / "cat" / "00.png").symlink_to(cached)
    listing = list_images(pictures)
    assert (len(listing.files), listing.rejected) == (30, ())


def test_links_out_of_the_folder_are_refused(pictures: Path, tmp_path: Path, draw: Callable[..., Path]) -> None:
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


def test_root_may_be_a_link(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pictures)
    assert len(list_images(tmp_path / "link").files) == 30


def test_names_with_unprintable_characters_are_escaped(pictures: Path, draw: Callable[..., Path]) -> None:
    draw(pictures / "cat" / "two\nlines.png", 3)
    not_utf8 = Path(os.fsdecode(os.fsencode(pictures / "cat") + b"/\xff.png"))
    draw(pictures / "cat" / "x.png", 4).rename(not_utf8)
    names = {file.name: file.path for file in list_images(pictures).files}
    assert names["cat/two\\nlines.png"] == "cat/two\nlines.png"
    assert (pictures / names["cat/\\xff.png"]).exists()
    assert printable("Übung ✓") == "Übung ✓"


def missing(root: Path) -> Path:
    return root / "nowhere"


def empty(root: Path) -> Path:
    (root / "empty").mkdir()
    return root / "empty"


def images_only(root: Path) -> Path:
    return root / "cat"


def one_class(root: Path) -> Path:
    shutil.rmtree(root / "dog")
    return root


def single_image(root: Path) -> Path:
    (root / "bird").mkdir()
    shutil.copy(root / "cat" / "00.png", root / "bird")
    return root


def linked_class(root: Path) -> Path:
    (root / "bird").symlink_to(root / "cat")
    return root


def linked_split(root: Path) -> Path:
    """A split that is a link to a folder outside."""
    parent = split_up(root, "train")
    (parent / "test").symlink_to(root)
    return parent


def other_folder_next_to_splits(root: Path) -> Path:
    return split_up(root, "train", "test", "annotations")


def two_validation_folders(root: Path) -> Path:
    return split_up(root, "train", "val", "validation")


def splits_without_classes(root: Path) -> Path:
    (root / "dog").rename(root / "test")
    (root / "cat").rename(root / "train")
    return root


def class_only_in_test(root: Path) -> Path:
    parent = split_up(root, "train", "test")
    (parent / "test" / "cat").rename(parent / "test" / "bird")
    return parent


def class_missing_in_test(root: Path) -> Path:
    parent = split_up(root, "train", "test")
    shutil.rmtree(parent / "test" / "cat")
    return parent


def images_and_masks(root: Path) -> Path:
    (root / "cat").rename(root / "images")
    (root / "dog").rename(root / "Masks")
    return root


def flat_validation_folder(root: Path) -> Path:
    parent = split_up(root, "train")
    (root / "cat").rename(parent / "val")
    return parent


def class_in_two_encodings(root: Path) -> Path:
    for name in ("\u00e9t\u00e9", "e\u0301te\u0301"):  # each é as one character, or as a letter and an accent
        shutil.copytree(root / "cat", root / name)
    return root


def class_with_a_space_at_the_end(root: Path) -> Path:
    shutil.copytree(root / "cat", root / "cat ")
    return root


def class_with_an_escaped_byte(root: Path) -> Path:
    for name in (os.fsdecode(b"\xff"), r"\xff"):
        shutil.copytree(root / "cat", root / name)
    return root


def class_in_another_encoding_in_test(root: Path) -> Path:
    (root / "dog").rename(root / "\u00e9t\u00e9")
    parent = split_up(root, "train", "test")
    (parent / "test" / "\u00e9t\u00e9").rename(parent / "test" / "e\u0301te\u0301")
    return parent


LOOKALIKES: list[tuple[Callable[[Path], Path], str]] = [
    (class_in_two_encodings, r"the class folders 'e\u0301te\u0301' and '\xe9t\xe9' in "),
    (class_with_a_space_at_the_end, "the class folders 'cat' and 'cat ' in "),
    (class_with_an_escaped_byte, r"the class folders '\\xff' and '\udcff' in "),
    (class_in_another_encoding_in_test, r"the class folders 'e\u0301te\u0301' and '\xe9t\xe9' in "),
]
UNUSABLE: list[tuple[Callable[[Path], Path], str]] = [
    (missing, "does not exist; set it to a folder that contains one folder for each class"),
    (empty, "contains no class folders; at least 2 are needed"),
    (images_only, "contains no class folders; at least 2 are needed"),
    (one_class, "contains only one class folder ('cat'); at least 2 are needed"),
    (single_image, "class 'bird' has 1 images in "),
    (linked_class, "'bird' in .* is a link; links to folders are not followed"),
    (linked_split, "'test' in .* is a link; links to folders are not followed"),
    (other_folder_next_to_splits, "contains the folders annotations, test, train; allowed are"),
    (two_validation_folders, "contains the folders train, val, validation; allowed are"),
    (splits_without_classes, "train contains no class folders; at least 2 are needed"),
    (class_only_in_test, "'bird' in .*test is not a class of .*train; add training images"),
    (images_and_masks, "contains images and masks, as for segmentation, and no class folders"),
    (flat_validation_folder, "val contains images and no class folders, which .*train has; sort them"),
    (class_missing_in_test, "class 'cat' has 0 images in .*test and needs at least 1"),
]


@pytest.mark.parametrize(("arrange", "expected"), UNUSABLE)
def test_unusable_folder_is_refused(arrange: Callable[[Path], Path], expected: str, pictures: Path) -> None:
    root = arrange(pictures)
    with pytest.raises(DataError, match=expected.replace("(", r"\(").replace(")", r"\)")) as caught:
        list_images(root)
    assert str(caught.value).startswith("data.path: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("arrange", "expected"), LOOKALIKES)
def test_classes_that_look_the_same_are_refused(arrange: Callable[[Path], Path], expected: str, pictures: Path) -> None:
    root = arrange(pictures)
    with pytest.raises(DataError) as caught:
        list_images(root)
    message = str(caught.value)
    assert message.startswith(f"data.path: {expected}")
    assert message.endswith("have names that look the same; rename one, or move all images into one of them")
    assert message.isprintable()


def test_classes_that_differ_in_case_or_accent_are_used(pictures: Path) -> None:
    for name in ("Cat", "ete", "\u00e9t\u00e9", " bird"):
        shutil.copytree(pictures / "cat", pictures / name)
    assert list_images(pictures).classes == (" bird", "Cat", "cat", "dog", "ete", "\u00e9t\u00e9")


def test_folder_that_is_removed_during_the_listing_is_refused(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def remove_first(path: Path) -> object:
        if os.fspath(path).endswith("dog"):
            (pictures / "dog").rename(pictures / "renamed")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", remove_first)
    with pytest.raises(DataError) as caught:
        list_images(pictures)
    expected = f"data.path: {pictures / 'dog'} was removed or renamed while it was read; run `dvc repro` again"
    assert str(caught.value) == expected
