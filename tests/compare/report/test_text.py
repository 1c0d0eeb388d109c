"""Verdicts and numbers as text, and the terminal's table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from stages.compare.comparison import Comparison
from stages.compare.report.terminal import render
from stages.compare.report.text import SYNTHETIC_NOTE, signed_points, verdict_sentence
from tests.small_study import SmallStudy


def _terminal(comparison: Comparison) -> str:
    console = Console(width=160, record=True, force_terminal=False)
    console.begin_capture()
    console.print(render(comparison))
    return console.end_capture()


@pytest.mark.parametrize(
    ("verdicts", "clause"),
    [
        (("adopt", "adopt", "adopt"), "within 1 percentage point; use it for inference too."),
        (("adopt", "reject", "adopt"), "; for inference, use it at batch size 32 and do not use it at batch size 1."),
        (("adopt", "reject", "reject"), "; for inference, do not use it at batch size 1 and 32."),
        (("adopt", "inconclusive", "reject"), "do not use it at batch size 32 and it is undecided at batch size 1."),
    ],
)
def test_training_and_inference_may_differ(comparison: Comparison, verdicts: tuple[str, ...], clause: str) -> None:
    named: Any = dict(zip(comparison.candidates[1].verdicts, verdicts, strict=True))
    sentence = verdict_sentence(replace(comparison.candidates[1], verdicts=named), comparison)
    assert sentence.endswith(clause)
    assert sentence.startswith(
        "Use mixed_bfloat16 for training: it" if len(set(verdicts)) > 1 else "Use mixed_bfloat16:"
    )


def test_sentence_of_an_inconclusive_verdict_names_what_is_open(project: SmallStudy) -> None:
    comparison = project.compare(quality_margin=0.002, min_speedup=1.6)
    sentence = verdict_sentence(comparison.candidates[1], comparison)
    assert "mixed_bfloat16 is undecided: its speed of 1.60× (1.58 to 1.62) is not clearly above 1.60×" in sentence
    assert "does not exclude a loss of more than 0.2 percentage points" in sentence


def test_sentence_of_a_rejection_names_the_required_speedup(project: SmallStudy) -> None:
    comparison = project.compare(min_speedup=2.0)
    sentence = verdict_sentence(comparison.candidates[1], comparison)
    assert "training runs at 1.60× (1.58 to 1.62) the speed, below the required 2×" in sentence


def test_sentence_of_a_rejection_names_the_lost_accuracy(project: SmallStudy) -> None:
    comparison = project.compare()
    candidate = comparison.candidates[1]
    assert candidate.quality is not None
    correct = candidate.quality.candidate_correct.copy()
    correct[:, :40] = False
    quality = replace(candidate.quality, candidate_correct=correct)
    sentence = verdict_sentence(replace(candidate, quality=quality, verdicts={"train": "reject"}), comparison)
    assert "it loses 8.00 percentage points of accuracy, more than 1 percentage point" in sentence


@pytest.mark.parametrize(("fraction", "text"), [(-0.0025, "−0.25"), (0.01, "+1.00"), (0.0, "0.00"), (-0.00001, "0.00")])
def test_signed_points(fraction: float, text: str) -> None:
    assert signed_points(fraction) == text


def test_terminal_table(comparison: Comparison) -> None:
    shown = _terminal(comparison)
    assert "1.60× (1.58 to 1.62)" in shown
    assert "Use mixed_bfloat16: training runs at 1.60×" in shown
    assert "Do not use mixed_float16: training takes 4.0 times as long" in shown
    assert "float16 could not be compared. 3 of 3 trainings" in shown


def test_terminal_notes_synthetic_images(project: SmallStudy) -> None:
    assert SYNTHETIC_NOTE not in _terminal(project.compare())
    project.make_synthetic()
    assert SYNTHETIC_NOTE in _terminal(project.compare())


def test_terminal_notes_a_small_test_set(project: SmallStudy) -> None:
    assert "Note: " not in _terminal(project.compare())
    assert "Note: 400 test images cannot show compare.quality_margin 0.002" in _terminal(
        project.compare(quality_margin=0.002)
    )
