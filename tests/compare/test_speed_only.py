"""The comparison where nothing was trained (`train.epochs: 0`): speed only, and no word on quality."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient
from rich.console import Console

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.gate import gate_of
from halfstep.compare.ratio_text import SPEED_ONLY_NOTE, SYNTHETIC_NOTE
from halfstep.compare.words import verdict_sentence
from halfstep.errors import ComparisonError
from halfstep.params.schema import CompareParams
from halfstep.system import files
from stages.compare import main
from tests.small_study import SPEEDUPS, SmallStudy, html_of, sentences, settings_in_force, terminal_of, write_results_of
from tests.tracked_runs import by_name

RATIO = SPEEDUPS["mixed_bfloat16"]  # 1.6


@pytest.fixture
def speed_only(project: SmallStudy) -> SmallStudy:
    project.make_speed_only()
    return project


def terminal(comparison: Judging) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(terminal_of(comparison))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_verdicts_are_faster_and_slower(speed_only: SmallStudy) -> None:
    slow, fast = speed_only.compare_speed_only().cases
    assert set(slow.verdicts.values()) == {"slower"}
    assert set(fast.verdicts.values()) == {"faster"}
    assert (fast.quality, fast.same_weights, fast.tests) == (None, None, {})
    assert fast.speedups["train"].ratio == pytest.approx(RATIO)


def test_note_replaces_that_on_synthetic_images(speed_only: SmallStudy) -> None:
    speed_only.make_synthetic()
    comparison = speed_only.compare_speed_only()
    for text in (html_of(comparison), " ".join(terminal(comparison).split())):
        assert SPEED_ONLY_NOTE in text
        assert SYNTHETIC_NOTE not in text


def test_gain_of_the_settings_is_not_called_faster(speed_only: SmallStudy) -> None:
    speed_only.scale_times("mixed_float16", "rounds.csv", SPEEDUPS["mixed_float16"] / 1.4)
    speed_only.scale_times("_bridge_onednn_off", "rounds.csv", SPEEDUPS["_bridge_onednn_off"] / 1.5)
    comparison = speed_only.compare_speed_only()
    candidate = comparison.cases[0]
    assert candidate.verdict == "inconclusive"
    sentence = verdict_sentence(candidate)
    assert "is not faster as required: of its speed-up of 1.40×" in sentence
    assert (
        "In training, `onednn: false` alone makes a step 1.50× as fast; the precision adds nothing measurable"
        in sentence
    )
    assert (sentences(candidate)) == ()


def test_speedup_is_open_exactly_where_its_low_end_misses_the_required_one(speed_only: SmallStudy) -> None:
    low = speed_only.compare_speed_only().cases[1].speedups["train"].low
    for required, verdict in ((low - 1e-9, "faster"), (low + 1e-9, "inconclusive")):
        comparison = speed_only.compare_speed_only(min_speedup=required)
        fast = comparison.cases[1]
        assert fast.verdict == verdict
        is_open = any(sentence.startswith("Training step") for sentence in sentences(fast))
        assert is_open == (verdict == "inconclusive")


def test_nothing_is_adopted(speed_only: SmallStudy) -> None:
    candidates = document_of(speed_only.compare_speed_only()).candidates
    gate = gate_of(candidates, (), (), CompareParams(gate=True))
    assert gate.text == "no candidate was adopted (mixed_float16 slower, mixed_bfloat16 faster)"


def test_trained_and_untrained_variants_are_not_compared(project: SmallStudy) -> None:
    project.edit_training("mixed_bfloat16", 2, status="not_trained")
    expected = r"'mixed_bfloat16', seed 2, was not trained like .* \(status not_trained instead of finished\)"
    with pytest.raises(ComparisonError, match=expected):
        project.compare()


def test_tables_of_the_plots_have_headers_only_where_a_training_is_needed(speed_only: SmallStudy) -> None:
    write_results_of(speed_only.compare_speed_only())
    rows = {path.stem: len(pd.read_csv(path)) for path in (files.COMPARE / "plots").iterdir()}
    assert rows.pop("score_by_epoch") == 0
    assert set(rows) == {"step_breakdown", "latency", "speedups"}
    assert all(rows.values())


def test_runs_are_logged_from_the_files(
    speed_only: SmallStudy, store_template: Path, write_params: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(store_template, "mlflow.db")
    for name in ("class_counts.csv", "rejected.csv"):
        (files.PREPARED / name).write_bytes(b"")
    files.write_manifest(files.PREPARED)
    variants = {name: {"policy": name} for name in ("float32", "mixed_bfloat16")}
    write_params(variants=variants, train={"variants": list(variants), "seeds": [1], "epochs": 0})
    assert main() == 0
    assert "; accuracy not measured" in capsys.readouterr().out
    assert SPEED_ONLY_NOTE in (files.COMPARE / "report.html").read_text(encoding="utf-8")

    client = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    experiment = client.get_experiment_by_name("mixed-precision")
    assert experiment is not None
    runs = by_name(client.search_runs([experiment.experiment_id]))
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    training, profile, compare = runs["train float32 seed 1"], runs["float32"], runs["compare"]
    assert training.data.tags["mlflow.note.content"] == "Not trained: speed only."
    assert (training.data.metrics, training.data.params["train.epochs"]) == ({}, "0")
    assert [item.path for item in client.list_artifacts(training.info.run_id)] == ["metrics.json"]
    assert "test_accuracy" not in profile.data.metrics
    assert (compare.data.tags["speed_only"], compare.data.tags["verdict.mixed_bfloat16"]) == ("true", "faster")
    assert "faster, speed only" in compare.data.tags["mlflow.note.content"]

    assert main() == 0  # nothing is logged twice
    assert len(client.search_runs([experiment.experiment_id])) == len(runs)


def test_releases_of_another_interpreter_are_named(project: SmallStudy) -> None:
    in_force = settings_in_force("mixed_bfloat16", python="Python 3.11.7, TensorFlow 2.20.0")
    project.edit_profile("mixed_bfloat16", in_force=in_force)
    judging = project.compare()
    sentence = verdict_sentence(judging.cases[1])
    assert sentence.startswith("mixed_bfloat16 (in Python 3.11.7, TensorFlow 2.20.0) is undecided: ")


def test_layers_that_refuse_16_bits_are_named(project: SmallStudy) -> None:
    plain = verdict_sentence(project.compare().cases[1])
    assert plain.startswith("Use mixed_bfloat16")
    for layers, clause in (
        (("norm",), " (with norm in float32; it refuses bfloat16)"),
        (("norm", "top"), " (with norm and top in float32; they refuse bfloat16)"),
    ):
        project.edit_task(refusals={"mixed_bfloat16": layers})
        judging = project.compare()
        sentence = verdict_sentence(judging.cases[1])
        assert sentence == plain.replace("mixed_bfloat16", f"mixed_bfloat16{clause}", 1)
