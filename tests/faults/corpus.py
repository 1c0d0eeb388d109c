"""Every file that stages hand to each other, and what reads it. `python -m tests.faults.corpus` damages them all."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages import files
from stages.compare.loading import load_study
from stages.environment import fingerprint
from stages.errors import CorruptFileError, DataError
from stages.params import DataParams
from stages.prepare.pipeline import prepare
from stages.tracking.completion import test_accuracies as accuracies

PLACES = 16
VARIANT = "float32"
_TRAIN, _PROFILE = files.train_dir(VARIANT, 1), files.profile_dir(VARIANT)


@dataclass(frozen=True)
class Kept:
    """A file, and the code of a stage that reads it, the folder as a whole or the file alone."""

    path: Path
    read: Callable[[], object]


def write_results(root: Path) -> None:
    """A project's `data/`: real images, and results of known numbers."""
    from tests.compare.conftest import Project

    with contextlib.chdir(root):
        Project(root).write()
        shutil.rmtree(files.PREPARED)
        # 400 test images of four classes, as the results have them
        prepare(
            DataParams(source="synthetic", synthetic_images=1000, synthetic_classes=4, image_size=8, test_fraction=0.4),
            files.PREPARED,
        )
        (_TRAIN / "model.keras").write_bytes(np.random.default_rng(0).bytes(5000))
        files.trace_file(VARIANT).parent.mkdir(parents=True)
        files.trace_file(VARIANT).write_bytes(np.random.default_rng(1).bytes(5000))
        for directory in (_TRAIN, _PROFILE):
            files.write_manifest(directory)


def kept_files() -> list[Kept]:
    """What lies in the working folder, each with every way in which it is read."""
    readers: list[tuple[Path, Callable[[], object]]] = [
        (files.PREPARED, lambda: files.check_manifest(files.PREPARED)),
        (_TRAIN, _study),
        (_PROFILE, _study),
    ]
    found = [Kept(path, read) for folder, read in readers for path in sorted(folder.rglob("*")) if path.is_file()]
    alone = [
        (files.PREPARED / "test_labels.npy", _study),
        (files.PREPARED / "info.json", _study),
        (files.PREPARED / files.MANIFEST, _study),
        (_TRAIN / "metrics.json", lambda: accuracies(VARIANT, [1])),
        (_TRAIN / files.MANIFEST, lambda: accuracies(VARIANT, [1])),
        (_TRAIN / "model.keras", lambda: files.checked(_TRAIN, "model.keras")),
        (files.ENVIRONMENT_FILE, fingerprint.read),
        (files.ENVIRONMENT_FILE, _study),
    ]
    return found + [Kept(path, read) for path, read in alone]


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The file cut at every sixteenth, one bit flipped in every sixteenth, and pieces of it lost."""
    for part in range(PLACES):
        at = len(content) * part // PLACES
        yield f"cut to {at} bytes", content[:at]
        flipped = bytearray(content)
        flipped[at] ^= 1 << part % 8
        yield f"bit {part % 8} of byte {at} flipped", bytes(flipped)
    middle = len(content) // 2
    yield "its last byte lost", content[:-1]
    yield "a byte more", content + b"\n"
    yield "its second half written over with zeros", content[:middle] + bytes(len(content) - middle)
    yield "its first half lost", content[middle:]


def undetected(kept: Kept) -> Iterator[tuple[str, bool]]:
    """Damages a file in every way and reads it; yields each damage, and whether it was used without a word."""
    content = kept.path.read_bytes()
    folder = kept.path.parent if kept.path.name == files.MANIFEST else kept.path
    try:
        for name, damaged in damages(content):
            kept.path.write_bytes(damaged)
            yield f"{kept.path}: {name}", not _is_told(kept.read, str(folder))
    finally:
        kept.path.write_bytes(content)


def _study() -> object:
    return load_study(VARIANT, (VARIANT, "mixed_float16"), (1,), (1, 32))


def _is_told(read: Callable[[], object], name: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read()
    except (CorruptFileError, DataError) as error:
        return name in str(error) and "\n" not in str(error)
    return False


def main() -> None:
    """Damages every file in every way, and says what was found."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_results(Path(folder))
        for kept in kept_files():
            kept.read()
        outcomes = [outcome for kept in kept_files() for outcome in undetected(kept)]
        count = len({kept.path for kept in kept_files()})
    missed = [name for name, used in outcomes if used]
    print("\n".join(missed))
    print(f"{len(outcomes)} damages of {count} files, {len(outcomes) - len(missed)} found")


if __name__ == "__main__":
    main()
