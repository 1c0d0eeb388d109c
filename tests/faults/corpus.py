"""All files that one stage writes and another reads."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halfstep.compare.study import load_study
from halfstep.errors import CorruptFileError, DataError
from halfstep.machine import fingerprint
from halfstep.params.schema import DataParams
from halfstep.prepare.images.pipeline import prepare
from halfstep.results.task import TASK_INFO, images_task
from halfstep.results.training import finished_scores
from halfstep.system import files

POSITIONS = 16
VARIANT = "float32"
_TRAIN, _PROFILE = files.train_dir(VARIANT, 1), files.profile_dir(VARIANT)


@dataclass(frozen=True)
class Reader:
    """A file, and the code of a stage that reads it, either alone or with the rest of its directory."""

    path: Path
    read: Callable[[], object]


def write_results(root: Path) -> None:
    """Writes a `data/` directory with prepared images and results of known values."""
    from tests.small_study import SmallStudy

    with contextlib.chdir(root):
        SmallStudy(root).write()
        shutil.rmtree(files.PREPARED)
        # 1,200 test images of four classes, as in the results
        prepare(
            DataParams(source="synthetic", synthetic_images=2400, synthetic_classes=4, image_size=8, test_fraction=0.5),
            files.PREPARED,
        )
        images_task(1200).write(TASK_INFO)
        (_TRAIN / "model.keras").write_bytes(np.random.default_rng(0).bytes(5000))
        files.trace_file(VARIANT).write_bytes(np.random.default_rng(1).bytes(5000))
        for directory in (files.PREPARED, _TRAIN, _PROFILE):
            files.write_manifest(directory)


def readers() -> list[Reader]:
    """All files in the working directory, each with every way in which a stage reads it."""
    directories: list[tuple[Path, Callable[[], object]]] = [
        (files.PREPARED, lambda: files.verify_manifest(files.PREPARED)),
        (_TRAIN, _study),
        (_PROFILE, _study),
    ]
    directory_readers = [
        Reader(path, read) for root, read in directories for path in sorted(root.rglob("*")) if path.is_file()
    ]
    single = [
        (files.PREPARED / "test_labels.npy", _study),
        (files.PREPARED / "info.json", _study),
        (TASK_INFO, _study),
        (files.PREPARED / files.MANIFEST, _study),
        (_TRAIN / "metrics.json", lambda: finished_scores(VARIANT, [1])),
        (_TRAIN / files.MANIFEST, lambda: finished_scores(VARIANT, [1])),
        (_TRAIN / "model.keras", lambda: files.verified(_TRAIN, "model.keras")),
        (files.ENVIRONMENT_FILE, fingerprint.read),
        (files.ENVIRONMENT_FILE, _study),
    ]
    return directory_readers + [Reader(path, read) for path, read in single]


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields damaged versions of a file: truncated and with a flipped bit at 16 positions, and with lost parts."""
    for part in range(POSITIONS):
        at = len(content) * part // POSITIONS
        yield f"truncated to {at} bytes", content[:at]
        flipped = bytearray(content)
        flipped[at] ^= 1 << part % 8
        yield f"bit {part % 8} of byte {at} flipped", bytes(flipped)
    middle = len(content) // 2
    yield "last byte lost", content[:-1]
    yield "one byte added", content + b"\n"
    yield "second half overwritten with zeros", content[:middle] + bytes(len(content) - middle)
    yield "first half lost", content[middle:]


def damage_and_read(reader: Reader) -> Iterator[tuple[str, bool]]:
    """Damages a file in every way and reads it. Yields each damage, and whether it was not detected."""
    content = reader.path.read_bytes()
    named = reader.path.parent if reader.path.name == files.MANIFEST else reader.path
    try:
        for name, damaged in damages(content):
            reader.path.write_bytes(damaged)
            yield f"{reader.path}: {name}", not _is_detected(reader.read, str(named))
    finally:
        reader.path.write_bytes(content)


def _study() -> object:
    return load_study(VARIANT, (VARIANT, "mixed_float16"), (1,), (1, 32))


def _is_detected(read: Callable[[], object], name: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read()
    except (CorruptFileError, DataError) as error:
        return name in str(error) and "\n" not in str(error)
    return False
