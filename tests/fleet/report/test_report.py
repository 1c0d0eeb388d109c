from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from stages import files
from stages.fleet.combination import REPORT, FleetReport, combine
from stages.fleet.machines import Machine, read_machines
from stages.fleet.report import report, write_report
from stages.fleet.report_html import render_html
from stages.fleet.report_text import render_markdown, render_terminal, sentence
from stages.results.comparison import VerdictTest
from stages.stats.multiple import holm
from tests.fleet.report.machine_results import measure
from tests.small_study import ENVIRONMENT, SmallStudy

FAST, SLOW, FAILED = "mixed_bfloat16", "mixed_float16", "float16"


@pytest.fixture
def alike(project: SmallStudy) -> FleetReport:
    """Three machines with the same measurements."""
    for device in ("CPU 1", "TPU 2", "GPU 3"):
        measure(project, device)
    return combine(read_machines())


@pytest.fixture
def unlike(project: SmallStudy) -> FleetReport:
    """The candidate that is faster on the first machine is not worth it on the second; a third is undecided."""
    measure(project, "CPU 1")
    project.scale_times(FAST, "rounds.csv", 1.6)
    measure(project, "CPU 2")
    project.scale_times(FAST, "rounds.csv", 1 / 1.6 / 1.05)
    project.spread_processes(FAST, "rounds.csv", 1.3)
    measure(project, "CPU 3")
    return combine(read_machines())


def statement(found: FleetReport, candidate: str, measure: str = "train") -> str:
    (together,) = (item for item in found.together if (item.candidate, item.measure) == (candidate, measure))
    return sentence(together, found)


