"""What every source hands over: batches of equal images with what is known about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stages.prepare.decoding import ImageForm, Images

BATCH_BYTES = 4 << 20  # of pixels that are in memory at once, in every process


@dataclass(frozen=True)
class Rejection:
    """A picture that was left out, and why.

    Attributes:
        path: its name within its source; of a file, relative to `data.path`.
        is_bad: whether it counts against `data.max_bad_fraction`.
    """

    path: str
    reason: str
    is_bad: bool = True


@dataclass(frozen=True)
class Batch:
    """Images of one form, and what is known about them.

    Attributes:
        images: (n, height, width, channels) uint8.
        labels: (n,) int32, indices into the source's classes.
        given: (n,) int8, the split that the source puts an image in, or UNASSIGNED.
        names: n names, for messages.
        rejected: what was left out beside them.
    """

    images: Images
    labels: NDArray[np.int32]
    given: NDArray[np.int8]
    names: tuple[str, ...]
    rejected: tuple[Rejection, ...] = ()


class Source(Protocol):
    """A set of labelled images that is too large to be held."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in the order of the labels."""
        ...

    @property
    def expected_images(self) -> int:
        """How many images and rejections `batches` yields together."""
        ...

    def batches(self) -> Iterator[Batch]:
        """Yields every image once, always in the same order."""
        ...


def images_per_batch(form: ImageForm, most: int) -> int:
    """As many images as fit `BATCH_BYTES`, at least one."""
    return max(1, min(most, BATCH_BYTES // form.bytes_per_image))
