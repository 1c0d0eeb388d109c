"""The report on several machines, whose results the code of `profile` has brought home."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halfstep import files
from halfstep.compare.document import document_of
from halfstep.errors import HalfstepError
from halfstep.fleet.driving import Job, Outcome
from halfstep.fleet.profile import _bring_home, alike
from halfstep.fleet.report import REPORT, differences, report, together
from halfstep.gallery import results
from halfstep.gallery.results import Result
from halfstep.params import Params
from halfstep.results.comparison import COMPARISON, VerdictTest
from tests.small_study import ENVIRONMENT, SmallStudy, complete_data, project

__all__ = ["complete_data", "project"]

FAST, SLOW, FAILED = "mixed_bfloat16", "mixed_float16", "float16"
SAME: dict[str, Any] = {"the digest of the code": "c" * 64, "train.epochs": 2}


@pytest.fixture(autouse=True)
def known_release(project: SmallStudy) -> None:
    """A checkout says in this file which release it is."""
    (project.root / "pyproject.toml").write_text('version = "1.0"\n')


def measure(study: SmallStudy, device: str, *, speed_only: bool = False, same: dict[str, Any] | None = None) -> None:
    """Compares what `study` holds as if `device` had measured it."""
    description = ENVIRONMENT | {"device": device}
    files.write_json(files.ENVIRONMENT_FILE, files.with_checksum(description))
    comparison = document_of(study.compare_speed_only() if speed_only else study.compare())
    contents = {str(COMPARISON): json.dumps(comparison.as_json()).encode()}
    _bring_home(Outcome(Job("profile"), "host", 0, "", contents), SAME | (same or {}), 60.0)


def machines() -> list[Result]:
    fleet_results = results.read(lambda one: None, files.FLEET)
    assert not fleet_results.left_out
    return sorted(fleet_results.shown, key=lambda one: one.device)


def statement(candidate: str, machine_results: list[Result] | None = None) -> str:
    lines = together(machine_results or machines())
    return next(line for line in lines if line.startswith(f"{candidate}, training: "))


def test_on_all_of_them_is_each_machines_own_verdict(project: SmallStudy) -> None:
    for device in ("CPU 1", "TPU 2", "GPU 3"):
        measure(project, device)
    assert statement(FAST) == f"{FAST}, training: adopt on all of them, by each machine's own verdict."
    assert statement(SLOW) == f"{SLOW}, training: reject on all of them, by each machine's own verdict."
    assert statement(FAILED) == "float16, training: inconclusive on CPU 1, GPU 3 and TPU 2."


def test_on_at_least_one_shares_the_error_of_all_machines(project: SmallStudy) -> None:
    """Two candidates with three measures on three machines: 18 verdicts."""
    measure(project, "CPU 1")
    project.scale_times(FAST, "rounds.csv", 1.6)
    measure(project, "CPU 2")
    project.scale_times(FAST, "rounds.csv", 1 / 1.6 / 1.05)
    project.spread_processes(FAST, "rounds.csv", 1.3)
    measure(project, "CPU 3")
    text = statement(FAST)
    assert text.startswith("mixed_bfloat16, training: adopt on CPU 1; reject on CPU 2; inconclusive on CPU 3. ")
    assert text.endswith(
        "Corrected for the 18 verdicts of all machines, adopt is shown on at least one of them: CPU 1."
    )
    first, *others = machines()
    assert statement(FAST, [weakened(first, 0.005), *others]).endswith("adopt is not shown on any of them.")


def weakened(one: Result, p: float) -> Result:
    """The machine as if training had this p-value, with the verdict of its own report unchanged."""
    candidate = one.comparison.candidates[FAST]
    tests = (candidate.tests or {}) | {"train": VerdictTest(p=p, p_adjusted=p)}
    candidates = one.comparison.candidates | {FAST: candidate.model_copy(update={"tests": tests})}
    return one.model_copy(update={"comparison": one.comparison.model_copy(update={"candidates": candidates})})


def test_speed_only_says_nothing_of_at_least_one(project: SmallStudy, capsys: pytest.CaptureFixture[str]) -> None:
    project.make_speed_only()
    measure(project, "CPU 1", speed_only=True)
    project.scale_times(FAST, "rounds.csv", 2)
    measure(project, "CPU 2", speed_only=True)
    assert statement(FAST) == "mixed_bfloat16, training: faster on CPU 1; slower on CPU 2."
    report()
    assert "adopt" not in REPORT.read_text() + capsys.readouterr().out


def test_page_and_terminal_have_every_machine(project: SmallStudy, capsys: pytest.CaptureFixture[str]) -> None:
    measure(project, "<b>CPU</b> | 1")
    measure(project, "CPU 2")
    report()
    page, printed = REPORT.read_text(), capsys.readouterr().out
    for one in machines():
        assert f"machine {one.machine}" in printed
    assert len(re.findall(r"^\| .*mixed\\_bfloat16 \|", page, flags=re.MULTILINE)) == 2
    assert "<b>" not in page
    assert REPORT.with_suffix(".svg").read_text().startswith("<?xml")


def test_same_device_is_told_apart(project: SmallStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(project, "CPU 1")
    other = ENVIRONMENT | {"settings": {"TF_NUM_INTRAOP_THREADS": "1"}}
    monkeypatch.setattr("tests.fleet.test_report.ENVIRONMENT", other)
    project.scale_times(FAST, "rounds.csv", 2)
    measure(project, "CPU 1")
    slow = next(one for one in machines() if one.comparison.candidates[FAST].verdict == "reject")
    assert f"reject on CPU 1 ({slow.machine})" in statement(FAST)
    report()
    assert "settings, TF\\_NUM\\_INTRAOP\\_THREADS: 1" in REPORT.read_text()


def test_machines_that_did_not_measure_the_same_are_refused(project: SmallStudy) -> None:
    measure(project, "CPU 1")
    measure(project, "CPU 2", same={"train.epochs": 3})
    (line,) = differences(machines())
    assert line.startswith("data/fleet: train.epochs differs between the machines (2 on ")
    with pytest.raises(HalfstepError, match=r"train\.epochs differs"):
        report()


def test_what_must_be_alike(project: SmallStudy, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/code.py").write_text("1")
    first = alike(Params(), tmp_path / "tree")
    (tmp_path / "tree/dvc.lock").write_text("results, not code")
    assert alike(Params(), tmp_path / "tree") == first
    (tmp_path / "tree/code.py").write_text("2")
    assert alike(Params(), tmp_path / "tree") != first
    assert "train.epochs" in first
    assert not [name for name in first if name.startswith(("tracking.", "fleet."))]


def test_damaged_and_missing_files_are_one_line(project: SmallStudy) -> None:
    with pytest.raises(HalfstepError, match=r"^data/fleet has no machine: run `python -m halfstep fleet profile`$"):
        report()
    measure(project, "CPU 1")
    (path,) = files.FLEET.glob("*/*.json")
    path.write_text(path.read_text().replace('"occasion"', '"word"'))
    with pytest.raises(HalfstepError, match=r"is left out: .*; remove it, or run `python -m halfstep fleet profile`$"):
        report()


def test_report_runs_without_ray(project: SmallStudy, root: Path) -> None:
    measure(project, "CPU 1")
    code = (
        "import sys; sys.modules['ray'] = None; sys.argv = ['fleet', 'report']\n"
        "from halfstep.fleet.command import main; status = main()\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules), 'TensorFlow is imported'; raise SystemExit(status)"
    )
    variables = os.environ | {"PYTHONPATH": str(root), "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "adopt on the one machine that was measured" in done.stdout
