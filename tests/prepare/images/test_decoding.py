"""Decoding of good and bad files, which Pillow creates."""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halfstep.prepare.images.decoding import ImageForm, decode_file

FORM = ImageForm(side_px=8, grey=False, max_pixels=10_000)
ORANGE = (240, 120, 30)
ORIENTATION_TAG = 0x0112


def orange(mode: str, size: tuple[int, int] = (20, 10)) -> Image.Image:
    return Image.new("RGB", size, ORANGE).convert(mode, palette=Image.Palette.ADAPTIVE)


def grey_of(value: float, dtype: str) -> Image.Image:
    return Image.fromarray(np.full((10, 20), value, dtype=dtype))


PLAIN = {
    "rgb.png": (orange("RGB"), ORANGE),
    "rgb.bmp": (orange("RGB"), ORANGE),
    "rgb.jpg": (orange("RGB"), ORANGE),
    "rgb.webp": (orange("RGB"), ORANGE),
    "palette.gif": (orange("P"), ORANGE),
    "cmyk.jpg": (orange("CMYK"), ORANGE),
    "grey.png": (Image.new("L", (20, 10), 77), (77, 77, 77)),
    "sixteen_bits.png": (grey_of(0x8080, "uint16"), (128, 128, 128)),
    "sixteen_bits.tiff": (grey_of(0xFFFF, "uint16"), (255, 255, 255)),
    "floats.tiff": (grey_of(0.5, "float32"), (128, 128, 128)),
    "lab.tiff": (Image.new("LAB", (20, 10), (128, 128, 128)), (119, 119, 119)),
    "opaque.png": (Image.new("RGBA", (20, 10), (*ORANGE, 255)), ORANGE),
    "half.png": (Image.new("RGBA", (20, 10), (0, 0, 0, 127)), (128, 128, 128)),
    "clear.png": (Image.new("RGBA", (20, 10), (0, 0, 0, 0)), (255, 255, 255)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_every_mode_is_converted_to_rgb(name: str, tmp_path: Path) -> None:
    image, expected = PLAIN[name]
    image.save(tmp_path / name)
    pixels = decode_file(tmp_path / name, FORM)
    assert not isinstance(pixels, str), pixels
    assert pixels.shape == (8, 8, 3)
    assert pixels.dtype == np.uint8
    np.testing.assert_allclose(pixels, np.broadcast_to(expected, (8, 8, 3)), atol=4)


@pytest.mark.parametrize("name", PLAIN)
def test_every_mode_is_converted_to_grey(name: str, tmp_path: Path) -> None:
    image, (red, green, blue) = PLAIN[name]
    image.save(tmp_path / name)
    pixels = decode_file(tmp_path / name, replace(FORM, grey=True))
    assert not isinstance(pixels, str), pixels
    assert pixels.shape == (8, 8, 1)
    np.testing.assert_allclose(pixels, 0.299 * red + 0.587 * green + 0.114 * blue, atol=4)


def tiff(sample_format: int, values: np.ndarray, order: str = "<", *, white_is_zero: bool = False) -> bytes:
    """A TIFF file with any kind of samples, of which Pillow writes few."""
    rows, columns, samples = (*values.shape, 1)[:3]
    pixels = values.astype(values.dtype.newbyteorder(order)).tobytes()  # type: ignore[arg-type]
    entries = 10
    bits_at = 8 + 2 + 12 * entries + 4
    strip_at = bits_at + 2 * 2 * samples
    photometric = 2 if samples == 3 else 1 - white_is_zero

    def shorts(tag: int, value: int, at: int) -> bytes:
        repeated = struct.pack(f"{order}I", at) if samples > 1 else struct.pack(f"{order}HH", value, 0)
        return struct.pack(f"{order}HHI", tag, 3, samples) + repeated

    def number(tag: int, value: int) -> bytes:
        return struct.pack(f"{order}HHII", tag, 4, 1, value)

    bits = values.dtype.itemsize * 8
    directory = [
        number(256, columns), number(257, rows), shorts(258, bits, bits_at), number(259, 1), number(262, photometric),
        number(273, strip_at), number(277, samples), number(278, rows), number(279, len(pixels)),
        shorts(339, sample_format, bits_at + 2 * samples),
    ]  # fmt: skip
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, entries)
    lists = struct.pack(f"{order}{samples}H", *[bits] * samples) + struct.pack(
        f"{order}{samples}H", *[sample_format] * samples
    )
    return head + b"".join(directory) + bytes(4) + lists + pixels


def samples(dtype: str, value: float, shape: tuple[int, ...] = (10, 20)) -> np.ndarray:
    return np.full(shape, value, dtype=dtype)


UNSIGNED, SIGNED, FLOAT = 1, 2, 3
SCALED = {
    "16 bits": (tiff(UNSIGNED, samples("u2", 0x8080)), 128),
    "16 bits, the other byte order": (tiff(UNSIGNED, samples("u2", 0x8080), ">"), 128),
    "16 bits, white is zero": (tiff(UNSIGNED, samples("u2", 0x4040), white_is_zero=True), 191),
    "16 bits in colour": (tiff(UNSIGNED, samples("u2", 0x8080, (10, 20, 3))), 128),
    "16 bits, of which the image uses 12": (tiff(UNSIGNED, samples("u2", 0x0FFF)), 16),
    "floats": (tiff(FLOAT, samples("f4", 0.5)), 128),
    "floats, white is zero": (tiff(FLOAT, samples("f4", 0.25), white_is_zero=True), 191),
    "floats of an error of rounding": (tiff(FLOAT, samples("f4", -1e-7)), 0),
}


@pytest.mark.parametrize("name", SCALED)
def test_values_are_scaled_by_a_fixed_rule(name: str, tmp_path: Path) -> None:
    content, expected = SCALED[name]
    (tmp_path / "x.tiff").write_bytes(content)
    pixels = decode_file(tmp_path / "x.tiff", FORM)
    assert not isinstance(pixels, str), pixels
    assert np.all(pixels == expected), pixels[0, 0]


_CONVERT = "; convert it to unsigned integers of 8 or 16 bits"
_NO_INTEGERS = f"32-bit integers, for which no value is white{_CONVERT}"
_NO_SIGN = f"signed integers, for which no value is white{_CONVERT}"
_OTHER_KIND = "a TIFF file that Pillow cannot read: damaged, or of an unknown kind, such as 64-bit floats"
_RANGE = f"but floats must be from 0 (black) to 1 (white){_CONVERT}"
WITHOUT_WHITE = {
    "unsigned 32 bits": (tiff(UNSIGNED, samples("u4", 0x8080)), _NO_INTEGERS),
    "unsigned 32 bits, the other byte order": (tiff(UNSIGNED, samples("u4", 1), ">"), _OTHER_KIND),
    "signed 32 bits": (tiff(SIGNED, samples("i4", 0x8080)), _NO_SIGN),
    "floats up to 255": (tiff(FLOAT, samples("f4", 255)), f"values from 255 to 255, {_RANGE}"),
    "floats slightly above 1": (tiff(FLOAT, samples("f4", 1.02)), f"values from 1.02 to 1.02, {_RANGE}"),
    "negative floats": (tiff(FLOAT, samples("f4", -0.5)), f"values from -0.5 to -0.5, {_RANGE}"),
    "infinite floats": (tiff(FLOAT, samples("f4", np.inf)), "it contains values that are not finite"),
    "floats of 64 bits": (tiff(FLOAT, samples("f8", 0.5)), _OTHER_KIND),
    "floats in colour": (tiff(FLOAT, samples("f4", 0.5, (10, 20, 3))), _OTHER_KIND),
}


@pytest.mark.parametrize("name", WITHOUT_WHITE)
def test_values_without_a_rule_are_refused(name: str, tmp_path: Path) -> None:
    content, expected = WITHOUT_WHITE[name]
    (tmp_path / "x.tiff").write_bytes(content)
    assert decode_file(tmp_path / "x.tiff", FORM) == expected


def test_declared_12_bits_are_scaled_from_12_bits(tmp_path: Path) -> None:
    content = bytearray(tiff(UNSIGNED, samples("u2", 0xFFFF)))
    content[content.index(struct.pack("<HHIHH", 258, 3, 1, 16, 0)) + 8] = 12  # two values in three bytes
    (tmp_path / "x.tiff").write_bytes(content)
    assert np.all(decode_file(tmp_path / "x.tiff", FORM) == 255)


def png(
    depth: int, colour_type: int, pixel: bytes, clear: bytes = b"", *, width_px: int = 20, height_px: int = 10
) -> bytes:
    """A PNG file of 20 x 10 equal pixels, whatever its header says, and optionally the value that means transparent."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width_px, height_px, depth, colour_type, 0, 0, 0))
    transparency = chunk(b"tRNS", clear) if clear else b""
    rows = chunk(b"IDAT", zlib.compress((b"\0" + pixel * 20) * 10))
    return b"\x89PNG\r\n\x1a\n" + header + transparency + rows + chunk(b"IEND", b"")


GREY16, COLOUR16 = b"\x80\x81", b"\x80\x81\x40\x41\x20\x21"
SIXTEEN_BIT_PNG = {
    "grey": (png(16, 0, GREY16), (128, 128, 128)),
    "grey, transparent": (png(16, 0, GREY16, GREY16), (255, 255, 255)),
    "colour": (png(16, 2, COLOUR16), (128, 64, 32)),
    "colour with alpha 0": (png(16, 6, COLOUR16 + bytes(2)), (255, 255, 255)),
    "colour with alpha 1": (png(16, 6, COLOUR16 + b"\xff\xff"), (128, 64, 32)),
}


@pytest.mark.parametrize("name", SIXTEEN_BIT_PNG)
def test_png_of_16_bits(name: str, tmp_path: Path) -> None:
    content, expected = SIXTEEN_BIT_PNG[name]
    (tmp_path / "x.png").write_bytes(content)
    pixels = decode_file(tmp_path / "x.png", FORM)
    np.testing.assert_array_equal(pixels, np.broadcast_to(expected, (8, 8, 3)))


def test_transparent_palette_entry_becomes_white(tmp_path: Path) -> None:
    image = Image.new("P", (10, 10), 0)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.save(tmp_path / "clear.png", transparency=0)
    assert np.all(decode_file(tmp_path / "clear.png", FORM) == 255)


def test_only_the_first_frame_of_an_animation_is_used(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode_file(tmp_path / "film.gif", FORM), np.broadcast_to((255, 0, 0), (8, 8, 3)))


@pytest.mark.parametrize(
    ("orientation", "row", "column"),
    [(1, 0, 0), (2, 0, -1), (3, -1, -1), (4, -1, 0), (5, 0, 0), (6, 0, -1), (7, -1, -1), (8, -1, 0)],
)
def test_exif_orientation_is_applied(orientation: int, row: int, column: int, tmp_path: Path) -> None:
    image = Image.new("RGB", (24, 16), "black")
    image.paste("white", (0, 0, 12, 8))  # marks the top left corner before the rotation
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    pixels = decode_file(tmp_path / "turned.jpg", FORM)
    assert not isinstance(pixels, str)
    corners = {(y, x): int(pixels[y, x].mean()) for y in (0, -1) for x in (0, -1)}
    assert max(corners, key=lambda corner: corners[corner]) == (row, column)


def test_wide_image_is_resized_without_cropping(tmp_path: Path) -> None:
    image = Image.new("RGB", (80, 20), "black")
    image.paste("white", (0, 0, 40, 20))
    image.save(tmp_path / "wide.png")
    pixels = decode_file(tmp_path / "wide.png", FORM)
    assert not isinstance(pixels, str)
    assert pixels[:, :3].min() > 250
    assert pixels[:, 5:].max() < 5


def test_downscaling_averages_pixels(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64), dtype=np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "stripes.png")
    pixels = decode_file(tmp_path / "stripes.png", FORM)
    assert not isinstance(pixels, str)
    np.testing.assert_allclose(pixels, 127.5, atol=12)


def encoded(suffix: str, keep: float = 1.0) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"image{suffix}"
        noise = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
        content = path.read_bytes()
    return content[: int(len(content) * keep)]


HUGE = png(8, 2, b"", width_px=30_000, height_px=30_000)
BAD = {
    "empty.png": (b"", "empty file"),
    "text.png": (b"not an image\n", "not an image of a known format"),
    "pointer.jpg": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a pointer of Git LFS in place of"),
    "page.jpg": (b"\n<!DOCTYPE html>\n<html>", "a web page in place of the image"),
    "half.jpg": (encoded(".jpg", keep=0.5), "cannot be decoded: "),
    "half.png": (encoded(".png", keep=0.5), "cannot be decoded: "),
    "half.tiff": (encoded(".tiff", keep=0.5), ""),
    "bomb.png": (
        png(8, 2, b"", width_px=101, height_px=100),
        "101 x 100 pixels, more than data.max_pixels = 10000 allows",
    ),
    "huge.png": (HUGE, "more pixels than data.max_pixels = 10000 allows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_gives_a_reason_and_no_exception(name: str, tmp_path: Path) -> None:
    content, expected = BAD[name]
    (tmp_path / name).write_bytes(content)
    reason = decode_file(tmp_path / name, FORM)
    assert isinstance(reason, str)
    assert reason.startswith(expected)
    assert "\n" not in reason


def test_pixel_limit_may_exceed_that_of_pillow(tmp_path: Path) -> None:
    (tmp_path / "huge.png").write_bytes(HUGE)
    reason = decode_file(tmp_path / "huge.png", replace(FORM, max_pixels=10**8))
    assert reason == "more pixels than data.max_pixels = 100000000 allows"
    Image.new("1", (14_000, 14_000)).save(tmp_path / "large.png")
    assert not isinstance(decode_file(tmp_path / "large.png", replace(FORM, grey=True, max_pixels=2 * 10**8)), str)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    assert decode_file(tmp_path / "pipe.png", FORM) == "not a regular file"


def test_missing_file_gives_a_reason(tmp_path: Path) -> None:
    assert decode_file(tmp_path / "gone.png", FORM) == "removed or renamed during the run"
    (tmp_path / "cat").write_text("a file where the folder was")
    assert decode_file(tmp_path / "cat" / "gone.png", FORM) == "removed or renamed during the run"


def test_error_of_the_disk_gives_a_reason() -> None:
    assert decode_file(Path("/proc/self/mem"), FORM) == "empty file"
    too_long = Path("/tmp") / ("x" * 300)
    assert decode_file(too_long, FORM) == "cannot be read: File name too long"
