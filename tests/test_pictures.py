"""The pictures of the documentation show the report as it is now."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tools import pictures


@pytest.mark.parametrize("name", pictures.PAGES)
def test_picture_is_of_these_templates(root: Path, name: str) -> None:
    """`python -m tools.pictures` makes them anew, after a `dvc repro`."""
    with Image.open(root / "docs" / f"{name}.png") as image:
        assert image.size == pictures.PAGES[name]
        assert image.info["templates"] == pictures.digest(root)
