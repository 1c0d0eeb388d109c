"""Lists the images of class folders, which may be in `train/`, `validation/` and `test/`, however these are spelled."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from halfstep.errors import DataError, printable
from halfstep.inputs.contents import leads_out
from halfstep.prepare.images.source import Rejection
from halfstep.prepare.images.splitting import TEST, TRAIN, UNASSIGNED, VALIDATION

# As public sets of images call them, without words such as `set`: `Training`, `seg_train`, `test_set`, `VALID_IMAGES`.
SPLIT_NAMES = {
    "train": TRAIN,
    "training": TRAIN,
    "trn": TRAIN,
    "validation": VALIDATION,
    "valid": VALIDATION,
    "val": VALIDATION,
    "dev": VALIDATION,
    "test": TEST,
    "testing": TEST,
    "tst": TEST,
    "eval": TEST,
    "evaluation": TEST,
}
_BESIDE_NAMES = re.compile(r"[\W_]+|seg|set|data|images?|imgs?|pictures?|split")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_LONGEST_LIST = 100  # characters
SYSTEM_FILES = frozenset({"thumbs.db", "desktop.ini"})  # Windows adds them to picture folders

Entry = os.DirEntry[str]


@dataclass(frozen=True)
class ImageFile:
    """A file that should be an image.

    Attributes:
        path: relative to the root.
        label: index of its class.
        given: the split whose folder contains it, or UNASSIGNED.
    """

    path: str
    label: int
    given: int

    @property
    def name(self) -> str:
        """The path in printable form."""
        return printable(self.path)


@dataclass(frozen=True)
class Listing:
    """Classes by name, files by path, the links that were refused, and what may not be meant."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[ImageFile, ...]
    rejected: tuple[Rejection, ...]
    note: str | None


def list_images(root: Path) -> Listing:
    """Lists the class folders of `root`, recursively. Hidden files and folders are ignored.

    Classes are sorted by name, as text ("10" comes before "2"). Links to folders, and links that lead out of `root`,
    are refused.

    Raises:
        DataError: the folder is missing or unreadable or changes while it is listed, there are too few classes, two
            classes have names that look the same, or a class has too few files.
    """
    try:
        if not root.is_dir():
            state = "is not a folder" if root.exists() else "does not exist"
            raise DataError(f"data.path: {root} {state}; set it to a folder that contains one folder for each class")
        return _listing(root)
    except OSError as error:
        raise unreadable(root, error) from error


def unreadable(root: Path, error: OSError) -> DataError:
    """The error to raise if something below `root` cannot be listed."""
    path = printable(str(error.filename or root))
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return DataError(f"data.path: {path} was removed or renamed while it was read; run `dvc repro` again")
    return DataError(
        f"data.path: {path} cannot be read ({error.strerror}); change its permissions, or move it out of the folder"
    )


def _listing(root: Path) -> Listing:
    folders = _split_folders(root)
    if not folders and (inner := _only_wraps(root)):
        folders = _split_folders(inner) or {UNASSIGNED: inner}
    folders = folders or {UNASSIGNED: root}
    class_folders = {split: _subfolders(folder) for split, folder in folders.items()}
    _refuse_lookalikes({entry.name for entries in class_folders.values() for entry in entries}, root)
    main = min(folders)  # the folder of the training images, or the root
    classes = [entry.name for entry in class_folders[main]]
    _check_classes(classes, class_folders, folders, main)
    labels = {name: label for label, name in enumerate(classes)}
    files: list[ImageFile] = []
    rejected: list[Rejection] = []
    counts: Counter[tuple[int, str]] = Counter()
    real_root = Path(os.path.realpath(root))
    for split, entries in class_folders.items():
        for entry in entries:
            for file, refusal in _walk(entry, real_root):
                path = os.path.relpath(file.path, root)
                counts[split, entry.name] += 1
                if refusal:
                    rejected.append(Rejection(printable(path), refusal))
                else:
                    files.append(ImageFile(path, labels[entry.name], split))
    _check_counts(counts, classes, folders)
    note = _same_folders_note(class_folders[main])
    return Listing(root, tuple(printable(name) for name in classes), tuple(files), tuple(rejected), note)


def _same_folders_note(classes: list[Entry]) -> str | None:
    """A line if the class folders look like the parts of a data set, or contain such parts."""
    inner = _parts(classes[0])
    if len(inner) < 2 or any(_parts(entry) != inner for entry in classes):
        return None
    outer, shown = (printable(", ".join(names), _LONGEST_LIST) for names in ([one.name for one in classes], inner))
    return (
        f"the classes are {outer}, and each of them contains the folders {shown}; if one of these lists is of folds or "
        "splits, put all images of a class into one folder, or into one each in train, validation and test"
    )


def _parts(folder: Entry) -> list[str]:
    """Names of the folders in a folder that has no images beside them."""
    return [] if _has_images(folder) else [one.name for one in _visible(folder) if one.is_dir(follow_symlinks=False)]


