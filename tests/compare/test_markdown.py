"""The comparison as Markdown: the description of a run and a comment on a pull request."""

from __future__ import annotations

from typing import Any

import pytest

from stages.compare.comparison import Comparison
from stages.compare.contents import as_json
from stages.compare.markdown import LONGEST_DESCRIPTION, description, main, render_markdown
from stages.compare.results import write_results


def test_it_holds_the_verdicts_the_numbers_and_the_reasons(comparison: Comparison) -> None:
    text = render_markdown(as_json(comparison))
    assert "**mixed\\_bfloat16: adopt.** Use mixed\\_bfloat16" in text
    assert "| mixed\\_bfloat16 | train | 1.60× | 1.58 to 1.62 | adopt |" in text
    assert "(`emulated_float16`)" in text
    assert "To settle it: Lower train.learning" in text.replace("\\_", "_")
    assert "Gate" not in text


def test_the_gate_is_told(project: Any) -> None:
    assert "Gate: **failed**" in render_markdown(as_json(project.compare(gate=True)))


def test_names_cannot_break_out(comparison: Comparison) -> None:
    content = as_json(comparison)
    content["candidates"]["mixed_bfloat16"]["sentence"] = "<img src=x> | [a](b)\n# title"
    text = render_markdown(content)
    assert "<img" not in text.replace("\\<", "")
    assert "\n# title" not in text


def test_a_description_fits_into_a_tag(comparison: Comparison) -> None:
    content = as_json(comparison)
    content["candidates"]["float16"]["reasons"] *= 100
    text = description(content)
    assert len(text) <= 8000
    assert len(text) > LONGEST_DESCRIPTION - 1000
    assert text.endswith("The rest is in report.html.\n")


def test_it_is_printed_from_the_file(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(comparison)
    assert main() == 0
    assert capsys.readouterr().out == render_markdown(as_json(comparison))
