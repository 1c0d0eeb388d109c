"""The comparison where nothing was trained (`train.epochs: 0`): speed only, and no word on quality."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow import MlflowClient
from rich.console import Console

from halfstep import files
from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.gate import gate_of
from halfstep.compare.metrics import dvc_metrics, tracking_metrics, tracking_tags
from halfstep.compare.next_steps import next_steps
from halfstep.compare.report.markdown import render_markdown
from halfstep.compare.text import SPEED_ONLY_NOTE, SYNTHETIC_NOTE
from halfstep.compare.words import verdict_sentence
from halfstep.errors import ComparisonError
from halfstep.params import CompareParams
from stages.compare import main
from tests.small_study import SPEEDUPS, SmallStudy, html_of, settings_in_force, terminal_of, write_results_of

RATIO = SPEEDUPS["mixed_bfloat16"]  # 1.6


@pytest.fixture
def speed_only(project: SmallStudy) -> SmallStudy:
    project.make_speed_only()
    return project


def keys(value: Any) -> Iterator[str]:
    """Every key of nested values."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield str(name)
        yield from keys(inner)
    for inner in value if isinstance(value, list) else ():
        yield from keys(inner)


def terminal(comparison: Judging) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(terminal_of(comparison))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def training_at(speed_only: SmallStudy, ratio: float, spread: float = 1.0, **params: float) -> Judging:
    """The comparison if mixed_bfloat16 trains at this ratio."""
    speed_only.scale_times("mixed_bfloat16", "rounds.csv", RATIO / ratio)
    speed_only.spread_processes("mixed_bfloat16", "rounds.csv", spread)
    return speed_only.compare_speed_only(**params)


def test_verdicts_are_faster_and_slower(speed_only: SmallStudy) -> None:
    slow, fast = speed_only.compare_speed_only().cases
    assert set(slow.verdicts.values()) == {"slower"}
    assert set(fast.verdicts.values()) == {"faster"}
    assert (fast.quality, fast.same_weights, fast.tests) == (None, None, {})
    assert fast.speedups["train"].ratio == pytest.approx(RATIO)


def test_numbers_have_no_quality(speed_only: SmallStudy) -> None:
    comparison = speed_only.compare_speed_only()
    result = document_of(comparison)
    metrics = dvc_metrics(comparison.study, result)
    names = {*keys(result.as_json()), *keys(metrics), *tracking_metrics(result)}
    assert [name for name in names if re.search("quality|accuracy|same_weights|tests", name)] == []
    assert metrics["mixed_bfloat16"]["speedup_train"] == pytest.approx(RATIO)
    assert list(metrics) == ["float32", "mixed_float16", "mixed_bfloat16"]


def test_comparison_json_and_tags_say_that_it_is_speed_only(speed_only: SmallStudy) -> None:
    result = document_of(speed_only.compare_speed_only())
    assert result.as_json()["speed_only"] is True
    assert tracking_tags(result)["speed_only"] == "true"
    assert tracking_tags(result)["verdict.mixed_bfloat16"] == "faster"
    assert tracking_tags(result)["verdict_inference_b1.mixed_float16"] == "slower"


def test_comparison_of_trainings_does_not_say_so(comparison: Judging) -> None:
    result = document_of(comparison)
    assert "speed_only" not in {*keys(result.as_json()), *tracking_tags(result)}
    for text in (html_of(comparison), render_markdown(result), terminal(comparison)):
        assert "speed only" not in text.lower()


def test_every_verdict_stands_beside_the_words_speed_only(speed_only: SmallStudy) -> None:
    comparison = speed_only.compare_speed_only()
    page = html_of(comparison)
    words = re.findall(r'<span class="word[^>]*>([^<]*)<', page)
    assert words == ["slower, speed only", "faster, speed only"]
    verdicts = re.findall(r"<td>((?:faster|slower)[^<]*)</td>", page)
    assert verdicts == ["slower, speed only"] * 3 + ["faster, speed only"] * 3
    markdown = render_markdown(document_of(comparison))
    assert re.findall(r"\*\*mixed\\_\w*: ([^*]*)\.\*\*", markdown) == ["slower, speed only", "faster, speed only"]
    assert "| change | verdict, speed only |" in markdown
    assert "verdict, speed" in terminal(comparison)
    for candidate in comparison.cases:
        assert verdict_sentence(candidate).startswith(f"Speed only: {candidate.variant} is ")


