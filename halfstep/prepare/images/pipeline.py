"""Reads the images of a source once, splits them, and writes them packed to `data/prepared/`."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import REFUSALS, DataError
from halfstep.params.schema import DataParams
from halfstep.prepare.images.decoding import ImageForm
from halfstep.prepare.images.packing import ImageBuffer, write_images, write_labels
from halfstep.prepare.images.reading import Folder
from halfstep.prepare.images.reports import Conflict, rejections_csv, write_reports
from halfstep.prepare.images.source import Rejection, Source
from halfstep.prepare.images.sources import image_form, open_source
from halfstep.prepare.images.splitting import (
    SPLITS,
    Fractions,
    Indices,
    Pool,
    find_conflicts,
    find_duplicates,
    split,
)
from halfstep.results.prepared import PreparedInfo
from halfstep.system.files import WORK_DIR, original_root, require_free_space, write_manifest, write_text

EXAMPLES_IN_ERROR = 3
DARK = 64  # of 255: a quarter of the range


@dataclass(frozen=True)
class _Reading:
    pool: Pool
    rejected: list[Rejection]
    conflicts: list[Conflict]


def prepare(data: DataParams, directory: Path) -> PreparedInfo:
    """Reads the images of `data.source`, splits them, and writes them packed to `directory`.

    Writes `<split>_images.npy` (n, height, width, channels) uint8 and `<split>_labels.npy` (n,) int32 for train,
    validation and test, `info.json`, `class_counts.csv`, `rejected.csv`, `class_conflicts.csv`
    and, last, `manifest.json`. The same images and parameters give the same bytes. Nothing of an interrupted run stays.

    Raises:
        DataError: images are missing, too many are bad, they cannot be split, or the output cannot be written.
    """
    form = image_form(data)
    source = open_source(data, form)
    if isinstance(source, Folder) and source.listing.note:
        print(f"prepare: {source.listing.note}", flush=True)
    try:
        return _pack(source, form, data, directory)
    except OSError as error:  # unreadable images are only listed, so this error is about the output
        if error.errno not in REFUSALS:
            raise
        raise DataError(
            f"{directory}: cannot be written ({error.strerror or error}); free disk space, check the permissions, "
            "or lower data.image_size"
        ) from error


def _pack(source: Source, form: ImageForm, data: DataParams, directory: Path) -> PreparedInfo:
    directory.mkdir(parents=True, exist_ok=True)
    # twice: the temporary file and the packed arrays, and later the packed arrays and DVC's copy
    require_free_space(directory, 2 * source.expected_images * form.bytes_per_image, "lower data.image_size")
    with tempfile.TemporaryFile(dir=directory) as file:  # has no name: it disappears even if the process is killed
        buffer = ImageBuffer(file, form)
        reading = _read(source, buffer)
        _check_bad_share(reading.rejected, source.expected_images, data)
        parts = split(reading.pool, Fractions(data.validation_fraction, data.test_fraction), data.split_seed)
        with _removed_if_interrupted(directory):
            for name, indices in zip(SPLITS, parts, strict=True):
                write_images(directory / f"{name}_images.npy", buffer.chunks(indices), len(indices), form)
                write_labels(directory / f"{name}_labels.npy", reading.pool.labels[indices])
            info = _info(data, form, reading, parts)
            write_reports(info, reading.rejected, reading.conflicts, directory)
            write_manifest(directory)
    return info


@contextmanager
def _removed_if_interrupted(directory: Path) -> Iterator[None]:
    """Removes the outputs after Ctrl-C or SIGTERM: only all of them together are a result."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        for path in filter(Path.is_file, directory.iterdir()):
            path.unlink()
        raise


def _read(source: Source, buffer: ImageBuffer) -> _Reading:
    labels: list[NDArray[np.int32]] = []
    given: list[NDArray[np.int8]] = []
    names: list[str] = []
    rejected: list[Rejection] = []
    brightest: list[int] = []
    for batch in source.batches():
        buffer.append(batch.images)
        labels.append(batch.labels)
        given.append(batch.given)
        names.extend(batch.names)
        rejected.extend(batch.rejected)
        brightest.extend(batch.images.max(axis=(1, 2, 3)).tolist())
    _say_if_dark(brightest)
    pool = Pool(source.classes, np.concatenate(labels), np.concatenate(given), buffer.groups())
    duplicates = [
        Rejection(names[duplicate.index], f"duplicate of {names[duplicate.kept_index]}", is_bad=False)
        for duplicate in find_duplicates(pool)
    ]
    conflicts = [
        Conflict(number, names[index], pool.classes[pool.labels[index]])
        for number, indices in enumerate(find_conflicts(pool))
        for index in indices
    ]
    return _Reading(pool, sorted([*rejected, *duplicates], key=lambda rejection: rejection.path), conflicts)


def _say_if_dark(brightest: Sequence[int]) -> None:
    if brightest and (half_below := np.median(brightest)) < DARK:
        print(
            f"prepare: half of the images have no value above {half_below:.0f} of 255, almost black; files of 16 bits "
            "are divided by 65,535, so multiply values of fewer bits first, those of 12 bits by 16",
            flush=True,
        )


def _check_bad_share(rejected: Sequence[Rejection], total: int, data: DataParams) -> None:
    bad = [rejection for rejection in rejected if rejection.is_bad]
    if not bad or len(bad) / total <= data.max_bad_fraction:
        return
    list_path = original_root() / WORK_DIR / "rejected.csv"  # DVC removes the outputs of a failed stage
    write_text(list_path, rejections_csv(bad))
    examples = ", ".join(f"{rejection.path} ({rejection.reason})" for rejection in bad[:EXAMPLES_IN_ERROR])
    more = f" and {len(bad) - EXAMPLES_IN_ERROR} more" if len(bad) > EXAMPLES_IN_ERROR else ""
    sufficient = math.ceil(len(bad) / total * 1000) / 1000
    accept = f", or set data.max_bad_fraction to {sufficient:g} or more" if sufficient < 1 else ""
    raise DataError(
        f"data.path: {len(bad)} of {total} files cannot be used, more than data.max_bad_fraction = "
        f"{data.max_bad_fraction:g} allows: {examples}{more}; repair or remove them (all are listed in {list_path})"
        f"{accept}"
    )


def _info(data: DataParams, form: ImageForm, reading: _Reading, parts: tuple[Indices, ...]) -> PreparedInfo:
    classes = reading.pool.classes
    counts = {}
    for name, indices in zip(SPLITS, parts, strict=True):
        numbers = np.bincount(reading.pool.labels[indices], minlength=len(classes)).tolist()
        counts[name] = dict(zip(classes, numbers, strict=True))
    return PreparedInfo(
        source=data.source,
        synthetic=data.source == "synthetic",
        classes=classes,
        image_shape=form.shape,
        images={split: sum(by_class.values()) for split, by_class in counts.items()},
        class_counts=counts,
        rejected=len(reading.rejected),
    )
