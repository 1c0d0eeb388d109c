"""Training steps that wait for their input: what no precision can bring is rejected, and not called open."""

from __future__ import annotations

import pytest

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.notes import notes
from halfstep.compare.words import verdict_sentence
from tests.small_study import SmallStudy, html_of, sentences


def _compared(project: SmallStudy, cached_ms: float, ratio: float = 1.02, spread: float = 1.3) -> Judging:
    """The study with a noisy ratio of training around 1, and a step of 137 ms, of which all but `cached_ms` waits."""
    project.scale_times("mixed_bfloat16", "rounds.csv", 1.6 / ratio)
    project.spread_processes("mixed_bfloat16", "rounds.csv", spread)
    project.wait_for_input("float32", step_ms=137.0, cached_ms=cached_ms)
    return project.compare()


def test_task_that_waits_for_its_input_is_not_worth_having(project: SmallStudy) -> None:
    comparison = _compared(project, cached_ms=1.6)
    candidate = comparison.cases[1]
    assert candidate.speedups["train"].low < 1 < 1.05 < candidate.speedups["train"].high
    assert candidate.limit == pytest.approx(1.01, abs=0.01)
    assert candidate.verdicts == {"train": "reject", "inference_b1": "adopt", "inference_b32": "adopt"}
    sentence = verdict_sentence(candidate)
    assert sentence.startswith("Do not use mixed_bfloat16 for training: 13")
    assert (
        " ms of a training step wait for input, so no precision can bring the 1.05× you asked for (speed-up" in sentence
    )
    assert (sentences(candidate)) == ()
    assert sentence in html_of(comparison).replace("&#39;", "'")
    assert [reason.code for reason in comparison.baseline_reasons][:1] == ["input_bound"]
    stored = document_of(comparison).candidates["mixed_bfloat16"].waiting
    assert stored is not None
    assert 1 / stored.low < 1.05


def test_shorter_wait_leaves_the_verdict_open(project: SmallStudy) -> None:
    """90 % of the step waits: a step of which the rest vanished would run at 1.11 times the speed."""
    candidate = _compared(project, cached_ms=13.7).cases[1]
    assert candidate.verdict == "inconclusive"
    assert candidate.limit is not None
    assert 1.01 < candidate.limit < 1.11  # of the rest, only a part becomes faster


def test_wait_that_the_timing_contradicts_rejects_nothing(project: SmallStudy) -> None:
    comparison = _compared(project, cached_ms=1.6, ratio=1.6, spread=1.0)
    assert comparison.cases[1].verdict == "adopt"


def test_wait_below_nothing_is_said_to_be_unknown_and_bounds_nothing(project: SmallStudy) -> None:
    project.scale_times("mixed_bfloat16", "rounds.csv", 1.6 / 1.02)
    project.wait_for_input("float32", step_ms=100.0, cached_ms=130.0)
    comparison = project.compare()
    assert comparison.cases[1].waiting is None
    assert "input_bound" not in [reason.code for reason in comparison.baseline_reasons]
    (note,) = (line for line in notes(comparison) if "waits for its input" in line)
    assert note.startswith(
        "How long a training step of float32 waits for its input is not known: on a cached batch it "
    )
    assert note in html_of(comparison)


def test_other_settings_may_shorten_the_wait(project: SmallStudy) -> None:
    """mixed_float16 runs without oneDNN, so what waits in the baseline bounds nothing of it."""
    project.wait_for_input("float32", step_ms=137.0, cached_ms=1.6)
    assert project.compare().cases[0].waiting is None


def test_waiting_is_not_called_slower_where_nothing_was_trained(project: SmallStudy) -> None:
    project.make_speed_only()
    project.scale_times("mixed_bfloat16", "rounds.csv", 1.6 / 1.02)
    project.spread_processes("mixed_bfloat16", "rounds.csv", 1.3)
    project.wait_for_input("float32", step_ms=137.0, cached_ms=1.6)
    comparison = project.compare_speed_only()
    candidate = comparison.cases[1]
    assert candidate.verdict == "inconclusive"
    assert "is not faster as required: 13" in verdict_sentence(candidate)
    assert (sentences(candidate)) == ()
