"""The comparison as Markdown: the description of a run and a comment on a pull request."""

from __future__ import annotations

import pytest

from stages.compare.__main__ import write_results
from stages.compare.comparison import Comparison
from stages.compare.document import comparison_result
from stages.compare.report.markdown import MAX_DESCRIPTION, description, main, render_markdown
from stages.results.comparison import ComparisonResult
from tests.small_study import SmallStudy


def _with_candidate(result: ComparisonResult, name: str, **changes: object) -> ComparisonResult:
    changed = result.candidates[name].model_copy(update=changes)
    return result.model_copy(update={"candidates": result.candidates | {name: changed}})


def test_markdown_contains_verdicts_numbers_and_reasons(comparison: Comparison) -> None:
    text = render_markdown(comparison_result(comparison))
    assert "**mixed\\_bfloat16: adopt.** Use mixed\\_bfloat16" in text
    assert "| mixed\\_bfloat16 | train | 1.60× | 1.58 to 1.62 | adopt |" in text
    assert "(`emulated_float16`)" in text
    assert "To settle it: Lower train.learning" in text.replace("\\_", "_")
    assert "Gate" not in text


def test_gate_is_shown(project: SmallStudy) -> None:
    assert "Gate: **failed**" in render_markdown(comparison_result(project.compare(gate=True)))


def test_markup_in_names_is_escaped(comparison: Comparison) -> None:
    sentence = "<img src=x> | [a](b)\n# title"
    text = render_markdown(_with_candidate(comparison_result(comparison), "mixed_bfloat16", sentence=sentence))
    assert "<img" not in text.replace("\\<", "")
    assert "\n# title" not in text


def test_description_fits_into_a_tag(comparison: Comparison) -> None:
    result = comparison_result(comparison)
    text = description(_with_candidate(result, "float16", reasons=result.candidates["float16"].reasons * 100))
    assert len(text) <= 8000
    assert len(text) > MAX_DESCRIPTION - 1000
    assert text.endswith("The rest is in report.html.\n")


def test_markdown_is_printed_from_the_file(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(comparison)
    assert main() == 0
    assert capsys.readouterr().out == render_markdown(comparison_result(comparison))
