"""What is known of the quality, in sentences."""

from __future__ import annotations

from stages.compare.comparison import Candidate, Comparison
from stages.compare.report.scale import scale_of
from stages.stats.proportions import BinaryChange
from stages.stats.quality import QualityChange


def quality_sentence(variant: str, change: QualityChange, comparison: Comparison) -> str:
    """What is known of a variant's score after training, in one sentence."""
    scale = scale_of(comparison)
    return (
        f"{variant} changes {scale.name} by {scale.change(change)}{scale.short_points}: {_meaning(change, comparison)}"
        f"{_mcnemar(change, comparison)}."
    )


def same_weights_sentence(candidate: Candidate, comparison: Comparison) -> str | None:
    """What computing the baseline's weights in a candidate's precision changes; None if it was not measured."""
    change, baseline = candidate.quality_same_weights, comparison.study.baseline.variant
    if change is None:
        return None
    scale, examples = scale_of(comparison), comparison.study.task.examples_word
    return (
        f"The weights of {baseline} in the precision of {candidate.variant}: {scale.name} changes by "
        f"{scale.change(change)}{scale.short_points} on the same {change.examples:,} test {examples}; "
        f"{_meaning(change, comparison)}{_mcnemar(change, comparison)}."
    )


def seeds_note(change: QualityChange, examples: str) -> str:
    """What an answer on quality applies to, by the number of seeds; `examples` is the word for them."""
    if change.seeds == 1:
        return "One seed: the answer applies to these two trainings. Other seeds may give another."
    if change.seeds == 2:
        return f"Two seeds: the answer applies to these trainings on other test {examples}, not to other seeds."
    return (
        f"{change.seeds} seeds: the answer applies to other test {examples} and to other seeds; the wider interval "
        "counts."
    )


def _meaning(change: QualityChange, comparison: Comparison) -> str:
    found = {"shown": "excluded", "refuted": "shown", "not established": "neither excluded nor shown"}
    margin, reason = comparison.margin, change.reason(comparison.margin)
    text = f"a loss of more than {scale_of(comparison).margin_text} is {found[change.outcome(margin)]}"
    return f"{text}, because {reason}" if reason else text


def _mcnemar(change: QualityChange, comparison: Comparison) -> str:
    if not isinstance(change, BinaryChange) or change.mcnemar_p is None:
        return ""
    p = f"(McNemar's exact test: p = {change.mcnemar_p:.2g})"
    if comparison.study.task.is_images:
        return f"; only the candidate classifies {change.gained} images correctly, only the baseline {change.lost} {p}"
    return f"; only the candidate scores 1 on {change.gained} examples, only the baseline on {change.lost} {p}"
