"""The verdicts in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halfstep.compare.case import Case, Judging
from halfstep.compare.document import judged
from halfstep.compare.words import verdict_sentence
from halfstep.params import CompareParams
from halfstep.results.comparison import Reason, VerdictTest
from halfstep.stats.proportions import BinaryChange
from tests.small_study import BRIDGE, SmallStudy, given


def _sentence(comparison: Judging, number: int = 1, **changes: Any) -> str:
    return verdict_sentence(given(comparison.cases[number], **changes))


def _with_measured(project: SmallStudy, *, settings: float, precision: float) -> Judging:
    """The study with these factors of mixed_float16's speed-ups of training."""
    project.scale_times(BRIDGE, "rounds.csv", 0.8 / settings)
    project.scale_times("mixed_float16", "rounds.csv", 0.25 / (settings * precision))
    return project.compare()


@pytest.mark.parametrize(
    ("verdicts", "clause"),
    [
        (("adopt", "adopt", "adopt"), "within 1 percentage point. Use it for inference too."),
        (("adopt", "reject", "adopt"), " Inference: use it at batch size 32; do not use it at batch size 1."),
        (("adopt", "reject", "reject"), " Inference: do not use it at batch size 1 and 32."),
        (("adopt", "inconclusive", "reject"), " Inference: do not use it at batch size 32; undecided at batch size 1."),
    ],
)
def test_training_and_inference_may_differ(comparison: Judging, verdicts: tuple[str, ...], clause: str) -> None:
    sentence = _sentence(comparison, verdicts=dict(zip(comparison.cases[1].verdicts, verdicts, strict=True)))
    assert sentence.endswith(clause)
    assert sentence.startswith(
        f"Use mixed_bfloat16{' for training' if len(set(verdicts)) > 1 else ''}: a training step takes 38 %"
    )


def test_sentence_of_an_adoption_is_about_the_time(comparison: Judging) -> None:
    assert _sentence(comparison) == (
        "Use mixed_bfloat16: a training step takes 38 % less time (speed-up 1.60×, 1.55 to 1.65), and the accuracy is "
        "the same within 1 percentage point. Use it for inference too."
    )


def test_one_seed_does_not_make_the_accuracy_the_same(project: SmallStudy) -> None:
    judging = judged(project.load(seeds=(1,), variants=("float32", "mixed_bfloat16")), CompareParams())
    sentence = _sentence(judging, 0)
    assert judging.cases[0].verdict == "adopt"
    assert "the same" not in sentence
    assert "and with one seed the accuracy changes by −0.25 (−0." in sentence
    assert ") percentage points, within the margin of 1. Use it for inference too." in sentence
    assert "the accuracy is the same within" in _sentence(judged(project.load(seeds=(1, 2)), CompareParams()))


def test_sentence_of_an_inconclusive_verdict_names_what_is_open(project: SmallStudy) -> None:
    sentence = _sentence(project.compare(quality_margin=0.002, min_speedup=1.6))
    assert "mixed_bfloat16 is undecided: its speed-up, 1.60× (1.55 to 1.65), is not clearly above 1.6×" in sentence
    assert "so it may lose more than 0.2 percentage points" in sentence


def test_sentence_says_that_the_baseline_is_tf32(comparison: Judging) -> None:
    def sentence(percent: float) -> str:
        evidence = {"baseline_compute_tf32_percent": percent, "baseline_tf32": True}
        reason = Reason(code="baseline_is_tf32", text="", evidence=evidence, advice="")
        return _sentence(comparison, reasons=(reason,))

    expected = "float32 uses TF32 on tensor cores here: a variant with tf32: false measures true float32."
    assert sentence(80.0).endswith(expected)
    assert "TF32" not in sentence(0.0)  # it only may be, where the kernels' names do not show it
    assert "TF32" not in _sentence(comparison)


def test_parts_that_are_shown_by_themselves_may_be_open_together(comparison: Judging) -> None:
    verdicts = {"train": "inconclusive"}
    sentence = _sentence(comparison, verdicts=verdicts, tests={"train": VerdictTest(p=0.03, p_adjusted=0.18)})
    assert "would each pass alone, but not together with the other verdicts: all 6 of this report share" in sentence


def test_void_training_is_undecided(comparison: Judging) -> None:
    void = given(comparison, differing=frozenset({"train"}))
    sentence = _sentence(void, verdicts={"train": "inconclusive"})
    assert "the two copies of float32 differ by more than noise, 1.00× (" in sentence
    assert "so these times decide nothing" in sentence


def test_sentence_of_a_rejection_names_the_required_speedup(project: SmallStudy) -> None:
    sentence = _sentence(project.compare(min_speedup=2.0))
    assert (
        "a training step takes 38 % less time (speed-up 1.60×, 1.55 to 1.65), so it cannot reach the 2× you asked for"
        in sentence
    )


def test_sentence_of_a_slower_candidate(comparison: Judging) -> None:
    assert _sentence(comparison, 0).startswith(
        "Do not use mixed_float16: a training step takes 4.0 times as long (speed-up 0.25×, 0.24 to 0.26). "
    )


def test_sentence_of_a_rejection_names_the_lost_accuracy(comparison: Judging) -> None:
    quality = comparison.cases[1].quality
    assert isinstance(quality, BinaryChange)
    correct = quality.candidate_correct.copy()
    correct[:, :120] = False
    sentence = _sentence(comparison, quality=replace(quality, candidate_correct=correct), verdicts={"train": "reject"})
    assert "it loses 8.00 percentage points of accuracy, more than 1 percentage point" in sentence


def test_gain_of_the_settings_is_no_gain_of_the_precision(project: SmallStudy) -> None:
    sentence = _sentence(_with_measured(project, settings=1.34, precision=1.0), 0)
    assert "of its speed-up of 1.34× (1.3" in sentence
    assert "the precision itself brings 1.00× (" in sentence
    assert "less than the 1.05× you asked for" in sentence
    assert sentence.endswith(
        "In training, `onednn: false` alone makes a step 1.34× as fast; the precision adds nothing measurable (1.00×). "
        "Try float32 with `onednn: false`."
    )


def test_factor_that_is_open_is_named(project: SmallStudy) -> None:
    comparison = _with_measured(project, settings=1.34, precision=1.05)
    candidate: Case = comparison.cases[0]
    assert candidate.verdict == "inconclusive"
    sentence = verdict_sentence(candidate)
    assert "what the precision itself brings, 1.05× (" in sentence
    assert "makes a step 1.34× as fast; whether the precision adds to it is not clear (1.05×)." in sentence


def test_settings_that_gain_where_the_whole_loses_are_named(project: SmallStudy) -> None:
    sentence = _sentence(_with_measured(project, settings=1.34, precision=0.5), 0)
    assert (
        "`onednn: false` alone makes a step 1.34× as fast; with the precision, no gain is clear (0.67×). Try"
        in sentence
    )


def test_precision_that_pays_needs_no_other_settings(project: SmallStudy) -> None:
    sentence = _sentence(_with_measured(project, settings=1.34, precision=1.5), 0)
    assert sentence.startswith("Use mixed_float16 for training: a training step takes 50 % less time")
    assert "ry float32" not in sentence
