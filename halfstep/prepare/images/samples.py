"""A grid of sample images: a few of each class, next to its name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from halfstep.prepare.images.decoding import Images

TILE_PX = 96
GAP_PX = 6
MARGIN_PX = 24
NAME_PX = 160
MAX_CLASSES = 24
IMAGES_PER_CLASS = 8

WHITE = "#ffffff"
BLACK = "#1f2933"
GREY = "#7b8794"


def choose_samples(labels: NDArray[np.int32], class_count: int) -> dict[int, NDArray[np.int64]]:
    """Indices of the first images of each class, by label. Of too many classes, evenly spaced ones are chosen."""
    shown = np.unique(np.linspace(0, class_count - 1, min(class_count, MAX_CLASSES)).astype(int))
    return {int(label): np.flatnonzero(labels == label)[:IMAGES_PER_CLASS] for label in shown}


def draw_grid(title: str, subtitle: str, rows: Sequence[tuple[str, str, Images]]) -> Image.Image:
    """Draws one row for each class.

    Args:
        title: line above the rows.
        subtitle: smaller line below the title.
        rows: name of the class, a note below the name, and images, (n, height, width, channels) uint8.
    """
    columns = max((len(images) for _, _, images in rows), default=0)
    width_px = 2 * MARGIN_PX + NAME_PX + columns * (TILE_PX + GAP_PX) - GAP_PX
    top_px = MARGIN_PX + 58
    sheet = Image.new("RGB", (max(width_px, 480), top_px + len(rows) * (TILE_PX + GAP_PX) - GAP_PX + MARGIN_PX), WHITE)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN_PX, MARGIN_PX), title, fill=BLACK, font=ImageFont.load_default(18))
    pen.text((MARGIN_PX, MARGIN_PX + 26), subtitle, fill=GREY, font=ImageFont.load_default(12))
    for number, (name, note, images) in enumerate(rows):
        _draw_row(sheet, pen, top_px + number * (TILE_PX + GAP_PX), name, note, images)
    return sheet


def _draw_row(sheet: Image.Image, pen: ImageDraw.ImageDraw, y_px: int, name: str, note: str, images: Images) -> None:
    middle_px = y_px + TILE_PX // 2
    pen.text((MARGIN_PX, middle_px), _shortened(name, pen), fill=BLACK, font=ImageFont.load_default(15), anchor="ls")
    pen.text((MARGIN_PX, middle_px + 6), note, fill=GREY, font=ImageFont.load_default(12), anchor="lt")
    for column, image in enumerate(images):
        x_px = MARGIN_PX + NAME_PX + column * (TILE_PX + GAP_PX)
        sheet.paste(_tile(image), (x_px, y_px))


def _tile(image: Images) -> Image.Image:
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    # an integer factor keeps sharp pixel edges, so that the grid shows the model's input
    method = Image.Resampling.BILINEAR if TILE_PX % picture.width else Image.Resampling.NEAREST
    return picture.convert("RGB").resize((TILE_PX, TILE_PX), method)


def _shortened(name: str, pen: ImageDraw.ImageDraw) -> str:
    font = ImageFont.load_default(15)
    if pen.textlength(name, font=font) <= NAME_PX - GAP_PX:
        return name
    while name and pen.textlength(name + "…", font=font) > NAME_PX - GAP_PX:
        name = name[:-1]
    return name + "…"
