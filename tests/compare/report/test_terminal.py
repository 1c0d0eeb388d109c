"""The table for the terminal, at any width."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.ratio_text import SYNTHETIC_NOTE
from halfstep.compare.report.terminal import answer_text, brief
from tests.small_study import SmallStudy, given, terminal_of


def _lines(comparison: Judging, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(terminal_of(comparison))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def _with_candidates(comparison: Judging, number: int) -> Judging:
    """The comparison with `number` candidates like its second one, called `variant_<n>`."""
    first = comparison.cases[1]
    results = [replace(first.result, variant=f"variant_{n}") for n in range(number)]
    cases = tuple(
        given(first, result=result, variant=result.variant, speedups=first.speedups, verdicts=first.verdicts)
        for result in results
    )
    return given(comparison, study=replace(comparison.study, candidates=tuple(results)), cases=cases)


def test_table_of_any_number_of_candidates_fits_into_80_columns(comparison: Judging) -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(brief(document_of(_with_candidates(comparison, 10))))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["mean", "float32", "variant_0", "variant_1"]
    measures = ["training step", "inference, batch 1", "inference, batch 32", "accuracy, %", "float32's weights, %"]
    assert [line[: len(label)] for line, label in zip(lines[2:], measures, strict=True)] == measures  # none is folded


@pytest.mark.parametrize("width", [40, 80])
def test_narrow_terminal_shows_all_numbers(comparison: Judging, width: int) -> None:
    lines = _lines(comparison, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(number in text for number in ("52.0", "8.12", "210"))


def test_synthetic_images_are_noted(project: SmallStudy) -> None:
    assert SYNTHETIC_NOTE not in " ".join(_lines(project.compare(), 160))
    project.make_synthetic()
    assert SYNTHETIC_NOTE in " ".join(_lines(project.compare(), 160))


def test_study_without_candidates_answers_nothing(comparison: Judging) -> None:
    text = answer_text(document_of(_with_candidates(comparison, 0)))
    assert text.splitlines()[0] == "Training   not known: no variant could be compared"


def test_locale_without_these_characters_does_not_end_the_stage(root: Path, project: SmallStudy) -> None:
    code = (
        "from rich.console import Console\n"
        "from halfstep.cli import cli_entry\n"
        "from pathlib import Path\n"
        "from tests.small_study import SmallStudy, terminal_of\n"
        "@cli_entry\n"
        "def main(): Console().print(terminal_of(SmallStudy(Path.cwd()).compare()))\n"
        "raise SystemExit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(root), "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "1.60× (1.55 to 1.65)" in done.stdout.decode("latin-1")
