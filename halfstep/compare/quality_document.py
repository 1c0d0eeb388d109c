"""A change of quality as it stands in `comparison.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from halfstep.compare.judging import JudgedCandidate, Judging
from halfstep.compare.next_steps import too_few_of
from halfstep.compare.verdict import class_outcome
from halfstep.results import comparison as document
from halfstep.stats.bootstrap import MetricChange
from halfstep.stats.classes import RecallChange
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.quality import QualityChange
from halfstep.stats.speedup import CONFIDENCE
from halfstep.text import TRAIN


def quality_of(
    change: QualityChange | None,
    judging: Judging,
    sentence: Callable[[str, QualityChange, Judging], str] | None = None,
    variant: str = "",
) -> document.Quality | None:
    """A change of quality; None if there is none. `sentence` says it, of the variant."""
    if change is None:
        return None
    return document.Quality(
        value=change.delta,
        low=change.low,
        high=change.high,
        confidence=CONFIDENCE,
        n=change.examples,
        unit="fraction" if judging.is_fraction else None,  # the same for all, also where some happen to be 0 or 1
        name=judging.study.score_name,
        baseline=change.baseline,
        candidate=change.candidate,
        margin=judging.margin,
        seeds=change.seeds,
        kind=_kind(change),
        outcome=change.outcome(judging.margin),
        reason=change.reason(judging.margin),
        mcnemar_p=change.mcnemar_p,
        sentence=None if sentence is None else sentence(variant, change, judging),
        too_few=too_few_of(change, judging),
    )


def class_recalls(candidate: JudgedCandidate, judging: Judging) -> tuple[document.ClassRecall, ...]:
    """The classes whose recall is shown to fall in training, or not shown to stay within `compare.class_margin`."""
    recalls = (_class_recall(item, judging) for item in candidate.classes.get(TRAIN, ()))
    return tuple(item for item in recalls if item.is_lost or item.outcome not in ("shown", None))


def _class_recall(item: RecallChange, judging: Judging) -> document.ClassRecall:
    return document.ClassRecall(
        value=item.change.delta,
        low=item.low,
        high=item.high,
        n=item.change.examples,
        unit="fraction",
        name=judging.study.class_name(item.number),
        baseline=item.change.baseline,
        candidate=item.change.candidate,
        is_lost=item.is_lost,
        outcome=class_outcome(item, judging.params),
    )


def _kind(change: QualityChange) -> Literal["binary", "score", "metric"]:
    if isinstance(change, BinaryChange):
        return "binary"
    return "metric" if isinstance(change, MetricChange) else "score"
