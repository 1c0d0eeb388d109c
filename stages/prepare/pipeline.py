"""From the parameters to `data/prepared/`: read everything once, divide it, write it packed."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stages.errors import REFUSALS, DataError
from stages.files import (
    SCRATCH,
    original_root,
    require_free_space,
    resolve_data_path,
    write_manifest,
    write_text,
)
from stages.params import DataParams
from stages.prepare.batches import Rejection, Source
from stages.prepare.decoding import ImageForm
from stages.prepare.folder import list_images
from stages.prepare.packing import Scratch, write_images, write_labels
from stages.prepare.processes import available_workers
from stages.prepare.reading import Folder
from stages.prepare.reports import Prepared, rejections_csv, write_reports
from stages.prepare.sources import Cifar10, Digits, Synthetic
from stages.prepare.splitting import SPLITS, Fractions, Indices, Pool, given_repeats, split

EXAMPLES_IN_ERROR = 3


@dataclass(frozen=True)
class _Reading:
    pool: Pool
    names: list[str]
    rejected: list[Rejection]


def prepare(data: DataParams, directory: Path) -> Prepared:
    """Reads the images of `data.source` and writes them packed and split to `directory`.

    Written are `<split>_images.npy` (n, height, width, channels) uint8 and `<split>_labels.npy` (n,) int32 for train,
    validation and test, `info.json`, `class_counts.csv`, `rejected.csv`, `sample_grid.png` and, last, `manifest.json`.
    The same images and parameters give the same bytes.

    Raises:
        DataError: the images are missing, cannot be divided into classes, splits or memory, or too many are bad.
    """
    form = ImageForm(side_px=data.image_size, grey=data.color == "grey", max_pixels=data.max_pixels)
    source = open_source(data, form)
    try:
        return _pack(source, form, data, directory)
    except OSError as error:  # pictures that cannot be read are listed: this is the place that is written to
        if error.errno not in REFUSALS:
            raise
        raise DataError(
            f"{directory}: cannot be written ({error.strerror or error}); make room there, look at its permissions, or "
            "lower data.image_size"
        ) from error


def _pack(source: Source, form: ImageForm, data: DataParams, directory: Path) -> Prepared:
    directory.mkdir(parents=True, exist_ok=True)
    # twice: the scratch file beside the packed arrays, and after it DVC's copy of them
    require_free_space(directory, 2 * source.expected_images * form.bytes_per_image, "lower data.image_size")
    with tempfile.TemporaryFile(dir=directory) as file:  # without a name: it is gone even if the process is killed
        scratch = Scratch(file, form)
        reading = _read(source, scratch)
        _check_bad_share(reading.rejected, source.expected_images, data)
        sides = split(reading.pool, Fractions(data.validation_fraction, data.test_fraction), data.split_seed)
        for name, indices in zip(SPLITS, sides, strict=True):
            write_images(directory / f"{name}_images.npy", scratch.chunks(indices), len(indices), form)
            write_labels(directory / f"{name}_labels.npy", reading.pool.labels[indices])
    prepared = _summary(data, form, reading, sides)
    write_reports(prepared, directory)
    write_manifest(directory)
    return prepared


def open_source(data: DataParams, form: ImageForm) -> Source:
    """The source that the parameters name; a folder is listed, nothing is read yet.

    Raises:
        DataError: the folder cannot be used.
    """
    if data.source == "folder":
        return Folder(form, list_images(resolve_data_path(data.path)), available_workers())
    if data.source == "cifar10":
        return Cifar10(form)
    if data.source == "synthetic":
        return Synthetic(form, data.synthetic_images, data.synthetic_classes, data.split_seed)
    return Digits(form)


def _read(source: Source, scratch: Scratch) -> _Reading:
    labels: list[NDArray[np.int32]] = []
    given: list[NDArray[np.int8]] = []
    names: list[str] = []
    rejected: list[Rejection] = []
    for batch in source.batches():
        scratch.append(batch.images)
        labels.append(batch.labels)
        given.append(batch.given)
        names.extend(batch.names)
        rejected.extend(batch.rejected)
    pool = Pool(source.classes, np.concatenate(labels), np.concatenate(given), scratch.groups())
    repeats = [
        Rejection(names[repeat.index], f"duplicate of {names[repeat.kept_index]}", is_bad=False)
        for repeat in given_repeats(pool)
    ]
    return _Reading(pool, names, sorted([*rejected, *repeats], key=lambda rejection: rejection.path))


def _check_bad_share(rejected: Sequence[Rejection], total: int, data: DataParams) -> None:
    bad = [rejection for rejection in rejected if rejection.is_bad]
    if not bad or len(bad) / total <= data.max_bad_fraction:
        return
    listed = original_root() / SCRATCH / "rejected.csv"  # DVC removes the outputs of a failed stage
    write_text(listed, rejections_csv(bad))
    examples = ", ".join(f"{rejection.path} ({rejection.reason})" for rejection in bad[:EXAMPLES_IN_ERROR])
    more = f" and {len(bad) - EXAMPLES_IN_ERROR} more" if len(bad) > EXAMPLES_IN_ERROR else ""
    enough = math.ceil(len(bad) / total * 1000) / 1000
    raise DataError(
        f"data.path: {len(bad)} of {total} files cannot be used, more than data.max_bad_fraction = "
        f"{data.max_bad_fraction:g} allows: {examples}{more}; repair or remove them (all are listed in {listed}), "
        f"or set data.max_bad_fraction to {enough:g} or more"
    )


def _summary(data: DataParams, form: ImageForm, reading: _Reading, sides: tuple[Indices, ...]) -> Prepared:
    classes = reading.pool.classes
    counts = {}
    for name, indices in zip(SPLITS, sides, strict=True):
        numbers = np.bincount(reading.pool.labels[indices], minlength=len(classes)).tolist()
        counts[name] = dict(zip(classes, numbers, strict=True))
    return Prepared(data.source, data.source == "synthetic", classes, form.shape, counts, tuple(reading.rejected))
