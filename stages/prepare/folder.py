"""A folder a class, below optional `train/`, `validation/` (or `val/`) and `test/`: which files are meant, in order."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stages.errors import DataError
from stages.prepare.batches import Rejection
from stages.prepare.splitting import TEST, TRAIN, UNASSIGNED, VALIDATION

SPLIT_FOLDERS = {"train": TRAIN, "validation": VALIDATION, "val": VALIDATION, "test": TEST}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
LITTER = frozenset({"thumbs.db", "desktop.ini"})  # what Windows leaves beside pictures

Entry = os.DirEntry[str]


@dataclass(frozen=True)
class ImageFile:
    """A file that should be an image.

    Attributes:
        path: relative to the root.
        label: index of its class.
        given: the split whose folder it lies in, or UNASSIGNED.
    """

    path: str
    label: int
    given: int

    @property
    def name(self) -> str:
        """The path as it may be shown."""
        return printable(self.path)


@dataclass(frozen=True)
class Listing:
    """What lies below a root: classes by name, files by path, and what was refused without being opened."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[ImageFile, ...]
    rejected: tuple[Rejection, ...]


def list_images(root: Path) -> Listing:
    """Lists the class folders below `root`, each walked to its depths. Hidden files and folders are not seen.

    Classes are sorted by name, character by character ("10" comes before "2"). Links that lead out of `root`, and
    links to folders, are refused.

    Raises:
        DataError: the folder is missing, unreadable, or has too few classes, or a class too few files.
    """
    try:
        if not root.is_dir():
            state = "is not a folder" if root.exists() else "does not exist"
            raise DataError(f"data.path: {root} {state}; give the folder that holds one sub-folder for each class")
        return _listing(root)
    except OSError as error:
        raise DataError(
            f"data.path: {printable(str(error.filename or root))} cannot be read ({error.strerror}); "
            "give yourself permission to read it, or move it out of the folder"
        ) from error


def printable(name: str) -> str:
    """`name` on one line of valid UTF-8: file systems allow line breaks and any bytes."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _listing(root: Path) -> Listing:
    folders = _split_folders(root) or {UNASSIGNED: root}
    class_folders = {side: [entry for entry in _visible(folder) if entry.is_dir()] for side, folder in folders.items()}
    main = min(folders)  # the folder of the training images, or the root
    classes = [entry.name for entry in class_folders[main]]
    _check_classes(classes, class_folders, folders, main)
    labels = {name: label for label, name in enumerate(classes)}
    files: list[ImageFile] = []
    rejected: list[Rejection] = []
    counts: Counter[tuple[int, str]] = Counter()
    real_root = Path(os.path.realpath(root))
    for side, entries in class_folders.items():
        for entry in entries:
            for found, refusal in _walk(entry, real_root):
                path = os.path.relpath(found.path, root)
                counts[side, entry.name] += 1
                if refusal:
                    rejected.append(Rejection(printable(path), refusal))
                else:
                    files.append(ImageFile(path, labels[entry.name], side))
    _check_counts(counts, classes, folders)
    return Listing(root, tuple(printable(name) for name in classes), tuple(files), tuple(rejected))


def _split_folders(root: Path) -> dict[int, Path]:
    """The folders of given splits, keyed by split; empty where the classes lie directly below `root`.

    A class may be called "train" too: it holds pictures, where a split holds class folders.
    """
    folders = [entry for entry in _visible(root) if entry.is_dir()]
    named = [entry for entry in folders if entry.name.lower() in SPLIT_FOLDERS]
    if len(named) < len(folders):
        named = [entry for entry in named if _holds_classes(entry)]
    for entry in named:
        _refuse_linked_folder(entry, root)
    sides = {SPLIT_FOLDERS[entry.name.lower()]: Path(entry.path) for entry in named}
    others = [entry.name for entry in folders if entry not in named]
    if named and (others or len(sides) < len(named) or TRAIN not in sides):
        found = ", ".join(printable(entry.name) for entry in folders)
        raise DataError(
            f"data.path: {root} holds the folders {found}; allowed are train with any of validation (or val) and test, "
            "class folders in each, or class folders alone: move the others away"
        )
    return {side: sides[side] for side in sorted(sides)}


def _holds_classes(folder: Entry) -> bool:
    entries = _visible(folder)
    has_pictures = any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in entries)
    return not has_pictures and any(entry.is_dir() for entry in entries)


def _visible(folder: Path | Entry) -> list[Entry]:
    with os.scandir(folder) as entries:
        seen = [entry for entry in entries if not entry.name.startswith(".") and entry.name.lower() not in LITTER]
    return sorted(seen, key=lambda entry: entry.name)


def _walk(entry: Entry, root: Path) -> Iterator[tuple[Entry, str | None]]:
    """Yields what lies below, with None or with the reason why it is refused; `root` is free of links."""
    if entry.is_symlink():
        yield entry, _refuse_link(entry, root)
    elif entry.is_dir():
        for inner in _visible(entry):
            yield from _walk(inner, root)
    else:
        yield entry, None


def _refuse_link(entry: Entry, root: Path) -> str | None:
    target = Path(os.path.realpath(entry.path))
    if not target.is_relative_to(root):
        return "a link that leads out of the folder"
    if not target.exists():
        return "a link to nothing"
    return "a link to a folder" if stat.S_ISDIR(target.stat().st_mode) else None


def _check_classes(
    classes: list[str], class_folders: dict[int, list[Entry]], folders: dict[int, Path], main: int
) -> None:
    if len(classes) < 2:
        found = f"one class folder alone ({printable(classes[0])!r})" if classes else "no class folders"
        raise DataError(f"data.path: {folders[main]} holds {found}; give at least 2, a sub-folder for each class")
    for side, entries in class_folders.items():
        for entry in entries:
            _refuse_linked_folder(entry, folders[side])
            if entry.name not in classes:
                raise DataError(
                    f"data.path: the folder {printable(entry.name)!r} in {folders[side]} is no class of "
                    f"{folders[main]}; add training images, or move it away"
                )


def _refuse_linked_folder(entry: Entry, above: Path) -> None:
    if entry.is_symlink():
        raise DataError(
            f"data.path: the folder {printable(entry.name)!r} in {above} is a link; links to folders are not followed: "
            "put the folder itself there"
        )


def _check_counts(counts: Counter[tuple[int, str]], classes: list[str], folders: dict[int, Path]) -> None:
    required = {min(folders): 1, TEST: 1} if TEST in folders else {min(folders): 2}
    for name in classes:
        for side, least in required.items():
            if counts[side, name] < least:
                purpose = "" if least == 1 else " (one to train on and one for the test)"
                raise DataError(
                    f"data.path: class {printable(name)!r} has {counts[side, name]} images in {folders[side]}, "
                    f"and needs at least {least}{purpose}: add images, or remove the class"
                )
