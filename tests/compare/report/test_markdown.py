"""The comparison as Markdown: the description of a run and a comment on a pull request."""

from __future__ import annotations

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.report.markdown import MAX_DESCRIPTION, description, render_markdown
from halfstep.results import comparison as document


def _with_candidate(result: document.Comparison, name: str, **changes: object) -> document.Comparison:
    changed = result.candidates[name].model_copy(update=changes)
    return result.model_copy(update={"candidates": result.candidates | {name: changed}})


def test_markup_in_names_is_escaped(comparison: Judging) -> None:
    sentence = "<img src=x> | [a](b)\n# title"
    text = render_markdown(_with_candidate(document_of(comparison), "mixed_bfloat16", sentence=sentence))
    assert "<img" not in text.replace("\\<", "")
    assert "\n# title" not in text


def test_description_fits_into_a_tag(comparison: Judging) -> None:
    result = document_of(comparison)
    text = description(_with_candidate(result, "float16", reasons=result.candidates["float16"].reasons * 100))
    assert len(text) <= 8000
    assert len(text) > MAX_DESCRIPTION - 1000
    assert text.endswith("The rest is in report.html.\n")
