"""Decodes an image file to a uint8 array. A bad file gives a reason, not an exception."""

from __future__ import annotations

import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from halfstep.prepare.images.levels import LevelsError, tiff_tags, to_eight_bit

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")  # untrusted files never reach Pillow's other parsers
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # both byte orders, TIFF and BigTIFF
REDUCING_GAP = 2.0  # Pillow may first reduce by integer factors, to no less than twice the final side
WHITE = (255, 255, 255, 255)

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class ImageForm:
    """The form to which every image is converted.

    Attributes:
        side_px: height and width after resizing.
        grey: one channel instead of three.
        max_pixels: an image with a larger width x height, according to its header, is not decoded.
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
    """Decodes a file to `form.shape`, or returns a short reason why it cannot be used.

    Only the first frame is used. The EXIF orientation is applied, transparent pixels are blended with white, 16-bit
    integers and floats are scaled to 8 bits, and the image is resized to a square without cropping, whatever its
    aspect ratio. Of the metadata only the orientation is read.
    """
    try:
        if reason := _reason_not_to_open(path):
            return reason
        Image.MAX_IMAGE_PIXELS = form.max_pixels  # Pillow warns above this, and raises above twice as many
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
        return _unidentified(path)
    except LevelsError as error:
        return str(error)
    except OSError as error:
        return _reason_not_readable(error)
    except Exception as error:  # Pillow's parsers may raise anything on damaged files
        return _undecodable(error)


def to_array(image: Image.Image, form: ImageForm) -> Images:
    """Converts an opened image to uint8 `form.shape`.

    Raises:
        LevelsError: the image has values for which no rule says what is black and what is white.
    """
    tags = tiff_tags(image)
    draft_px = int(form.side_px * REDUCING_GAP)
    image.draft(None, (draft_px, draft_px))  # a large JPEG is decoded at a fraction of its size
    upright = ImageOps.exif_transpose(image)
    eight_bit = _opaque(to_eight_bit(upright, tags)).convert("L" if form.grey else "RGB")
    resized = eight_bit.resize((form.side_px,) * 2, Image.Resampling.BILINEAR, reducing_gap=REDUCING_GAP)
    return np.asarray(resized, dtype=np.uint8).reshape(form.shape)


def _reason_not_to_open(path: Path) -> str | None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
        return "not a regular file"
    return None if status.st_size else "empty file"


def _opaque(image: Image.Image) -> Image.Image:
    if image.mode == "LAB":
        return image.convert("RGB")  # Pillow converts it to no other mode
    if not image.has_transparency_data:
        return image
    blended = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", blended.size, WHITE), blended)


def _unidentified(path: Path) -> str:
    try:
        with path.open("rb") as file:
            start = file.read(100)
    except OSError as error:
        return _reason_not_readable(error)
    if start.startswith(b"version https://git-lfs"):
        return "a pointer of Git LFS in place of the image: run `git lfs pull`"
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "a web page in place of the image: download it again"
    if start.startswith(TIFF_STARTS):
        return "a TIFF file that Pillow cannot read: damaged, or of an unknown kind, such as 64-bit floats"
    return f"not an image of a known format ({', '.join(FORMATS)})"


def _reason_not_readable(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "removed or renamed during the run"
    # Pillow raises errors without a number for damaged files.
    return f"cannot be read: {error.strerror}" if error.errno else _undecodable(error)


def _undecodable(error: Exception) -> str:
    return f"cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}"
