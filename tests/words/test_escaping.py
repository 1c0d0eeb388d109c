"""Names stay text in Markdown and in tables."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from halfstep.errors import printable
from halfstep.words.escaping import markdown_text, table_text, truncated_markdown
from tests.hostile_names import FORMULAS, HIDDEN, NAMES, NUMBERS

GFM = MarkdownIt("gfm-like", {"linkify": False})


def _tokens(markdown: str) -> list[Token]:
    return [inner for token in GFM.parse(markdown) for inner in (token, *(token.children or ()))]


@pytest.mark.parametrize(
    ("before", "after", "blocks"),
    [
        ("", "", {"paragraph_open", "paragraph_close"}),
        ("- ", "", {"bullet_list_open", "list_item_open", "bullet_list_close", "list_item_close"}),
        ("before\n", "", {"paragraph_open", "paragraph_close"}),
        ("| a | b |\n| --- | --- |\n| ", " | 1 |", {"table_open", "td_open"}),
    ],
)
def test_names_are_shown_as_they_are_in_markdown(before: str, after: str, blocks: set[str]) -> None:
    for name in NAMES:
        tokens = _tokens(before + markdown_text(name) + after)
        kinds = {token.type for token in tokens}
        assert blocks <= kinds, name
        marks = {"html_inline", "html_block", "em_open", "strong_open", "s_open", "code_inline", "link_open"}
        assert not kinds & marks, name
        assert not kinds & {"heading_open", "hr", "ordered_list_open", "image", "fence", "code_block"}, name
        text = "".join(token.content for token in tokens if token.type in ("text", "text_special", "softbreak"))
        assert printable(" ".join(name.replace("\t", " ").split(" "))) in text, name


def test_names_are_no_formulas_on_github() -> None:
    assert "$" not in markdown_text("$^$")


@pytest.mark.parametrize("text", [name for name in HIDDEN if "\t" not in name])
def test_hidden_characters_are_visible(text: str) -> None:
    assert printable(text).isprintable()
    assert "\\" in printable(text)


@pytest.mark.parametrize("name", FORMULAS)
def test_spreadsheet_computes_no_name(name: str) -> None:
    assert table_text(name) == f"'{name}"


@pytest.mark.parametrize("text", [*NUMBERS, "cat", "a=b", "'quoted'", "", "2-3", "-1.5"])
def test_numbers_and_other_text_are_unchanged_in_tables(text: str) -> None:
    assert table_text(text) == text


def test_names_stay_different_in_tables() -> None:
    assert len({table_text(name) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("text", ["short\n", "line\n" * 100, "x" * 500, "x\n" + "y" * 500])
def test_truncated_text_fits_and_names_the_rest(text: str) -> None:
    truncated = truncated_markdown(text, 100, "The rest is in x.")
    assert len(truncated) <= 100
    assert truncated == text or truncated.endswith("\n\nThe rest is in x.\n")
