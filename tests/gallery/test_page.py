"""The page, the picture and the rows of the README show what the results say, and nothing that they do not."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from halfstep.errors import DataError
from halfstep.results.comparison import Candidate
from halfstep.words.text import TRAIN
from tests.gallery.conftest import KNOWN, Make
from tools.gallery import page, studies
from tools.gallery.merging import by_machine
from tools.gallery.picture import COLOURS, svg
from tools.gallery.results import Result, Results
from tools.gallery.studies import PUBLISHED, read_results


def shown(*results: Result) -> Results:
    return Results(results, ())


def times_of(candidate: Candidate) -> str:
    """The steps of a candidate and of its baseline, and the speed-up, as a row has them."""
    speedup = candidate.speedups[TRAIN]
    steps = f"{speedup.baseline_time_ms:.2f} ms → {speedup.candidate_time_ms:.2f} ms"
    return f"{steps} | {speedup.value:.2f}× ({speedup.low:.2f} to {speedup.high:.2f})"


def test_each_study_has_its_verdict_its_reason_and_what_would_change_it(folder: Path, make: Make) -> None:
    comparison = make().comparison
    steps = {"next_steps": ("Settle inference first.", "Train on more seeds.")}
    candidates = {name: item.model_copy(update=steps) for name, item in comparison.candidates.items()}
    result = make().model_copy(update={"comparison": comparison.model_copy(update={"candidates": candidates})})
    text = page.render(shown(result), studies.read())
    float16, bfloat16 = (result.comparison.candidates[f"mixed_{name}"] for name in ("float16", "bfloat16"))
    assert f"| small CNN, 32 px (digits: accuracy) | mixed\\_float16 | {times_of(float16)} |" in text
    plain = text.replace("\\_", "_")
    assert f"- Verdict: {bfloat16.sentence}" in plain
    assert f"- Why: {bfloat16.why}" in plain
    assert "- What would change it: Train on more seeds." in plain
    assert "`python -m tools.gallery --study cnn`, about 2 min here." in text
    assert "How often the intervals held" not in text
    assert {line.count(" | ") for line in text.splitlines() if line.startswith("| ")} == {6}


def test_occasions_are_merged_and_their_intervals_are_checked(folder: Path, make: Make) -> None:
    results = [make(occasion=name, factor=factor) for name, factor in (("a", 1.0), ("b", 1.02), ("c", 1.5))]
    text = page.render(shown(*results), studies.read())
    assert "3 runs, spread " in text
    (line,) = [line for line in text.splitlines() if line.startswith("| small CNN, 32 px | training | ±")]
    assert line.endswith("| 0 of 6 | 5.3 of 6 |")  # the mean of the others always has the 1.5 in it, or is far from it


def test_all_commits_and_load_on_purpose_are_named(folder: Path, make: Make) -> None:
    results = shown(make(), make(occasion="busy", commit="1" * 40, load_cores=0.5))
    commits = f", commits {'0' * 10}, {'1' * 10}; "
    said = f"{commits}one of the runs (busy) was made while another program took 50 % of one core."
    assert said in page.render(results, studies.read())
    assert said in " ".join(page.readme_rows(results, studies.read()).split())


def test_text_of_others_is_no_markup(folder: Path, make: Make) -> None:
    hostile = make(environment={"device": "<script>alert(1)</script> | [x](http://example.org) `code`"})
    text = page.render(shown(hostile), studies.read())
    assert "<script>" not in text
    assert "[x](http" not in text


def test_left_out_files_are_named_on_the_page(folder: Path) -> None:
    text = page.render(Results((), ("gallery/results/a/b.json is left out: no",)), studies.read())
    assert "There is no result yet." in text
    assert "## Files that are left out" in text
    assert "a/b.json is left out: no" in text


def picture(*results: Result) -> str:
    known = studies.read()
    return svg(by_machine(shown(*results), list(known)), known)


def test_picture_has_a_solid_background_a_panel_a_machine_and_colours_of_verdicts(folder: Path, make: Make) -> None:
    text = picture(make(), make("regression", "own_task", environment={"device": "NVIDIA H100"}))
    root = ElementTree.fromstring(text)
    axes = [item for item in root.iter() if item.get("id", "").startswith("axes_")]
    assert len(axes) == 2
    (background,) = [item for item in root.iter() if item.get("id") == "patch_1"]
    assert "fill: #ffffff" in ElementTree.tostring(background, encoding="unicode")
    assert COLOURS["reject"] in text
    for name in ("AMD EPYC, 2 cores", "NVIDIA H100", "small CNN, 32 px", "mixed_float16"):
        assert f"<!-- {name} -->" in text


def test_rows_replace_what_is_between_the_markers(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    changed = page.between_markers(text, "| rows |")
    before, after = text.partition(page.START)[0], text.partition(page.END)[2]
    assert changed == f"{before}{page.START}\n| rows |\n{page.END}{after}"
    assert page.between_markers(changed, "| rows |") == changed
    with pytest.raises(DataError, match="results:start"):
        page.between_markers("no markers", "")


def test_page_of_the_documentation_has_what_is_published(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    results = read_results(KNOWN, PUBLISHED)
    text = Path("docs/gallery.md").read_text(encoding="utf-8")
    assert text == page.render(results, KNOWN), "run `python -m tools.gallery --page`"
    assert results.left_out == ()
    readme = Path("README.md").read_text(encoding="utf-8")
    assert readme == page.between_markers(readme, page.readme_rows(results, KNOWN))
