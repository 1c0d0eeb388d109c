"""The stage as a whole: its files, its runs in the tracking store, and its exit status."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.report.markdown import render_markdown
from halfstep.results import comparison as document
from halfstep.results.comparison import COMPARISON
from halfstep.system import files
from stages.compare import main
from tests.small_study import CONFIGURATION, SmallStudy, write_results_of


def test_results_are_written_to_the_files_of_the_contract(comparison: Judging) -> None:
    result = write_results_of(comparison)
    paths = sorted(path.relative_to(files.COMPARE).as_posix() for path in files.COMPARE.rglob("*") if path.is_file())
    assert paths == [
        "comparison.json",
        "metrics.json",
        "plots/latency.csv",
        "plots/score_by_epoch.csv",
        "plots/speedups.csv",
        "plots/step_breakdown.csv",
        "report.html",
    ]
    assert document.Comparison.read(COMPARISON) == result == document_of(comparison)


def test_failed_baseline_has_a_report(project: SmallStudy) -> None:
    project.edit_training("float32", 2, status="failed", reason="the loss is inf")
    write_results_of(project.compare())
    assert "the loss is inf" in (files.COMPARE / "report.html").read_text()


@pytest.fixture
def configure(project: SmallStudy, store_template: Path, write_params: Callable[..., Path]) -> Callable[..., None]:
    """Gives an empty store, and writes parameters for one candidate that is rejected."""
    shutil.copy(store_template, "mlflow.db")
    for name in ("class_counts.csv", "rejected.csv"):
        (files.PREPARED / name).write_bytes(b"")
    files.write_manifest(files.PREPARED)

    def write(**compare: Any) -> None:
        variants = {name: {"policy": name} for name in ("float32", "mixed_float16")}
        write_params(variants=variants, train={"variants": list(variants), "seeds": [1]}, compare=compare)

    return write


def test_table_is_printed_in_ascii(configure: Callable[..., None], root: Path) -> None:
    configure()
    done = subprocess.run(
        [sys.executable, "-m", "stages.compare"],
        env=os.environ | {"PYTHONPATH": str(root), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    assert "accuracy, %" in text
    assert " (-" in text
    assert "\\u" not in text
    assert "?" not in text


def _client() -> MlflowClient:
    return MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")


def _compare_runs() -> list[Run]:
    experiment = _client().get_experiment_by_name("mixed-precision")
    assert experiment is not None
    return list(_client().search_runs([experiment.experiment_id], "tags.stage = 'compare'"))


def test_failed_gate_leaves_files_and_one_finished_run(
    configure: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    configure(gate=True)
    assert main() == 1
    assert "compare.gate: no candidate was adopted (mixed_float16 reject)" in capsys.readouterr().err
    assert (files.COMPARE / "report.html").is_file()
    (run,) = _compare_runs()
    assert (run.info.status, run.data.tags["gate"]) == ("FINISHED", "failed")
    assert run.data.tags["verdict.mixed_float16"] == "reject"
    assert run.data.tags["mlflow.note.content"] == render_markdown(document.Comparison.read(COMPARISON))
    logged = {item.path for item in _client().list_artifacts(run.info.run_id)}
    assert {"report.html", "comparison.json", "plots"} <= logged

    assert main() == 1  # the same result
    assert len(_compare_runs()) == 1

    configure(gate=False)
    assert main() == 0
    assert sorted(run.data.tags.get("gate", "none") for run in _compare_runs()) == ["failed", "none"]


def test_refused_comparison_is_a_failed_run(
    project: SmallStudy, configure: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    configure()
    project.edit_profile("mixed_float16", configuration=CONFIGURATION.model_copy(update={"optimizer": "sgd"}))
    assert main() == 1
    assert "'mixed_float16' was not measured like 'float32'" in capsys.readouterr().err
    assert [run.info.status for run in _compare_runs()] == ["FAILED"]
    assert not (files.COMPARE / "comparison.json").exists()


def test_what_is_printed_ends_with_the_answer_and_fits_into_80_columns(
    configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    configure()
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "Report     data/compare/report.html"
    assert len(lines) < 20


def test_parameter_that_is_edited_meanwhile(
    configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def edited(*arguments: Any) -> document.Comparison:
        text = Path("params.yaml").read_text().replace("min_speedup: 1.05", "min_speedup: 1.5")
        Path("params.yaml").write_text(text)
        return document_of(*arguments)

    configure(min_speedup=1.05)
    monkeypatch.setattr("halfstep.compare.stage.document_of", edited)
    assert main() == 1
    assert "compare: compare.min_speedup (1.05, now 1.5) changed while the stage ran" in capfd.readouterr().err
    assert not COMPARISON.exists()
    monkeypatch.setattr("halfstep.compare.stage.document_of", document_of)
    assert main() == 0
