"""The images of a folder, in the order of their paths."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import Progress

from halfstep.prepare.images.decoding import ImageForm, Images
from halfstep.prepare.images.folder import ImageFile, Listing
from halfstep.prepare.images.processes import decode_files, decode_in_processes
from halfstep.prepare.images.source import ImageBatch, Rejection, images_per_batch

FILES_PER_BATCH = 32
MIN_BATCHES_FOR_WORKERS = 4  # for fewer, starting processes takes longer than decoding


@dataclass(frozen=True)
class Folder:
    """The listed files of a folder.

    Attributes:
        workers: number of decoding processes; with 1, this process decodes.
    """

    form: ImageForm
    listing: Listing
    workers: int

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the labels."""
        return self.listing.classes

    @property
    def expected_images(self) -> int:
        """Number of files, usable or not."""
        return len(self.listing.files) + len(self.listing.rejected)

    def batches(self) -> Iterator[ImageBatch]:
        """Yields every image that can be decoded. The first batch holds the rejections of the listing.

        Raises:
            DataError: a decoding process died.
        """
        size = images_per_batch(self.form, most=FILES_PER_BATCH)
        groups = [self.listing.files[start : start + size] for start in range(0, len(self.listing.files), size)]
        paths = ([self.listing.root / file.path for file in group] for group in groups)
        decode = functools.partial(decode_files, form=self.form)
        parallel = self.workers > 1 and len(groups) >= MIN_BATCHES_FOR_WORKERS
        decoded = decode_in_processes(decode, paths, self.workers) if parallel else map(decode, paths)
        yield _batch((), (), self.form, self.listing.rejected)
        with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("decoding", total=len(self.listing.files))
            for group, results in zip(groups, decoded, strict=True):
                progress.advance(task, len(group))
                yield _batch(group, results, self.form)


def _batch(
    files: Sequence[ImageFile], results: Sequence[Images | str], form: ImageForm, rejected: tuple[Rejection, ...] = ()
) -> ImageBatch:
    good = [(file, result) for file, result in zip(files, results, strict=True) if not isinstance(result, str)]
    bad = [Rejection(file.name, result) for file, result in zip(files, results, strict=True) if isinstance(result, str)]
    return ImageBatch(
        images=np.stack([image for _, image in good]) if good else np.empty((0, *form.shape), dtype=np.uint8),
        labels=np.array([file.label for file, _ in good], dtype=np.int32),
        given=np.array([file.given for file, _ in good], dtype=np.int8),
        names=tuple(file.name for file, _ in good),
        rejected=(*rejected, *bad),
    )
