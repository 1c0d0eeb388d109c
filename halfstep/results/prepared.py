"""`data/prepared/info.json`: what the prepared images are."""

from __future__ import annotations

from typing import ClassVar

from halfstep.results.artifact import Document
from halfstep.system import files

TEST_LABELS = "test_labels.npy"  # of images
TEST_CLASSES = "classes_of_test.npy"  # of other tasks whose targets are classes
PREPARED_INFO = files.PREPARED / "info.json"


class PreparedInfo(Document):
    """Description of the prepared images.

    Attributes:
        source: `data.source`.
        synthetic: whether the images are generated, so that an accuracy on them has no meaning.
        classes: class names, in the order of the labels.
        image_shape: `(height, width, channels)` of every image.
        images: number of images by split.
        class_counts: number of images by split, then by class.
        rejected: number of files that were left out; `rejected.csv` lists them.
    """

    VERSION: ClassVar[int] = 2

    source: str
    synthetic: bool
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    images: dict[str, int]
    class_counts: dict[str, dict[str, int]]
    rejected: int
