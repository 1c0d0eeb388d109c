"""Draws a confusion matrix with Pillow, in milliseconds: a library for figures takes a second to import."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

MAX_LABEL = 40  # characters of a class name
MAX_CELLS = 1000  # in a row; of more classes, neighbours share a cell
MAX_CLASSES_WITH_COUNTS = 30
SIDE_PX = 1200  # of a matrix of many classes

_NAME_PX, _AXIS_PX = 13, 16  # sizes of the text
_GAP_PX, _LINE_PX = 8, 18
_LIGHT, _DARK = np.array([247, 251, 255]), np.array([8, 48, 107])  # of no image, and of the most images
_BLACK, _WHITE, _GREY = "#1f2933", "#ffffff", "#7b8794"


def confusion_matrix_png(predicted: NDArray[Any], labels: NDArray[Any], classes: Sequence[str]) -> bytes:
    """A confusion matrix as a PNG file: rows are the true classes, columns the predicted ones.

    Args:
        predicted, labels: numbers of classes, `(images,)`.
        classes: their names.
    """
    names = [name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…" for name in classes]
    counts = _counts(predicted, labels, len(names))
    image = io.BytesIO()
    _draw(counts, names).save(image, format="png")
    return image.getvalue()


def _counts(predicted: NDArray[Any], labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    cells = min(classes, MAX_CELLS)
    counts = np.zeros((cells, cells), np.int64)
    places = [np.asarray(numbers, np.int64) * cells // classes for numbers in (labels, predicted)]
    np.add.at(counts, tuple(places), 1)
    return counts


def _draw(counts: NDArray[np.int64], names: Sequence[str]) -> Image.Image:
    cells, has_counts = len(counts), len(names) <= MAX_CLASSES_WITH_COUNTS
    cell_px = min(90, max(40, 600 // cells)) if has_counts else SIDE_PX // cells
    font, side_px = ImageFont.load_default(_NAME_PX), cells * cell_px
    names_px = int(max(font.getlength(name) for name in names)) + _GAP_PX
    left, top = _LINE_PX + 2 * _GAP_PX + names_px, 2 * _GAP_PX
    sheet = Image.new("RGB", (left + side_px + 2 * _GAP_PX, top + side_px + left), _WHITE)
    shares = counts / max(counts.max(), 1)
    colors = _LIGHT + shares[..., None] * (_DARK - _LIGHT)
    matrix = Image.fromarray(colors.astype(np.uint8)).resize((side_px, side_px), Image.Resampling.NEAREST)
    sheet.paste(matrix, (left, top))
    pen = ImageDraw.Draw(sheet)
    pen.rectangle((left - 1, top - 1, left + side_px, top + side_px), outline=_GREY)
    for row, column in np.ndindex(counts.shape) if has_counts else ():
        place = left + (column + 0.5) * cell_px, top + (row + 0.5) * cell_px
        color = _WHITE if shares[row, column] > 0.5 else _BLACK
        pen.text(place, str(counts[row, column]), fill=color, font=font, anchor="mm")
    for number in range(0, len(names), -(-_LINE_PX * len(names) // side_px)):  # one that is readable, then the next
        middle = int((number + 0.5) * side_px / len(names))
        name = _text(names[number], _NAME_PX)
        sheet.paste(name, (left - _GAP_PX - name.width, top + middle - name.height // 2))
        name = name if has_counts and names_px <= cell_px else name.rotate(90, expand=True)
        sheet.paste(name, (left + middle - name.width // 2, top + side_px + _GAP_PX))
    axis = _text("predicted class", _AXIS_PX)
    sheet.paste(axis, (left + (side_px - axis.width) // 2, sheet.height - axis.height - _GAP_PX // 2))
    axis = _text("true class", _AXIS_PX).rotate(90, expand=True)
    sheet.paste(axis, (_GAP_PX // 2, top + (side_px - axis.height) // 2))
    return sheet


def _text(text: str, size_px: int) -> Image.Image:
    font = ImageFont.load_default(size_px)
    image = Image.new("RGB", (max(1, int(font.getlength(text)) + 1), _LINE_PX), _WHITE)
    ImageDraw.Draw(image).text((0, _LINE_PX / 2), text, fill=_BLACK, font=font, anchor="lm")
    return image
