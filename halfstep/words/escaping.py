"""Names as text of another language: Markdown, and tables that a spreadsheet opens."""

from __future__ import annotations

import re

from halfstep.errors import printable

_SPACES = re.compile(r"[ \t\n\r\f\v]+")
_MARKDOWN = str.maketrans(
    {character: f"\\{character}" for character in "\\`*_[]|#~"}
    # The backslash does not work before these in every renderer.
    | {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"}
)
_LINE_START = re.compile(r"^(?=[-+=])|^(\d+)(?=[.)](?: |$))")  # of a list, a rule or a heading
# A spreadsheet computes a cell that begins with one of these characters, also with their full-width forms.
_FORMULA = re.compile(r"'*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def markdown_text(text: str) -> str:
    """Returns Markdown on one line that shows the text as it is: no markup, no HTML, no formulas, no list."""
    shown = printable(_SPACES.sub(" ", text).strip(" "))
    return _LINE_START.sub(r"\1\\", shown.translate(_MARKDOWN))


def truncated_markdown(text: str, limit: int, rest: str) -> str:
    """Returns at most `limit` characters: whole lines, and `rest` as the last paragraph if lines are left out."""
    if len(text) <= limit:
        return text
    note = f"\n\n{rest}\n"
    kept = text[: limit - len(note)]
    return kept[: kept.rfind("\n")] + note if "\n" in kept else kept + note


def table_text(text: str) -> str:
    """Returns the text of a CSV cell that no spreadsheet computes: an apostrophe precedes what it would compute.

    Numbers such as -1 stay as they are. Without the apostrophe, the text is the original.
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
