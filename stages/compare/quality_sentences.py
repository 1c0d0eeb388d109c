"""What is known of the quality, in sentences."""

from __future__ import annotations

from stages.compare.judging import Judging
from stages.stats.proportions import BinaryChange
from stages.stats.quality import QualityChange


def quality_sentence(variant: str, change: QualityChange, judging: Judging) -> str:
    """What is known of a variant's score after training, in one sentence."""
    scale = judging.scale
    return (
        f"{variant} changes {scale.name} by {scale.change(change)}{scale.short_points}: {_meaning(change, judging)}"
        f"{_mcnemar(change, judging)}."
    )


def same_weights_sentence(variant: str, change: QualityChange, judging: Judging) -> str:
    """What computing the baseline's weights in a variant's precision changes."""
    scale, examples = judging.scale, judging.study.task.examples_word
    return (
        f"The weights of {judging.study.baseline.variant} in the precision of {variant}: {scale.name} changes by "
        f"{scale.change(change)}{scale.short_points} on the same {change.examples:,} test {examples}; "
        f"{_meaning(change, judging)}{_mcnemar(change, judging)}."
    )


def _meaning(change: QualityChange, judging: Judging) -> str:
    found = {"shown": "excluded", "refuted": "shown", "not established": "neither excluded nor shown"}
    margin, reason = judging.margin, change.reason(judging.margin)
    text = f"a loss of more than {judging.scale.margin_text} is {found[change.outcome(margin)]}"
    return f"{text}, because {reason}" if reason else text


def _mcnemar(change: QualityChange, judging: Judging) -> str:
    if not isinstance(change, BinaryChange) or change.mcnemar_p is None:
        return ""
    p = f"(McNemar's exact test: p = {change.mcnemar_p:.2g})"
    if judging.study.task.is_images:
        return f"; only the candidate classifies {change.gained} images correctly, only the baseline {change.lost} {p}"
    return f"; only the candidate scores 1 on {change.gained} examples, only the baseline on {change.lost} {p}"
