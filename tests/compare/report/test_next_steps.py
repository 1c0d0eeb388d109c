"""The sentences that say how an inconclusive verdict can be settled."""

from __future__ import annotations

import pytest

from stages.compare.report.next_steps import next_steps
from tests.small_study import PROTOCOL, SmallStudy


def test_decided_verdict_needs_nothing(project: SmallStudy) -> None:
    comparison = project.compare()
    for candidate in comparison.candidates[:2]:
        assert next_steps(candidate, comparison) == ()


@pytest.mark.parametrize(
    ("ended_by", "expected"),
    [("max_seconds", "set profile.max_seconds to about "), ("rounds", ", profile.rounds to about ")],
)
def test_open_speedup_names_the_parameters_to_change(project: SmallStudy, ended_by: str, expected: str) -> None:
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"ended_by": ended_by}))
    comparison = project.compare(min_speedup=1.595)
    (sentence,) = next_steps(comparison.candidates[1], comparison)
    assert sentence.startswith("Training, 1.60× (1.58 to 1.62), is neither clearly below nor clearly above 1.595×")
    assert expected in sentence
    assert "; inference, batch 1, 1.60×" in sentence
    assert "profile.target_precision to 0.00" in sentence  # it would end too early otherwise


def test_speedup_at_the_threshold_cannot_be_settled(project: SmallStudy) -> None:
    comparison = project.compare(min_speedup=1.6)
    sentences = next_steps(comparison.candidates[1], comparison)
    assert any("is so close to 1.60× that measuring longer will hardly settle it" in text for text in sentences)


def test_open_quality_names_test_images_or_seeds(project: SmallStudy) -> None:
    comparison = project.compare(quality_margin=0.0075)
    (sentence,) = next_steps(comparison.candidates[1], comparison)
    assert "includes a loss of 0.75 percentage points" in sentence
    assert "test images instead of 400" in sentence


def test_margin_that_can_never_be_shown_is_named(project: SmallStudy) -> None:
    comparison = project.compare(quality_margin=0.002)
    sentences = next_steps(comparison.candidates[1], comparison)
    assert sentences[0].startswith("400 test images cannot show compare.quality_margin 0.002")


def test_quality_is_left_out_if_the_speedup_points_to_reject(project: SmallStudy) -> None:
    """0.25 with a wide interval is inconclusive, but it will not be adopted, whatever the quality is."""
    project.spread_processes("mixed_float16", "rounds.csv", 4.5)
    comparison = project.compare(quality_margin=0.002)
    candidate = comparison.candidates[0]
    assert candidate.verdict == "inconclusive"
    assert [sentence for sentence in next_steps(candidate, comparison) if "accuracy" in sentence] == []
