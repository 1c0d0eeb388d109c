"""`python -m stages.compare.report` renders a document again, with the study's folders and without."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stages.compare.judging import Judging
from stages.compare.report.__main__ import main
from stages.compare.report.html import NO_STUDY_NOTE
from stages.files import COMPARE
from stages.results.comparison import COMPARISON
from tests.small_study import SmallStudy, write_results_of

NEW_KEYS = ("score", "setup", "failed")  # that documents of earlier releases do not have


@pytest.fixture
def written(comparison: Judging) -> list[str]:
    """The sentences of a comparison whose files are in the working folder."""
    return [item.sentence for item in write_results_of(comparison).candidates.values()]


def _again(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What is printed, on one line, and the page."""
    page = file.with_name("again.html")
    monkeypatch.setattr(sys, "argv", ["report", str(file), "--html", str(page)])
    assert main() == 0
    return " ".join(capsys.readouterr().out.split()), page.read_text()


def test_page_with_the_study_is_the_report(
    written: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, page = _again(COMPARISON, monkeypatch, capsys)
    assert page == (COMPARE / "report.html").read_text()
    assert "verdict, training" in printed
    assert all(sentence in printed for sentence in written)


def test_document_alone_has_no_tables_of_metrics(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = COMPARISON.rename(elsewhere / "theirs.json")
    monkeypatch.chdir(elsewhere)
    printed, page = _again(file, monkeypatch, capsys)
    for text in (printed, page):
        assert NO_STUDY_NOTE in text
    assert all(sentence in printed for sentence in written)
    assert "verdict, training" not in printed
    for section in ("All metrics", "by epoch", "Inference latency"):
        assert section not in page
    for section in ("What each verdict rests on", "Operations before and after", "How it was measured", "Accuracy"):
        assert section in page


def test_study_that_has_changed_is_left_out(
    written: list[str], project: SmallStudy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.scale_times("mixed_bfloat16", "rounds.csv", 2.0)
    printed, _ = _again(COMPARISON, monkeypatch, capsys)
    assert NO_STUDY_NOTE in printed
    assert all(sentence in printed for sentence in written)


def test_document_of_an_earlier_release_is_rendered(
    written: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(COMPARISON.read_text())
    COMPARISON.write_text(json.dumps({key: value for key, value in content.items() if key not in NEW_KEYS}))
    printed, page = _again(COMPARISON, monkeypatch, capsys)
    assert all(sentence in printed for sentence in written)
    assert "What each verdict rests on" in page
