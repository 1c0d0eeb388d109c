"""The sources of images, by their names in `data.source`; `reading` has the folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from halfstep.errors import DataError, one_line
from halfstep.params.schema import DataParams
from halfstep.prepare.images.decoding import ImageForm, Images, to_array
from halfstep.prepare.images.folder import list_images
from halfstep.prepare.images.processes import available_workers
from halfstep.prepare.images.reading import Folder
from halfstep.prepare.images.source import ImageBatch, Source, images_per_batch
from halfstep.prepare.images.splitting import TEST, TRAIN, UNASSIGNED
from halfstep.system.files import resolve_data_path

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Digits:
    """The UCI handwritten digits as included in scikit-learn: 1,797 images of 8 x 8 pixels."""

    form: ImageForm
    classes: tuple[str, ...] = tuple("0123456789")
    expected_images: int = 1797

    def batches(self) -> Iterator[ImageBatch]:
        """Yields every image once."""
        from sklearn.datasets import load_digits  # slow to import, and only needed here

        digits = load_digits()
        native = np.rint(digits.images * (255.0 / 16.0)).astype(np.uint8)  # the values are 0 to 16
        given = np.full(len(native), UNASSIGNED, dtype=np.int8)
        yield from _resized_batches(self.form, native, digits.target.astype(np.int32), given, "digits")


@dataclass(frozen=True)
class Cifar10:
    """CIFAR-10 by Keras, with its official test set. The validation images are taken from the training set."""

    form: ImageForm
    classes: tuple[str, ...] = _CIFAR10
    expected_images: int = 60_000

    def batches(self) -> Iterator[ImageBatch]:
        """Yields every image once.

        Raises:
            DataError: the archive is not in Keras's cache and cannot be downloaded.
        """
        from halfstep.tensorflow_import import keras  # takes seconds, and is only needed here

        try:
            parts = keras.datasets.cifar10.load_data()
        except Exception as error:  # of the network, the disk or the archive
            place = f"{os.environ.get('KERAS_HOME', '~/.keras')}/datasets/cifar-10-batches-py-target_archive"
            raise DataError(
                f"data.source = cifar10: {one_line(str(error), 200)}; download cifar-10-python.tar.gz elsewhere and "
                f"put it at {place}, or choose another data.source: digits, folder, synthetic"
            ) from error
        for (images, labels), split, name in zip(parts, (TRAIN, TEST), ("train", "test"), strict=True):
            given = np.full(len(images), split, dtype=np.int8)
            yield from _resized_batches(self.form, images, labels[:, 0].astype(np.int32), given, name)


@dataclass(frozen=True)
class Synthetic:
    """Noise plus a grating whose direction, period and colour depend on the class, in any number and size.

    For measurements of speed: an accuracy on these images has no meaning.
    """

    form: ImageForm
    expected_images: int
    class_count: int
    seed: int

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, which sort in the order of the labels."""
        digits = len(str(self.class_count - 1))
        return tuple(f"class_{number:0{digits}d}" for number in range(self.class_count))

    def batches(self) -> Iterator[ImageBatch]:
        """Yields every image once."""
        step = images_per_batch(self.form, most=1024)
        for start in range(0, self.expected_images, step):
            count = min(step, self.expected_images - start)
            labels = (np.arange(start, start + count) % self.class_count).astype(np.int32)
            noise = np.random.default_rng((self.seed, start)).integers(0, 256, (count, *self.form.shape), np.uint16)
            patterns = {label: self._pattern(label) for label in set(labels.tolist())}
            images = (noise + np.stack([patterns[label] for label in labels.tolist()])) >> 1
            names = tuple(f"synthetic[{number}]" for number in range(start, start + count))
            yield ImageBatch(images.astype(np.uint8), labels, np.full(count, UNASSIGNED, dtype=np.int8), names)

    def _pattern(self, label: int) -> NDArray[np.uint16]:
        side_px, _, channels = self.form.shape
        angle = np.pi * label / self.class_count
        across, down = np.meshgrid(np.arange(side_px), np.arange(side_px))
        waves = (across * np.cos(angle) + down * np.sin(angle)) * (2 + label % 3) / side_px
        phases = np.arange(channels) * (label + 1) / self.class_count
        levels: NDArray[np.float64] = 127.5 + 127.5 * np.sin(2 * np.pi * (waves[..., None] + phases))
        return np.rint(levels).astype(np.uint16)


def _resized_batches(
    form: ImageForm, images: Images, labels: NDArray[np.int32], given: NDArray[np.int8], name: str
) -> Iterator[ImageBatch]:
    step = images_per_batch(form, most=1024)
    for start in range(0, len(images), step):
        rows = slice(start, start + step)
        resized = np.stack([to_array(Image.fromarray(image), form) for image in images[rows]])
        names = tuple(f"{name}[{number}]" for number in range(start, start + len(resized)))
        yield ImageBatch(resized, labels[rows], given[rows], names)


def image_form(data: DataParams) -> ImageForm:
    """The form that the parameters ask for."""
    return ImageForm(side_px=data.image_size, grey=data.color == "grey", max_pixels=data.max_pixels)


def open_source(data: DataParams, form: ImageForm) -> Source:
    """Returns the source that the parameters name. A folder is listed; no image is read.

    Raises:
        DataError: the folder cannot be used.
    """
    return _SOURCES[data.source](data, form)


_SOURCES: Mapping[str, Callable[[DataParams, ImageForm], Source]] = {
    "digits": lambda _, form: Digits(form),
    "cifar10": lambda _, form: Cifar10(form),
    "folder": lambda data, form: Folder(form, list_images(resolve_data_path(data.path)), available_workers()),
    "synthetic": lambda data, form: Synthetic(form, data.synthetic_images, data.synthetic_classes, data.split_seed),
}
