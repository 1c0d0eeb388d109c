"""The links of all pages, and those that a package index shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.links import anchors, broken


def test_pages_lead_somewhere(root: Path) -> None:
    pages = [*root.glob("*.md"), *root.glob("docs/*.md")]
    assert len(pages) > 15
    found = {page.name: [*broken(page, page.read_text(encoding="utf-8"), root)] for page in pages}
    assert {name: targets for name, targets in found.items() if targets} == {}


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("[a](page.md)", False),
        ("[a](page.md#first-part-2)", False),
        ("[a](#first-part)", False),
        ("[a](https://keras.io)", False),
        ("`[a](nowhere.md)`", False),
        ("[a](nowhere.md)", True),
        ("![a\nb](nowhere.png)", True),
        ("[a](page.md#second)", True),
        ("[a](../outside.md)", True),
    ],
)
def test_link_is_looked_up(link: str, is_broken: bool, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    (tmp_path / "outside.md").write_text("")
    page = root / "page.md"
    page.write_text("# First `part`\n\n## First part\n\n## First part\n")
    assert anchors(page.read_text()) == {"first-part", "first-part-1", "first-part-2"}
    assert bool([*broken(page, link, root)]) == is_broken
