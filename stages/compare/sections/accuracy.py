"""How accuracy changed, and how training went."""

from __future__ import annotations

from itertools import chain
from typing import Any

from stages.compare.charts import Axis, Interval, interval, loss_scale_chart
from stages.compare.comparison import Comparison
from stages.compare.loss_scaling import loss_scaling
from stages.compare.wording import (
    accuracy_sentence,
    margin_text,
    points_text,
    same_weights_sentence,
    seeds_note,
    signed_points,
)
from stages.margins import too_few_images


def accuracy(comparison: Comparison) -> dict[str, Any] | None:
    """Changes of accuracy in percentage points on one axis, with the margin that was declared."""
    changes = [(item, item.accuracy) for item in comparison.candidates if item.accuracy is not None]
    if not changes:
        return None
    margin = comparison.params.accuracy_margin
    axis = Axis.around([-margin, 0.0, margin / 2, *chain.from_iterable((c.low, c.high) for _, c in changes)])
    intervals: list[Interval] = [
        interval(
            axis, item.variant, points_text(change), (change.delta, change.low, change.high), change.low >= -margin
        )
        for item, change in changes
    ]
    change = changes[0][1]
    return {
        "intervals": intervals,
        "ticks": [(axis.at(tick), signed_points(tick)) for tick in axis.ticks(4)],
        "zero": axis.at(0.0),
        "margin": axis.at(-margin),
        "margin_text": f"−{margin_text(comparison.params)}",
        "seeds": change.seeds,
        "images": change.images,
        "sentences": [sentence for item, _ in changes if (sentence := accuracy_sentence(item, comparison))],
        "notes": [seeds_note(change), too_few_images(change.images, margin, change.seeds)],
        "same_weights": [text for item, _ in changes if (text := same_weights_sentence(item, comparison))],
    }


def health(comparison: Comparison) -> dict[str, Any] | None:
    """The course of the loss scale, and what was skipped; None where no training scaled its loss or failed."""
    courses = loss_scaling(comparison.study.arms)
    if not courses:
        return None
    scales = {f"{course.variant}, seed {course.seed}": course.scales for course in courses}
    return {"chart": loss_scale_chart(scales), "lines": [course.text for course in courses]}
