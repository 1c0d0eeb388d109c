"""One image file becomes one uint8 array, or a reason why not. Nothing here raises for a bad file."""

from __future__ import annotations

import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")  # the rest of Pillow's parsers stays closed to strangers' files
RESIZING_GAP = 2.0  # Pillow may shrink by whole steps down to twice the final side, then filters
WHITE = (255, 255, 255, 255)

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class ImageForm:
    """What every image is brought to.

    Attributes:
        side_px: height and width after resizing.
        grey: one channel instead of three.
        max_pixels: largest width by height that is decoded; counted from the header.
    """

    side_px: int
    grey: bool
    max_pixels: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return (self.side_px, self.side_px, 1 if self.grey else 3)

    @property
    def bytes_per_image(self) -> int:
        """Bytes of one uint8 image."""
        return self.side_px * self.side_px * self.shape[2]


def decode_file(path: Path, form: ImageForm) -> Images | str:
    """Decodes a file to `form.shape`, or says in a few words why it cannot be used.

    The first frame counts, the EXIF orientation is applied, transparency is laid over white, and the picture is
    squashed to the square: nothing is cut off, whatever its proportions. 16-bit values are scaled to 8 bits.
    """
    try:
        refusal = _refuse_unread(path)
        if refusal:
            return refusal
        Image.MAX_IMAGE_PIXELS = form.max_pixels  # Pillow warns above it and refuses from twice as many on
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                width_px, height_px = image.size
                if width_px * height_px > form.max_pixels:
                    return f"{width_px} x {height_px} pixels, more than data.max_pixels = {form.max_pixels} allows"
                return to_array(image, form)
    except Image.DecompressionBombError:
        return f"more pixels than data.max_pixels = {form.max_pixels} allows"
    except UnidentifiedImageError:
        return f"not an image of a known format ({', '.join(FORMATS)})"
    except PermissionError:
        return "no permission to read it"
    except Exception as error:  # Pillow's parsers raise whatever their format's structure library raises
        return f"cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}"


def to_array(image: Image.Image, form: ImageForm) -> Images:
    """Brings an opened image to `form.shape`, uint8."""
    wanted_px = int(form.side_px * RESIZING_GAP)
    image.draft(None, (wanted_px, wanted_px))  # lets a JPEG of a camera be decoded at a fraction of its size
    upright = ImageOps.exif_transpose(image)
    eight_bit = _to_eight_bit(upright).convert("L" if form.grey else "RGB")
    resized = eight_bit.resize((form.side_px,) * 2, Image.Resampling.BILINEAR, reducing_gap=RESIZING_GAP)
    return np.asarray(resized, dtype=np.uint8).reshape(form.shape)


def _refuse_unread(path: Path) -> str | None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
        return "not a regular file"
    return None if status.st_size else "empty file"


def _to_eight_bit(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":  # Pillow keeps 16-bit files in both modes
        return Image.fromarray(_scaled(np.asarray(image), white=65535.0))
    if image.mode == "F":
        values = np.asarray(image)
        return Image.fromarray(_scaled(values, white=1.0 if values.max() <= 1.0 else 255.0))
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", opaque.size, WHITE), opaque)
    return image


def _scaled(values: NDArray[np.generic], white: float) -> Images:
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError("it holds values that are not finite")
    return np.rint(np.clip(numbers / white, 0.0, 1.0) * 255.0).astype(np.uint8)
