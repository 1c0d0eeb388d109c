"""`python -m halfstep report` renders a document again, in any folder."""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halfstep.compare.case import Judging
from halfstep.compare.report.command import main
from halfstep.compare.report.markdown import render_markdown
from halfstep.results.comparison import COMPARISON
from halfstep.system.files import COMPARE
from tests.small_study import write_results_of

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


def test_file_that_does_not_exist_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["report", "nowhere.json"])
    assert main() == 1
    assert capsys.readouterr().err == "nowhere.json does not exist; name a comparison.json\n"


def test_page_is_the_report(
    written: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, page = _again(COMPARISON, monkeypatch, capsys)
    assert page == (COMPARE / "report.html").read_text()
    assert "training step" in printed
    assert all(sentence in printed for sentence in written)


def test_file_is_printed_as_markdown_and_as_json(
    comparison: Judging, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = write_results_of(comparison)
    monkeypatch.setattr(sys, "argv", ["report", "--markdown"])
    assert main() == 0
    assert capsys.readouterr().out == render_markdown(document)
    monkeypatch.setattr(sys, "argv", ["report", "--json"])
    assert main() == 0
    assert json.loads(capsys.readouterr().out) == json.loads(COMPARISON.read_text())


def test_document_alone_is_enough(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = COMPARISON.rename(elsewhere / "theirs.json")
    monkeypatch.chdir(elsewhere)
    printed, page = _again(file, monkeypatch, capsys)
    assert all(sentence in printed for sentence in written)
    assert "training step" in printed
    for section in ("Mean times, p-values and verdicts", "How it was measured", "Accuracy"):
        assert section in page


def test_document_of_an_earlier_release_is_rendered(
    written: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(COMPARISON.read_text())
    COMPARISON.write_text(json.dumps({key: value for key, value in content.items() if key not in NEW_KEYS}))
    printed, page = _again(COMPARISON, monkeypatch, capsys)
    assert all(sentence in printed for sentence in written)
    assert "Mean times, p-values and verdicts" in page


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield path
    for key, item in items:
        yield from _leaves(item, (*path, key))


@pytest.mark.parametrize("new", [None, -1, 1e308, "", "\x1b[2J", [], {}, True, float("nan"), float("inf")], ids=repr)
def test_hand_edited_document_gives_a_page_or_one_line(
    written: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], new: object
) -> None:
    original = json.loads(COMPARISON.read_text())
    paths = list(_leaves(original))[1:]
    sentence = ("candidates", "float16", "sentence")
    for path in (sentence, *random.Random(repr(new)).sample(paths, 8)):
        content = copy.deepcopy(original)
        functools.reduce(operator.getitem, path[:-1], content)[path[-1]] = new
        COMPARISON.write_text(json.dumps(content))
        monkeypatch.setattr(sys, "argv", ["report", str(COMPARISON)])
        try:
            status = main()
        except Exception as error:
            raise AssertionError(f"{path} = {new!r}: {error!r}") from error
        captured = capsys.readouterr()
        assert (status, len(captured.err.splitlines())) in ((0, 0), (1, 1)), path
        assert "\x1b[2J" not in captured.out + captured.err, path


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    make(tmp_path / "comparison.json")
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / "comparison.json")])
    assert main() == 1
    assert "comparison.json is not a regular file" in capsys.readouterr().err
