"""A change of quality as it stands in `comparison.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from halfstep.compare.judging import Judging
from halfstep.compare.next_steps import too_few_of
from halfstep.results import comparison as document
from halfstep.stats.bootstrap import MetricChange
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.quality import QualityChange
from halfstep.stats.speedup import CONFIDENCE


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
        unit="fraction" if change.is_fraction else None,
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


def _kind(change: QualityChange) -> Literal["binary", "score", "metric"]:
    if isinstance(change, BinaryChange):
        return "binary"
    return "metric" if isinstance(change, MetricChange) else "score"
