"""What is known of the accuracy, in sentences."""

from __future__ import annotations

from stages.compare.comparison import Candidate, Comparison
from stages.compare.report.text import margin_text, points_text
from stages.params import CompareParams
from stages.stats.quality import QualityChange


def quality_sentence(variant: str, change: QualityChange, params: CompareParams) -> str:
    """What is known of a variant's accuracy after training, in one sentence."""
    return f"{variant} changes accuracy by {points_text(change)} points: {_meaning(change, params)}{_mcnemar(change)}."


def same_weights_sentence(candidate: Candidate, comparison: Comparison) -> str | None:
    """What computing the baseline's weights in a candidate's precision changes; None if it was not measured."""
    change, baseline = candidate.quality_same_weights, comparison.study.baseline.variant
    if change is None:
        return None
    return (
        f"The weights of {baseline} in the precision of {candidate.variant}: accuracy changes by "
        f"{points_text(change)} points on the same {change.examples:,} test images; "
        f"{_meaning(change, comparison.params)}{_mcnemar(change)}."
    )


def seeds_note(change: QualityChange) -> str:
    """What an answer on accuracy applies to, by the number of seeds."""
    if change.seeds == 1:
        return "One seed: the answer applies to these two trainings. Other seeds may give another."
    if change.seeds == 2:
        return "Two seeds: the answer applies to these trainings on other test images, not to other seeds."
    return (
        f"{change.seeds} seeds: the answer applies to other test images and to other seeds; the wider interval counts."
    )


def _meaning(change: QualityChange, params: CompareParams) -> str:
    found = {"shown": "excluded", "refuted": "shown", "not established": "neither excluded nor shown"}
    return f"a loss of more than {margin_text(params)} is {found[change.outcome(params.quality_margin)]}"


def _mcnemar(change: QualityChange) -> str:
    if change.mcnemar_p is None:
        return ""
    return (
        f"; only the candidate classifies {change.gained} images correctly, only the baseline {change.lost} "
        f"(McNemar's exact test: p = {change.mcnemar_p:.2g})"
    )