def test_texts_note_that_nothing_was_trained_and_claim_no_quality(speed_only: SmallStudy) -> None:
    comparison = speed_only.compare_speed_only()
    page, markdown = html_of(comparison), render_markdown(document_of(comparison))
    for text in (page, markdown.replace("\\", ""), " ".join(terminal(comparison).split())):
        assert text.count(SPEED_ONLY_NOTE) == 1
        assert "percentage point" not in text
        shown = re.sub("(?s)<style>.*</style>", "", text)
        assert not re.search("(?i)adopt|reject|use mixed", shown)
    assert re.findall("<h[23]>[^<]*[Aa]ccuracy", page) == []


def test_note_replaces_that_on_synthetic_images(speed_only: SmallStudy) -> None:
    speed_only.make_synthetic()
    comparison = speed_only.compare_speed_only()
    for text in (html_of(comparison), " ".join(terminal(comparison).split())):
        assert SPEED_ONLY_NOTE in text
        assert SYNTHETIC_NOTE not in text


def test_sentence_recommends_nothing(speed_only: SmallStudy) -> None:
    comparison = speed_only.compare_speed_only()
    slow, fast = (verdict_sentence(candidate) for candidate in comparison.cases)
    assert re.fullmatch(
        r"Speed only: mixed_bfloat16 is faster: a training step takes 38 % less time \(speed-up 1\.60×, .*\)\. "
        r"Inference is faster too\.",
        fast,
    )
    assert "is slower: a training step takes 4.0 times as long" in slow
    assert "Inference is slower too" in slow


def test_void_measure_decides_nothing(speed_only: SmallStudy) -> None:
    speed_only.scale_times("_control", "rounds.csv", 1.2)
    comparison = speed_only.compare_speed_only()
    fast = comparison.cases[1]
    assert fast.verdicts == {"train": "inconclusive", "inference_b1": "faster", "inference_b32": "faster"}
    sentence = verdict_sentence(fast)
    assert "is undecided: the two copies of float32 differ" in sentence
    assert sentence.endswith("Inference: faster at batch size 1 and 32.")
    (again,) = next_steps(fast)
    assert "measure again" in again


def test_speedup_below_the_required_one_is_not_called_slower(speed_only: SmallStudy) -> None:
    comparison = training_at(speed_only, 1.05, min_speedup=1.1)
    fast = comparison.cases[1]
    assert 1 < fast.speedups["train"].low < fast.speedups["train"].high < 1.1
    assert fast.verdict == "inconclusive"
    assert "is not faster as required: a training step takes 5 % less time" in verdict_sentence(fast)
    assert ", so it cannot reach the 1.1× you asked for. " in verdict_sentence(fast)
    assert tuple(next_steps(fast)) == ()


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
    assert tuple(next_steps(candidate)) == ()


def test_open_speedup_names_processes_and_minutes(speed_only: SmallStudy) -> None:
    comparison = training_at(speed_only, 1.12, spread=1.07)
    fast = comparison.cases[1]
    assert fast.speedups["train"].low < 1.05 < fast.speedups["train"].high
    assert fast.verdict == "inconclusive"
    assert "is undecided: its speed-up, 1.12×" in verdict_sentence(fast)
    cost, how = next_steps(fast)
    assert "times as long (about " in cost
    assert " min) would probably settle it." in cost
    assert how.startswith("To measure that long, set profile.processes to ")


def test_speedup_is_open_exactly_where_its_low_end_misses_the_required_one(speed_only: SmallStudy) -> None:
    low = speed_only.compare_speed_only().cases[1].speedups["train"].low
    for required, verdict in ((low - 1e-9, "faster"), (low + 1e-9, "inconclusive")):
        comparison = speed_only.compare_speed_only(min_speedup=required)
        fast = comparison.cases[1]
        assert fast.verdict == verdict
        is_open = any(sentence.startswith("Training step") for sentence in next_steps(fast))
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
    assert SPEED_ONLY_NOTE in " ".join(capsys.readouterr().out.split())

    client = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    experiment = client.get_experiment_by_name("mixed-precision")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    training, profile, compare = runs["train float32 seed 1"], runs["float32"], runs["compare"]
    assert training.data.tags["mlflow.note.content"] == "Not trained (`train.epochs: 0`): speed only."
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
