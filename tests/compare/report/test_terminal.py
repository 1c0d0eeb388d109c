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

from stages.compare.comparison import Comparison
from stages.compare.report.terminal import CAPTION, METRIC_WIDTH, render
from tests.small_study import SmallStudy


def _lines(comparison: Comparison, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(comparison))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def _with_candidates(comparison: Comparison, number: int) -> Comparison:
    """The comparison with `number` candidates like its second one, called `variant_<n>`."""
    first = comparison.candidates[1]
    found = tuple(replace(first, result=replace(first.result, variant=f"variant_{n}")) for n in range(number))
    study = replace(comparison.study, candidates=tuple(candidate.result for candidate in found))
    return replace(comparison, study=study, candidates=found)


def test_all_candidates_are_in_one_table_if_it_fits(comparison: Comparison) -> None:
    lines = _lines(comparison, 120)
    assert [line for line in lines if line.startswith("┏")] == lines[:1]
    assert all(f" {name} " in lines[1] for name in ("float32", "mixed_float16", "mixed_bfloat16", "float16"))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_is_split_by_candidates_if_it_is_too_wide(comparison: Comparison, width: int) -> None:
    lines = _lines(_with_candidates(comparison, 10), width)
    assert max(map(len, lines)) <= width
    headers = [lines[number + 1] for number, line in enumerate(lines) if line.startswith("┏")]
    assert len(headers) > 1
    assert all(line.split("┃")[1].startswith(f" {'metric':{METRIC_WIDTH}}") for line in headers)
    assert all("float32" in line for line in headers)
    names = [word for line in headers for word in line.replace("┃", " ").split() if word.startswith("variant")]
    assert names == [f"variant_{n}" for n in range(10)]
    assert "…" not in "\n".join(lines)
    assert sum(CAPTION[:40] in line for line in lines) == 1


@pytest.mark.parametrize("width", [30, 40])
def test_narrow_terminal_shows_all_numbers(comparison: Comparison, width: int) -> None:
    lines = _lines(comparison, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    assert all(number in text for number in ("54.31", "8.49", "3,941", "616", "210.0"))


def test_study_without_candidates_has_a_table(comparison: Comparison) -> None:
    assert "210.0" in "\n".join(_lines(_with_candidates(comparison, 0), 80))


def test_locale_without_these_characters_does_not_end_the_stage(root: Path, project: SmallStudy) -> None:
    code = (
        "from rich.console import Console\n"
        "from stages.compare.report.terminal import render\n"
        "from stages.errors import cli_entry\n"
        "from pathlib import Path\n"
        "from tests.small_study import SmallStudy\n"
        "@cli_entry\n"
        "def main(): Console().print(render(SmallStudy(Path.cwd()).compare()))\n"
        "raise SystemExit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(root), "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "1.60× (1.58 to 1.62)" in done.stdout.decode("latin-1")
