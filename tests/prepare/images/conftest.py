"""Folders of small images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Draw = Callable[..., Path]


@pytest.fixture
def draw() -> Draw:
    """Writes an image that depends only on the seed, and returns its path."""

    def write(path: Path, seed: int, side_px: int = 12) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (side_px, side_px, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return write


@pytest.fixture
def pictures(tmp_path: Path, draw: Draw) -> Path:
    """A folder with 20 images of class `cat` and 10 of class `dog`."""
    root = tmp_path / "pictures"
    for number in range(20):
        draw(root / "cat" / f"{number:02d}.png", number)
    for number in range(10):
        draw(root / "dog" / f"{number:02d}.png", 100 + number)
    return root
