"""Scales grey images of 16 bits and of floats to 8 bits, by a rule that is the same for all images.

A rule that depends on the values of an image, such as its largest value, would change the brightness between images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Values = NDArray[np.float64]

# Tags of TIFF files.
BITS_PER_SAMPLE = 258
PHOTOMETRIC = 262
SAMPLE_FORMAT = 339
WHITE_IS_ZERO = 0  # value of PHOTOMETRIC; Pillow inverts only 8-bit images
SIGNED = 2  # value of SAMPLE_FORMAT

ADVICE = "convert it to unsigned integers of 8 or 16 bits"


class LevelsError(ValueError):
    """Values for which no rule says what is black and what is white. The message is the reason."""


def tiff_tags(image: Image.Image) -> Mapping[int, Any]:
    """Tags of an opened TIFF file; empty for other formats. Copies of the image do not have them."""
    return getattr(image, "tag_v2", {})


def to_eight_bit(image: Image.Image, tags: Mapping[int, Any]) -> Image.Image:
    """Scales 16-bit integers and floats to 8 bits, and returns other images unchanged.

    Integers from 0 to 65,535 are scaled to 0 to 255. A TIFF file may declare fewer bits, such as 12. Floats are scaled
    from 0 to 1.

    Raises:
        LevelsError: signed or 32-bit integers, floats outside 0 to 1, or values that are not finite.
    """
    if SIGNED in tags.get(SAMPLE_FORMAT, ()):
        raise LevelsError(f"signed integers, for which no value is white; {ADVICE}")
    if image.mode == "I":
        raise LevelsError(f"32-bit integers, for which no value is white; {ADVICE}")
    if image.mode.startswith("I;16"):
        return _eight_bit(_sixteen_bit_levels(image, tags), image.info.get("transparency"), image, tags)
    if image.mode == "F":
        return _eight_bit(_float_levels(image), None, image, tags)
    return image


def _sixteen_bit_levels(image: Image.Image, tags: Mapping[int, Any]) -> Values:
    bits = max(tags.get(BITS_PER_SAMPLE, (16,)))
    return np.asarray(image).astype(np.float64) / (2**bits - 1)


def _float_levels(image: Image.Image) -> Values:
    levels = np.asarray(image).astype(np.float64)
    if not np.isfinite(levels).all():
        raise LevelsError("it contains values that are not finite")
    rounded = np.rint(levels * 255.0)  # tolerates errors of rounding, as in 1.0000001
    if rounded.min() < 0 or rounded.max() > 255:
        value_range = f"values from {levels.min():.3g} to {levels.max():.3g}"
        raise LevelsError(f"{value_range}, but floats must be from 0 (black) to 1 (white); {ADVICE}")
    return levels


def _eight_bit(levels: Values, clear: int | None, image: Image.Image, tags: Mapping[int, Any]) -> Image.Image:
    """Levels from 0 to 1 as an 8-bit image. Pixels of the transparent value `clear` become white."""
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        levels = 1.0 - levels
    pixels = np.rint(np.clip(levels, 0.0, 1.0) * 255.0).astype(np.uint8)
    if clear is not None:
        pixels[np.asarray(image) == clear] = 255
    return Image.fromarray(pixels)
