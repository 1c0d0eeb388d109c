"""The report and the terminal table: complete, self-contained, and escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from stages import files
from stages.compare.charts import Axis, accuracy_chart
from stages.compare.comparison import Comparison, compare
from stages.compare.operations import OperationChange
from stages.compare.plots import plot_tables
from stages.compare.report import render_report
from stages.compare.table import render
from stages.compare.wording import SYNTHETIC_NOTE, signed_points, verdict_sentence
from stages.params import CompareParams

VOID = {"meta", "br", "img", "link", "input", "hr"}


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _text(html: str) -> str:
    parser = _Balance()
    parser.feed(html)
    assert parser.open == []
    return " ".join(" ".join(parser.text).split())


def _terminal(comparison: Comparison) -> str:
    console = Console(width=160, record=True, force_terminal=False)
    console.begin_capture()
    console.print(render(comparison))
    return console.end_capture()


def test_report_opens_offline(comparison: Comparison) -> None:
    html = render_report(comparison)
    assert not re.search(r"(?:src|href)=|url\(|@import|<script|https?://", html)


def test_report_says_the_verdict_before_everything_else(comparison: Comparison) -> None:
    text = _text(render_report(comparison))
    sentence = verdict_sentence(comparison.candidates[1], comparison)
    assert sentence in text
    assert text.index(sentence) < text.index("Time of float32")


@pytest.mark.parametrize(
    "expected",
    [
        "1.60× (1.58 to 1.62)",
        "Conv2D",
        "emulated_float16",
        "peak memory",
        "noise floor 1.5 %",
        "Test CPU 9000",
        "tensorflow",
        "mixed_bfloat16 saves 30.0 MiB, 14% of it.",
        "Time to accuracy",
        "3 seeds: this holds for other test images and for other seeds",
        "no loss of more than 1 percentage point is shown",
        "mixed_float16: lost",
        "float32 → float16",
        "confidence of each interval",
    ],
)
def test_report_holds(comparison: Comparison, expected: str) -> None:
    assert expected in _text(render_report(comparison))


def test_report_escapes_what_it_is_given(project: Any) -> None:
    path = files.profile_dir("mixed_bfloat16") / "summary.json"
    project.edit(path, warnings=["<script>alert(1)</script>"])
    html = render_report(project.compare())
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_one_seed_is_about_two_trainings(project: Any) -> None:
    comparison = compare(project.load(seeds=(1,), variants=("float32", "mixed_bfloat16")), CompareParams())
    text = _text(render_report(comparison))
    assert "this is about these two trainings, not about the recipe" in text
    assert "0 images only it gets right and 1 only the baseline (McNemar's exact test: p = 1)" in text


def test_same_weights_tell_arithmetic_from_training(project: Any) -> None:
    same = {"images": 400, "agreement": 0.995, "max_probability_difference": 0.013, "accuracy": 0.98}
    project.edit(files.profile_dir("mixed_bfloat16") / "summary.json", same_weights=same)
    text = _text(render_report(project.compare()))
    assert "give the same class for 99.50 % of 400 test images" in text
    assert "of the −0.25 points of accuracy, −0.25 come from the arithmetic and 0.00 from" in text


def test_how_it_was_measured_and_what_ended_it(project: Any) -> None:
    path = files.profile_dir("float32") / "summary.json"
    told = {"confidence": 0.965, "timing_seconds": 31.6, "ended_by": "max_seconds", "other_load_cores": 0.25}
    project.edit(path, protocol=told)
    text = _text(render_report(project.compare()))
    assert "the time was up (profile.max_seconds)" in text
    assert "96.5 %, so that 95 % hold with all looks" in text
    assert "cores kept busy by other programs 0.25" in text


def test_the_course_of_the_loss_scale_is_drawn(project: Any) -> None:
    assert "Health of float16" not in render_report(project.compare())
    folder = files.train_dir("mixed_float16", 1)
    table = pd.read_csv(folder / "history.csv").assign(loss_scale=32768.0, skipped_steps=1)
    table.to_csv(folder / "history.csv", index=False)
    files.write_manifest(folder)
    html = render_report(project.compare())
    assert "Loss scale at the end of each epoch" in html
    assert "mixed_float16, seed 1: the loss scale went from 32,768 to 32,768; 5 steps skipped" in _text(html)


def test_the_larger_batch_that_fits_and_the_limit_are_told(project: Any) -> None:
    for name, size in (("float32", 512.0), ("mixed_bfloat16", 896.0)):
        path = files.profile_dir(name) / "summary.json"
        project.edit(path, metrics=files.read_json(path)["metrics"] | {"memory/max_batch_size": size})
    found = project.compare()
    candidate = replace(found.candidates[1], limit=1.89)
    text = _text(render_report(replace(found, candidates=(candidate,))))
    assert "The largest batch that fits is 896 images with mixed_bfloat16, 512 with float32." in text
    assert "1.60× (1.58 to 1.62) of at most 1.89×" in text


def test_accuracy_by_epoch_shows_each_seed(comparison: Comparison) -> None:
    chart = accuracy_chart(plot_tables(comparison)["accuracy_by_epoch"])
    assert chart is not None
    assert len(chart.labelled) == 3
    assert len(chart.lines) == 3 * (1 + 3)


@pytest.mark.parametrize(
    ("verdicts", "clause"),
    [
        (("adopt", "adopt", "adopt"), "within 1 percentage point; use it for inference too."),
        (("adopt", "reject", "adopt"), "; for inference, use it at batch size 32 and do not use it at batch size 1."),
        (("adopt", "reject", "reject"), "; for inference, do not use it at batch size 1 and 32."),
        (("adopt", "inconclusive", "reject"), "do not use it at batch size 32 and it is not decided at batch size 1."),
    ],
)
def test_training_and_inference_may_differ(comparison: Comparison, verdicts: tuple[str, ...], clause: str) -> None:
    named: Any = dict(zip(comparison.candidates[1].verdicts, verdicts, strict=True))
    sentence = verdict_sentence(replace(comparison.candidates[1], verdicts=named), comparison)
    assert sentence.endswith(clause)
    assert sentence.startswith(
        "Use mixed_bfloat16 for training: it" if len(set(verdicts)) > 1 else "Use mixed_bfloat16:"
    )


def test_names_of_classes_and_layers_are_escaped(comparison: Comparison) -> None:
    change = OperationChange("<b>layer", "Conv2D", 1.0, 2.0, "float32", "<i>half")
    html = render_report(
        replace(comparison, candidates=(replace(comparison.candidates[1], operation_changes=(change,)),))
    )
    assert "&lt;b&gt;layer" in html
    assert "<i>half" not in html


def test_a_run_on_synthetic_images_says_so_at_the_top(project: Any) -> None:
    assert SYNTHETIC_NOTE not in render_report(project.compare())
    project.make_synthetic()
    text = _text(render_report(project.compare()))
    assert text.index(SYNTHETIC_NOTE) < text.index("Use mixed_bfloat16")
    assert SYNTHETIC_NOTE in _terminal(project.compare())


def test_terminal_table(comparison: Comparison) -> None:
    shown = _terminal(comparison)
    assert "1.60× (1.58 to 1.62)" in shown
    assert "Use mixed_bfloat16: training runs at 1.60×" in shown
    assert "Do not use mixed_float16: training takes 4.0 times as long" in shown
    assert "float16 could not be compared. 3 of 3 trainings" in shown


def test_sentence_of_an_open_question_says_what_is_open(project: Any) -> None:
    comparison = project.compare(accuracy_margin=0.002, min_speedup=1.6)
    sentence = verdict_sentence(comparison.candidates[1], comparison)
    assert "not clearly above 1.60×" in sentence
    assert "does not exclude a loss of more than 0.2 percentage points" in sentence


def test_report_without_any_measurement_of_a_kind_leaves_its_section_out(project: Any) -> None:
    for name in ("float32", "mixed_float16", "mixed_bfloat16"):
        path = files.profile_dir(name) / "summary.json"
        kept = {key: value for key, value in files.read_json(path)["metrics"].items() if key.startswith("step_time_ms")}
        project.edit(path, metrics=kept, operations=[])
    text = _text(render_report(project.compare()))
    assert "Memory" not in text
    assert "Where a training step spends its time" not in text
    assert "Operations before" not in text
    assert "Inference latency" in text


@pytest.mark.parametrize(("fraction", "text"), [(-0.0025, "−0.25"), (0.01, "+1.00"), (0.0, "0.00"), (-0.00001, "0.00")])
def test_signed_points(fraction: float, text: str) -> None:
    assert signed_points(fraction) == text


def test_axis_places_values_and_ticks_inside() -> None:
    axis = Axis.around([0.25, 4.0], logarithmic=True)
    assert axis.at(1.0) == pytest.approx(50.0)
    assert axis.at(0.0001) == 0.0
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks())
    assert 1 in axis.ticks()
    assert Axis(-0.011, 0.006).ticks(4) == [-0.01, -0.005, 0.0, 0.005]
