"""What is known of the quality, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from halfstep.compare.judging import Judging
from halfstep.results.comparison import ClassRecall
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.quality import QualityChange
from halfstep.text import joined

_SHOWN = 3  # classes


def quality_sentence(variant: str, change: QualityChange, judging: Judging) -> str:
    """What is known of a variant's score after training, in one sentence."""
    scale = judging.scale
    return (
        f"{variant} changes {scale.name} by {scale.change(change)}{scale.short_points}: {_meaning(change, judging)}."
        f"{_mcnemar(variant, change, judging)}"
    )


def same_weights_sentence(variant: str, change: QualityChange, judging: Judging) -> str:
    """What computing the baseline's weights in a variant's precision changes."""
    scale, examples = judging.scale, judging.study.task.examples_word
    return (
        f"The weights of {judging.study.baseline.variant} in the precision of {variant}: {scale.name} changes by "
        f"{scale.change(change)}{scale.short_points} on the same {change.examples:,} test {examples}; "
        f"{_meaning(change, judging)}.{_mcnemar(variant, change, judging)}"
    )


def class_sentence(recalls: Sequence[ClassRecall]) -> str | None:
    """The classes that lose recall, such as ``Recall of class `9` falls by 4.1 points (1.2 to 7.0).``; or None."""
    lost = [item for item in recalls if item.is_lost]
    if not lost:
        return None
    texts = [f"`{item.name}` falls by {_loss_text(item)}" for item in lost[:_SHOWN]]
    more = [f"{len(lost) - _SHOWN} more fall"] if len(lost) > _SHOWN else []
    return f"Recall of class {joined([*texts, *more])}."


def _loss_text(item: ClassRecall) -> str:
    """The loss of a class with its interval, such as `4.1 points (1.2 to 7.0)`."""
    return f"{-100 * item.value:.1f} points ({-100 * item.high:.1f} to {-100 * item.low:.1f})"


def _meaning(change: QualityChange, judging: Judging) -> str:
    templates = {"shown": "the loss is at most {}", "refuted": "the loss is more than {}"}
    margin, reason = judging.margin, change.reason(judging.margin)
    text = templates.get(change.outcome(margin), "the loss may be more than {}").format(judging.scale.margin_text)
    return f"{text}, because {reason}" if reason else text


def _mcnemar(variant: str, change: QualityChange, judging: Judging) -> str:
    if not isinstance(change, BinaryChange) or change.mcnemar_p is None:
        return ""
    if not change.gained and not change.lost:
        return f" No {judging.study.task.examples_word.removesuffix('s')} is right in only one of the two."
    one = judging.study.task.examples_word.removesuffix("s")
    gained = f"{change.gained:,} {one}{' is' if change.gained == 1 else 's are'}"
    return (
        f" {gained} right only in {variant}, {change.lost:,} only in {judging.study.baseline.variant} "
        f"(McNemar's exact test: p = {change.mcnemar_p:.2g})."
    )
