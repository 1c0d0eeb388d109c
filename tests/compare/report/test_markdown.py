"""The comparison as Markdown: the description of a run and a comment on a pull request."""

from __future__ import annotations

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.report.markdown import MAX_DESCRIPTION, description, render_markdown
from halfstep.results import comparison as document
from tests.small_study import PROTOCOL, SEEDS, SmallStudy, given


def _with_candidate(result: document.Comparison, name: str, **changes: object) -> document.Comparison:
    changed = result.candidates[name].model_copy(update=changes)
    return result.model_copy(update={"candidates": result.candidates | {name: changed}})


def test_markdown_contains_verdicts_numbers_and_reasons(comparison: Judging) -> None:
    text = render_markdown(document_of(comparison))
    assert "**mixed\\_bfloat16: adopt.** Use mixed\\_bfloat16" in text
    assert "| mean | float32 | mixed\\_bfloat16 | change | verdict |" in text
    assert "| training step | 13.0 ms | 8.12 ms | 1.60× (1.55 to 1.65) | adopt |" in text
    assert "(`emulated_float16`, training)" in text
    assert "To settle it: Lower train.learning" in text.replace("\\_", "_")
    assert "Gate" not in text


def test_factors_and_both_accuracies_have_rows(comparison: Judging) -> None:
    lines = render_markdown(document_of(comparison)).splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith("| training step |"))
    assert lines[number + 1] == "| \\= settings |  |  | 0.80× (0.77 to 0.83) |  |"
    assert lines[number + 2] == "| × precision |  |  | 0.31× (0.30 to 0.32) |  |"
    assert "| accuracy, % | 98.00 | 97.75 | −0.25 (−0.58 to +0.08) | loss ≤ 1 |" in lines
    assert "| same weights, % | 98.00 | 97.92 | −0.08 (−0.33 to +0.17) | loss ≤ 1 |" in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_void_measures_are_named(comparison: Judging) -> None:
    assert "which therefore decides nothing" not in render_markdown(document_of(comparison))
    void = document_of(given(comparison, differing=frozenset({"inference_b1"})))
    expected = "The two copies of float32 differ by more than noise in inference at batch size 1, which"
    assert expected in render_markdown(void)


def test_gate_is_shown(project: SmallStudy) -> None:
    assert "Gate: **failed**" in render_markdown(document_of(project.compare(gate=True)))


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


def test_costs_beside_the_speedups_have_rows(project: SmallStudy) -> None:
    for seed, seconds in zip(SEEDS, (1250.0, 1300.0, 1350.0), strict=True):
        project.edit_training("mixed_bfloat16", seed, train_time_s=seconds)
    lines = render_markdown(document_of(project.compare())).splitlines()
    assert "| whole training | 12.0 s | 1,300 s |  |  |" in lines
    assert "| start (processor) | 6.50 s | 26.0 s |  |  |" in lines


def test_notes_are_in_the_text(project: SmallStudy) -> None:
    assert "getting faster" not in render_markdown(document_of(project.compare()))
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"unsteady": ("inference_b1",)}))
    assert "was still getting faster" not in render_markdown(
        document_of(project.compare())
    )  # it fell in all arms alike
    project.scale_times("mixed_bfloat16", "inference.csv", 0.8, first_call=2)
    text = render_markdown(document_of(project.compare()))
    assert "Inference at batch size 1 was still getting faster when each measurement ended" in text