def terminal(found: FleetReport, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render_terminal(found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_machine_candidate_and_measure_has_a_row(alike: FleetReport) -> None:
    assert len(alike.rows) == 3 * 3 * 3
    row = next(row for row in alike.rows if row.candidate == FAST and row.measure == "train")
    assert row.speedup is not None
    assert row.speedup.low < 1.6 < row.speedup.high
    assert row.quality is not None
    assert row.quality.delta == pytest.approx(-3 / 1200)
    inference = next(row for row in alike.rows if row.candidate == FAST and row.measure == "inference_b1")
    assert inference.quality is not None
    assert inference.quality.delta == pytest.approx(-1 / 1200)  # of the same weights


def test_on_all_of_them_is_each_machines_own_verdict(alike: FleetReport) -> None:
    assert statement(alike, FAST) == f"{FAST}, training: adopt on all of them, by each machine's own verdict."
    assert statement(alike, SLOW) == f"{SLOW}, training: reject on all of them, by each machine's own verdict."
    assert statement(alike, FAILED) == "float16, training: inconclusive on CPU 1, GPU 3 and TPU 2."


def test_on_all_of_them_is_not_said_where_one_disagrees(unlike: FleetReport) -> None:
    text = statement(unlike, FAST)
    assert text.startswith("mixed_bfloat16, training: adopt on CPU 1; reject on CPU 2; inconclusive on CPU 3. ")
    assert "on all of them" not in text
    assert statement(unlike, FAST, "inference_b1").endswith("adopt on all of them, by each machine's own verdict.")


def test_on_at_least_one_shares_the_error_of_all_machines(unlike: FleetReport) -> None:
    """Two candidates with three measures on three machines: 18 verdicts."""
    assert unlike.tests == 18
    expected = "Corrected for the 18 verdicts of all machines, adopt is shown on at least one of them: CPU 1."
    assert statement(unlike, FAST).endswith(expected)
    own = {(row.machine, row.candidate, row.measure): row.p for row in unlike.rows if row.p is not None}
    adjusted = holm({key: p for key, p in own.items() if p is not None})
    shown = {(row.machine, row.candidate, row.measure): row.p_fleet for row in unlike.rows if row.p_fleet is not None}
    assert shown == adjusted


def weakened(machine: Machine, p: float) -> Machine:
    """The machine as if training had this p-value, with the verdict of its own report unchanged."""
    candidate = machine.comparison.candidates[FAST]
    tests = (candidate.tests or {}) | {"train": VerdictTest(p=p, p_adjusted=p)}
    changed = candidate.model_copy(update={"tests": tests})
    candidates = machine.comparison.candidates | {FAST: changed}
    comparison = machine.comparison.model_copy(update={"candidates": candidates})
    return Machine(machine.digest, comparison, machine.provenance)


def test_adopt_that_is_one_of_many_is_shown_on_none(unlike: FleetReport) -> None:
    first, *others = read_machines()
    found = combine([weakened(first, 0.005), *others])
    assert statement(found, FAST).endswith("the 18 verdicts of all machines, adopt is not shown on any of them.")
    alone = combine([weakened(first, 0.005)])
    assert alone.together[3].shown_on == (first.digest,)


def test_one_machine_is_all_that_was_measured(project: SmallStudy) -> None:
    measure(project, "CPU 1")
    found = combine(read_machines())
    assert statement(found, FAST) == "mixed_bfloat16, training: adopt on the one machine that was measured."
    assert "<title>halfstep: lower precision on 1 machine</title>" in render_html(found)


def test_speed_only_says_nothing_of_at_least_one(project: SmallStudy) -> None:
    project.make_speed_only()
    measure(project, "CPU 1", speed_only=True)
    project.scale_times(FAST, "rounds.csv", 2)
    measure(project, "CPU 2", speed_only=True)
    found = combine(read_machines())
    assert {row.verdict for row in found.rows} == {"faster", "slower"}
    assert statement(found, FAST) == "mixed_bfloat16, training: faster on CPU 1; slower on CPU 2."
    assert statement(found, SLOW) == f"{SLOW}, training: slower on all of them, by each machine's own verdict."
    for text in (terminal(found), render_markdown(found), render_html(found)):
        assert "faster, speed only" in text
        assert "Speed only: nothing was trained" in " ".join(text.split())
        assert not re.search("adopt|p, all machines|accuracy", re.sub("(?s)<style>.*</style>", "", text))
    assert "p_fleet" not in json.dumps(found.as_json())


def test_table_names_machines_by_device_and_digest(unlike: FleetReport) -> None:
    text = terminal(unlike)
    for machine in unlike.machines:
        assert text.count(machine.digest) == 1
    assert re.search(r"│ mixed_float16 +│ training +│ 0\.25× \(0\.2\d to 0\.2\d\) +│.* reject", text)
    assert "−0.25 (" in text
    assert max(map(len, text.splitlines())) <= 140


def test_same_device_is_told_apart_by_its_digest(project: SmallStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure(project, "CPU 1")
    monkeypatch.setattr(
        "tests.fleet.report.machine_results.DESCRIPTION",
        ENVIRONMENT | {"settings": {"TF_NUM_INTRAOP_THREADS": "1"}},
    )
    project.scale_times(FAST, "rounds.csv", 2)
    second = measure(project, "CPU 1")
    found = combine(read_machines())
    assert f"reject on CPU 1 ({second.name})" in statement(found, FAST)
    page = render_html(found)
    assert re.search("<dt>settings.TF_NUM_INTRAOP_THREADS</dt><dd>1</dd>", page)
    assert f"`{second.name}` differs from the others: settings.TF\\_NUM\\_INTRAOP" in render_markdown(found)
    assert first.name in page


def test_page_opens_offline_and_escapes(project: SmallStudy) -> None:
    measure(project, "<b>CPU</b> 1")
    measure(project, "CPU 2")
    page = render_html(combine(read_machines()))
    assert not re.search(r"<script|<link|https?://|<b>|url\(", page)
    assert page.count("<article") == 3
    assert "&lt;b&gt;CPU&lt;/b&gt; 1" in page


def test_files_are_written_and_read_back(unlike: FleetReport) -> None:
    write_report(unlike)
    assert FleetReport.read(REPORT) == unlike
    markdown = REPORT.with_suffix(".md").read_text()
    assert len([line for line in markdown.splitlines() if line.startswith("| CPU ")]) == len(unlike.rows)
    assert REPORT.with_suffix(".html").read_text().startswith("<!doctype html>")


def test_report_runs_without_ray(alike: FleetReport, root: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None; sys.argv = ['fleet', 'report']\n"
        "from stages.fleet.__main__ import main; status = main()\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules), 'TensorFlow is imported'; raise SystemExit(status)"
    )
    variables = os.environ | {"PYTHONPATH": str(root), "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "adopt on all of them" in done.stdout
    assert sorted(path.name for path in files.FLEET.glob("report.*")) == ["report.html", "report.json", "report.md"]


def test_report_prints_the_table(alike: FleetReport, capsys: pytest.CaptureFixture[str]) -> None:
    report()
    assert "data/fleet/report.html has the charts" in capsys.readouterr().out
