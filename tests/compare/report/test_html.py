"""The HTML report: complete, self-contained and escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from stages.compare.comparison import Comparison, compare
from stages.compare.explain.layer_diff import OpChange
from stages.compare.report.html import render_report
from stages.compare.report.text import SYNTHETIC_NOTE, verdict_sentence
from stages.params import CompareParams
from stages.results.profile import SameWeights, read_profile
from tests.small_study import PROTOCOL, STEP_MS, SmallStudy

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


def _text(comparison: Comparison) -> str:
    """The text of the report, whose tags must be balanced."""
    parser = _Balance()
    parser.feed(render_report(comparison))
    assert parser.open == []
    return " ".join(" ".join(parser.text).split())


def test_report_opens_offline(comparison: Comparison) -> None:
    html = render_report(comparison)
    assert not re.search(r"(?:src|href)=|url\(|@import|<script|https?://", html)


def test_report_starts_with_the_verdicts(comparison: Comparison) -> None:
    text = _text(comparison)
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
        "mixed_bfloat16 needs 30.0 MiB less, 14% of it.",
        "Time to accuracy",
        "3 seeds: the answer applies to other test images and to other seeds",
        "a loss of more than 1 percentage point is excluded",
        "mixed_float16: lost",
        "float32 → float16",
        "confidence of each interval",
    ],
)
def test_report_contains(comparison: Comparison, expected: str) -> None:
    assert expected in _text(comparison)


def test_warnings_are_escaped(project: SmallStudy) -> None:
    project.edit_profile("mixed_bfloat16", warnings=("<script>alert(1)</script>",))
    html = render_report(project.compare())
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_names_of_layers_are_escaped(comparison: Comparison) -> None:
    change = OpChange("<b>layer", "Conv2D", 1.0, 2.0, "float32", "<i>half")
    html = render_report(replace(comparison, candidates=(replace(comparison.candidates[1], op_changes=(change,)),)))
    assert "&lt;b&gt;layer" in html
    assert "<i>half" not in html


def test_one_seed_applies_to_two_trainings_only(project: SmallStudy) -> None:
    study = project.load(seeds=(1,), variants=("float32", "mixed_bfloat16"))
    text = _text(compare(study, CompareParams()))
    assert "One seed: the answer applies to these two trainings." in text
    assert "only the candidate classifies 0 images correctly, only the baseline 1 (McNemar's exact test: p = 1)" in text


def test_same_weights_separate_arithmetic_from_training(project: SmallStudy) -> None:
    same = SameWeights(images=400, agreement=0.995, max_probability_difference=0.013, accuracy=0.98)
    project.edit_profile("mixed_bfloat16", same_weights=same)
    text = _text(project.compare())
    assert "give the same class for 99.50 % of 400 test images" in text
    assert "Of the change of −0.25 points, −0.25 come from the arithmetic and 0.00 from the training." in text


@pytest.mark.parametrize(
    ("ended_by", "text"),
    [
        ("max_seconds", "time budget exhausted (profile.max_seconds)"),
        ("rounds", "all rounds were run (profile.rounds)"),
        ("target_precision", "every interval reached profile.target_precision"),
    ],
)
def test_report_describes_the_measurement(project: SmallStudy, ended_by: str, text: str) -> None:
    changes = {"confidence": 0.965, "timing_seconds": 31.6, "ended_by": ended_by, "other_load_cores": 0.25}
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update=changes))
    shown = _text(project.compare())
    assert f"ended by {text}" in shown
    assert "seconds of timing 32" in shown
    assert "96.5 %, which is 95 % over all looks" in shown
    assert "cores used by other programs 0.25" in shown


def test_loss_scale_is_drawn_if_a_training_has_one(project: SmallStudy) -> None:
    assert "Loss scaling" not in _text(compare(project.load(variants=("float32", "mixed_bfloat16")), CompareParams()))
    comparison = project.compare()
    assert "Loss scale at the end of each epoch" in render_report(comparison)
    assert (
        "mixed_float16, seed 1: the loss scale was 32,768 after the first epoch and 32,768 after the last; "
        "5 steps skipped for overflow." in _text(comparison)
    )


def test_report_contains_the_largest_batch_and_the_limit(project: SmallStudy) -> None:
    for name, size in (("float32", 512.0), ("mixed_bfloat16", 896.0)):
        project.edit_profile(name, metrics=read_profile(name).metrics | {"memory/max_batch_size": size})
    found = project.compare()
    candidate = replace(found.candidates[1], limit=1.89)
    text = _text(replace(found, candidates=(candidate,)))
    assert "The largest batch that fits is 896 images with mixed_bfloat16, 512 with float32." in text
    assert "1.60× (1.58 to 1.62) of at most 1.89×" in text


def test_synthetic_images_are_named_at_the_top(project: SmallStudy) -> None:
    assert SYNTHETIC_NOTE not in render_report(project.compare())
    project.make_synthetic()
    text = _text(project.compare())
    assert text.index(SYNTHETIC_NOTE) < text.index("Use mixed_bfloat16")


def test_sections_without_measurements_are_left_out(project: SmallStudy) -> None:
    for name in ("float32", "mixed_float16", "mixed_bfloat16"):
        metrics = {f"step_time_ms/{key}": STEP_MS for key in ("p50", "p95", "mean")}
        latencies = {f"inference/b{size}/{key}_ms": 1.0 for size in (1, 32) for key in ("p50", "p95")}
        project.edit_profile(name, metrics=metrics | latencies, operations=())
    text = _text(project.compare())
    assert "Memory" not in text
    assert "Where a training step spends its time" not in text
    assert "Operations before" not in text
    assert "Inference latency" in text