def _split_folders(root: Path) -> dict[int, Path]:
    """Folders of given splits, by split; empty if the class folders are directly in `root`.

    A class may have the name "train" too: it contains images, while a split contains class folders.
    """
    folders = _subfolders(root)
    named = [entry for entry in folders if split_of(entry.name) is not None]
    if len(named) < len(folders):
        named = [entry for entry in named if _holds_classes(entry)]
    for entry in named:
        _refuse_linked_folder(entry, root)
    by_split = {split_of(entry.name): _only_wraps(Path(entry.path)) or Path(entry.path) for entry in named}
    others = [entry.name for entry in folders if entry not in named]
    if named and (others or len(by_split) < len(named) or TRAIN not in by_split):
        names = ", ".join(printable(entry.name) for entry in folders)
        raise DataError(
            f"data.path: {root} contains the folders {names}; allowed are either class folders only, or train with "
            "optional validation (or val) and test, each with class folders: move the other folders away"
        )
    return {split: by_split[split] for split in (TRAIN, VALIDATION, TEST) if split in by_split}


def split_of(name: str) -> int | None:
    """The split that the name of a folder means; None if it means none."""
    return SPLIT_NAMES.get(_BESIDE_NAMES.sub("", name.lower()))


def _only_wraps(folder: Path) -> Path | None:
    """The only folder in a folder, if it holds all class folders or splits, as archives often unpack."""
    folders = _subfolders(folder)
    if len(folders) != 1 or folders[0].is_symlink() or _has_images(folder):
        return None
    inner = Path(folders[0].path)
    return inner if len(_subfolders(inner)) > 1 and not _has_images(inner) else None


def _holds_classes(folder: Entry) -> bool:
    return not _has_images(folder) and bool(_subfolders(folder))


def _has_images(folder: Path | Entry) -> bool:
    return any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in _visible(folder))


def _subfolders(folder: Path | Entry) -> list[Entry]:
    return [entry for entry in _visible(folder) if entry.is_dir()]


def _visible(folder: Path | Entry) -> list[Entry]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if entry.name[0] != "." and entry.name.lower() not in SYSTEM_FILES]
    return sorted(visible, key=lambda entry: entry.name)


def _walk(entry: Entry, root: Path) -> Iterator[tuple[Entry, str | None]]:
    """Yields files and links, each with the reason if it is refused. `root` must be a resolved path."""
    if entry.is_symlink():
        yield entry, _refuse_link(entry, root)
    elif entry.is_dir():
        for inner in _visible(entry):
            yield from _walk(inner, root)
    else:
        yield entry, None


def _refuse_link(entry: Entry, root: Path) -> str | None:
    target = Path(os.path.realpath(entry.path))
    if leads_out(entry.path, root):
        return "a link that leads out of the folder"
    if not target.exists():
        return "a link to nothing"
    return "a link to a folder" if stat.S_ISDIR(target.stat().st_mode) else None


def _check_classes(
    classes: list[str], class_folders: dict[int, list[Entry]], folders: dict[int, Path], main: int
) -> None:
    if len(classes) < 2:
        contents = f"only one class folder ({printable(classes[0])!r})" if classes else "no class folders"
        raise DataError(f"data.path: {folders[main]} contains {contents}; at least 2 are needed, one for each class")
    if {name.lower().removesuffix("s") for name in classes} == {"image", "mask"}:
        raise DataError(
            f"data.path: {folders[main]} contains images and masks, as for segmentation, and no class folders; set it "
            "to a folder with one folder for each class, or write a task of your own (docs/tasks.md)"
        )
    for split, entries in class_folders.items():
        if not entries and _has_images(folders[split]):
            raise DataError(
                f"data.path: {folders[split]} contains images and no class folders, which {folders[main]} has; sort "
                "them into class folders, or move the folder away"
            )
        for entry in entries:
            _refuse_linked_folder(entry, folders[split])
            if entry.name not in classes:
                raise DataError(
                    f"data.path: the folder {printable(entry.name)!r} in {folders[split]} is not a class of "
                    f"{folders[main]}; add training images, or move the folder away"
                )


def _refuse_lookalikes(names: Iterable[str], root: Path) -> None:
    """Refuses classes that no table could tell apart: the names differ only in spaces, or in how they are encoded."""
    seen: dict[str, str] = {}
    for name in sorted(names):
        shown = " ".join(unicodedata.normalize("NFC", printable(name)).split())
        if shown in seen:
            raise DataError(
                f"data.path: the class folders {seen[shown]!a} and {name!a} in {root} have names that look "
                "the same; rename one, or move all images into one of them"
            )
        seen[shown] = name


def _refuse_linked_folder(entry: Entry, above: Path) -> None:
    if entry.is_symlink():
        raise DataError(
            f"data.path: the folder {printable(entry.name)!r} in {above} is a link; links to folders are not followed: "
            "replace it with the folder itself"
        )


def _check_counts(counts: Counter[tuple[int, str]], classes: list[str], folders: dict[int, Path]) -> None:
    required = {min(folders): 1, TEST: 1} if TEST in folders else {min(folders): 2}
    for name in classes:
        for split, minimum in required.items():
            if counts[split, name] < minimum:
                purpose = "" if minimum == 1 else " (one for training and one for the test)"
                raise DataError(
                    f"data.path: class {printable(name)!r} has {counts[split, name]} images in {folders[split]} "
                    f"and needs at least {minimum}{purpose}: add images, or remove the class"
                )
