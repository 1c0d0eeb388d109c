"""A candidate with `trained: false`: its speed is judged, and it is never adopted for training."""

from __future__ import annotations

import pytest

from halfstep.compare.notes import notes
from halfstep.compare.words import verdict_sentence
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.system import files
from tests.small_study import SmallStudy, write_results_of


@pytest.mark.parametrize(
    ("variant", "verdict", "said"),
    [
        ("mixed_float16", "reject", "Do not use mixed_float16: "),
        (
            "mixed_bfloat16",
            "inconclusive",
            "undecided: it was not trained (variants.mixed_bfloat16.trained is false).",
        ),
    ],
)
def test_candidate_that_was_not_trained_is_rejected_by_its_speed_alone(
    project: SmallStudy, variant: str, verdict: str, said: str
) -> None:
    whole = project.compare()
    project.leave_untrained(variant)
    study = project.compare()
    (case,) = [item for item in study.cases if item.variant == variant]
    assert (case.verdicts["train"], case.quality) == (verdict, None)
    assert "train" not in case.tests
    assert said in verdict_sentence(case)
    assert f"{variant} was timed, and not trained." in notes(study)
    (before,) = [item for item in whole.cases if item.variant == variant]
    assert [item.ratio for item in case.speedups.values()] == [item.ratio for item in before.speedups.values()]
    assert case.same_weights is not None
    assert before.same_weights is not None
    assert case.same_weights.delta == before.same_weights.delta
    write_results_of(study)
    found = Comparison.read(COMPARISON)
    assert (found.candidates[variant].verdict, found.candidates[variant].quality) == (verdict, None)
    assert f"{variant} was timed, and not trained." in (files.COMPARE / "report.html").read_text()
