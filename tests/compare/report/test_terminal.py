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

from stages.compare.judging import Judging
from stages.compare.report.terminal import CAPTION, METRIC_WIDTH
from stages.compare.text import SYNTHETIC_NOTE
from stages.results.comparison import Reason
from tests.small_study import SmallStudy, terminal_of


def _lines(comparison: Judging, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(terminal_of(comparison))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def _with_candidates(comparison: Judging, number: int) -> Judging:
    """The comparison with `number` candidates like its second one, called `variant_<n>`."""
    first = comparison.candidates[1]
    found = tuple(replace(first, result=replace(first.result, variant=f"variant_{n}")) for n in range(number))
    study = replace(comparison.study, candidates=tuple(candidate.result for candidate in found))
    return replace(comparison, study=study, candidates=found)


def test_all_candidates_are_in_one_table_if_it_fits(comparison: Judging) -> None:
    lines = _lines(comparison, 120)
    (first,) = [number for number, line in enumerate(lines) if line.startswith("┏")]
    assert all(f" {name} " in lines[first + 1] for name in ("float32", "mixed_float16", "mixed_bfloat16", "float16"))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_is_split_by_candidates_if_it_is_too_wide(comparison: Judging, width: int) -> None:
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
def test_narrow_terminal_shows_all_numbers(comparison: Judging, width: int) -> None:
    lines = _lines(comparison, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    assert all(number in text for number in ("52.0", "8.12", "3,940", "615", "210"))


def test_times_divide_to_the_ratio_below_them(comparison: Judging) -> None:
    lines = _lines(comparison, 120)
    number = next(number for number, line in enumerate(lines) if "training step, mean, ms" in line)
    times = [float(cell) for cell in lines[number].split("│")[2:5]]
    ratios = [cell.split("×")[0].strip() for cell in lines[number + 1].split("│")[3:5]]
    assert ratios == [f"{times[0] / time:.2f}" for time in times[1:]] == ["0.25", "1.60"]


def test_factors_are_rows_of_their_own(comparison: Judging) -> None:
    lines = _lines(comparison, 120)
    rows = {line.split("│")[1].strip(): line.split("│")[3:5] for line in lines if line.count("│") == 6}
    assert [cell.strip() for cell in rows["= settings"]] == ["0.80× (0.77 to 0.83)", ""]
    assert [cell.strip() for cell in rows["× precision"]] == ["0.31× (0.30 to 0.32)", ""]
    assert sum("= settings" in line for line in lines) == 3  # training, and two batch sizes


def test_typical_steps_are_shown_where_stalls_are(comparison: Judging) -> None:
    assert "typical steps" not in "\n".join(_lines(comparison, 120))
    stalls = Reason(code="stalls", text="", evidence={}, advice="")
    candidates = (comparison.candidates[0], replace(comparison.candidates[1], reasons=(stalls,)))
    lines = _lines(replace(comparison, candidates=candidates), 120)
    assert [line.split("│")[4].strip() for line in lines if "typical steps" in line] == ["1.60×"]


def test_synthetic_images_are_noted(project: SmallStudy) -> None:
    assert SYNTHETIC_NOTE not in " ".join(_lines(project.compare(), 160))
    project.make_synthetic()
    assert SYNTHETIC_NOTE in " ".join(_lines(project.compare(), 160))


def test_small_test_set_is_noted(project: SmallStudy) -> None:
    assert "Note: " not in "\n".join(_lines(project.compare(), 200))
    noted = "\n".join(_lines(project.compare(quality_margin=0.002), 200))
    assert "Note: With 1,200 test examples, a loss of at most 0.002 of accuracy cannot be shown for 6 verdicts" in noted


def test_void_measures_are_noted(comparison: Judging) -> None:
    assert "decides nothing" not in "\n".join(_lines(comparison, 200))
    noted = "\n".join(_lines(replace(comparison, void=frozenset({"train", "inference_b32"})), 200))
    assert (
        "Note: The two copies of float32 differ by more than noise in training and inference at batch size 32, which"
        in noted
    )


def test_study_without_candidates_has_a_table(comparison: Judging) -> None:
    assert " 210 " in "\n".join(_lines(_with_candidates(comparison, 0), 80))


def test_locale_without_these_characters_does_not_end_the_stage(root: Path, project: SmallStudy) -> None:
    code = (
        "from rich.console import Console\n"
        "from stages.cli import cli_entry\n"
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
