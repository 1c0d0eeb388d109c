"""Numbers as text."""

from __future__ import annotations

import pytest

from halfstep.compare.case import Judging
from halfstep.compare.notes import notes
from halfstep.compare.ratio_text import ratio_text, time_text
from tests.small_study import SmallStudy


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.28, "takes 22 % less time"),
        (0.95, "takes 5 % longer"),
        (0.52, "takes 92 % longer"),
        (0.5, "takes 2.0 times as long"),
        (0.25, "takes 4.0 times as long"),
        (4.0, "takes 75 % less time"),
        (1.004, "takes the same time"),
        (0.996, "takes the same time"),
    ],
)
def test_words_are_about_the_time(ratio: float, text: str) -> None:
    assert time_text(ratio) == text


def test_settings_beside_the_policy_are_named(comparison: Judging) -> None:
    assert [case.settings_text for case in comparison.cases] == ["`onednn: false`", "", ""]


def test_repeats_that_disagree_have_an_interval_that_can_be_read(project: SmallStudy) -> None:
    project.scale_times("mixed_bfloat16", "rounds.csv", 0.01)
    project.spread_processes("mixed_bfloat16", "rounds.csv", 30.0)
    judging = project.compare(min_speedup=1.5)
    speedup = judging.cases[1].speedups["train"]
    assert speedup.high > 100
    assert ratio_text(speedup) == f"{speedup.ratio:.2f}× ({speedup.low:.2f} to {speedup.high:,.0f})"
    (note,) = [line for line in notes(judging) if line.startswith("With the noise of this run")]
    assert "counts as shown from a measured over 10× (training) on" in note
