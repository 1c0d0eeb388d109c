"""The interface of image sources: batches of images with labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from halfstep.prepare.images.decoding import ImageForm, Images

BATCH_BYTES = 4 << 20  # limit for the pixels of a batch


@dataclass(frozen=True)
class Rejection:
    """An image that was left out, and the reason.

    Attributes:
        path: name within the source; for a file, the path relative to `data.path`.
        is_bad: whether it counts towards `data.max_bad_fraction`.
    """

    path: str
    reason: str
    is_bad: bool = True


@dataclass(frozen=True)
class ImageBatch:
    """Images of one shape, with their labels.

    Attributes:
        images: (n, height, width, channels) uint8.
        labels: (n,) int32, indices into the source's classes.
        given: (n,) int8, the split to which the source assigns each image, or UNASSIGNED.
        names: n names, for messages.
        rejected: images that were left out.
    """

    images: Images
    labels: NDArray[np.int32]
    given: NDArray[np.int8]
    names: tuple[str, ...]
    rejected: tuple[Rejection, ...] = ()


class Source(Protocol):
    """Labelled images that need not fit in memory."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the labels."""
        ...

    @property
    def expected_images(self) -> int:
        """Number of images and rejections that `batches` yields in total."""
        ...

    def batches(self) -> Iterator[ImageBatch]:
        """Yields every image once, always in the same order."""
        ...


def images_per_batch(form: ImageForm, most: int) -> int:
    """Number of images that fit in `BATCH_BYTES`: at least one, and not more than `most`."""
    return max(1, min(most, BATCH_BYTES // form.bytes_per_image))
