"""The verdicts in words."""

from __future__ import annotations

from typing import Any

from halfstep.compare.case import Judging
from halfstep.compare.words import verdict_sentence
from halfstep.results.comparison import Reason
from tests.small_study import BRIDGE, SmallStudy, given


def _sentence(comparison: Judging, number: int = 1, **changes: Any) -> str:
    return verdict_sentence(given(comparison.cases[number], **changes))


def _with_measured(project: SmallStudy, *, settings: float, precision: float) -> Judging:
    """The study with these factors of mixed_float16's speed-ups of training."""
    project.scale_times(BRIDGE, "rounds.csv", 0.8 / settings)
    project.scale_times("mixed_float16", "rounds.csv", 0.25 / (settings * precision))
    return project.compare()


def test_sentence_says_that_the_baseline_is_tf32(comparison: Judging) -> None:
    def sentence(percent: float) -> str:
        evidence = {"baseline_compute_tf32_percent": percent, "baseline_tf32": True}
        reason = Reason(code="baseline_is_tf32", text="", evidence=evidence, advice="")
        return _sentence(comparison, reasons=(reason,))

    expected = "float32 uses TF32 on tensor cores here: a variant with tf32: false measures true float32."
    assert sentence(80.0).endswith(expected)
    assert "TF32" not in sentence(0.0)  # it only may be, where the kernels' names do not show it
    assert "TF32" not in _sentence(comparison)


def test_gain_of_the_settings_is_no_gain_of_the_precision(project: SmallStudy) -> None:
    sentence = _sentence(_with_measured(project, settings=1.34, precision=1.0), 0)
    assert "of its speed-up of 1.34× (1.3" in sentence
    assert "the precision itself brings 1.00× (" in sentence
    assert "less than the 1.05× you asked for" in sentence
    assert sentence.endswith(
        "In training, `onednn: false` alone makes a step 1.34× as fast; the precision adds nothing measurable (1.00×). "
        "Try float32 with `onednn: false`."
    )


def test_precision_that_pays_needs_no_other_settings(project: SmallStudy) -> None:
    sentence = _sentence(_with_measured(project, settings=1.34, precision=1.5), 0)
    assert sentence.startswith("Use mixed_float16 for training: a training step takes 50 % less time")
    assert "ry float32" not in sentence
