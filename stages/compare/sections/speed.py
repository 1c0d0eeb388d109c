"""How much faster, against the noise floor."""

from __future__ import annotations

from itertools import chain
from typing import Any

from stages.compare.charts import Axis, interval
from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.compare.time_to_accuracy import time_to_accuracy
from stages.compare.wording import measure_label, ratio_text


def speed(comparison: Comparison) -> dict[str, Any] | None:
    """Speed-ups by measure on one logarithmic axis, each group with the noise floor behind it."""
    ratios = [ratio for item in comparison.candidates for ratio in item.speedups.values()]
    if not ratios:
        return None
    floors = [1 + noise.noise_floor for noise in comparison.noise.values()]
    asked = comparison.params.min_speedup
    axis = Axis.around([1.0, asked, *floors, *chain.from_iterable((r.low, r.high) for r in ratios)], logarithmic=True)
    return {
        "groups": [_speed_group(measure, comparison, axis) for measure in comparison.noise],
        "ticks": [(axis.at(tick), f"{tick:g}×") for tick in axis.ticks()],
        "one": axis.at(1.0),
        "asked": axis.at(asked),
        "asked_text": f"{asked:g}×",
    }


def _speed_group(measure: str, comparison: Comparison, axis: Axis) -> dict[str, Any]:
    floor = comparison.noise[measure].noise_floor
    start = axis.at(max(1 - floor, axis.low))
    compared = [item for item in comparison.candidates if measure in item.speedups]
    return {
        "label": measure_label(measure),
        "floor_text": f"{100 * floor:.1f} %",
        "floor_start": start,
        "floor_width": round(axis.at(1 + floor) - start, 2),
        "intervals": [
            interval(
                axis,
                item.variant,
                ratio_text(ratio),
                (ratio.ratio, ratio.low, ratio.high),
                item.verdicts[measure] == "adopt",
            )
            for item in compared
            for ratio in [item.speedups[measure]]
        ],
    }


def limits(comparison: Comparison) -> list[dict[str, str]]:
    """What was reached in training, beside the best that the baseline's own trace allows."""
    return [_limit(candidate, candidate.limit) for candidate in comparison.candidates if candidate.limit is not None]


def _limit(candidate: Candidate, limit: float) -> dict[str, str]:
    reached = candidate.speedups[TRAIN]
    return {"variant": candidate.variant, "reached": ratio_text(reached), "limit": f"{limit:.2f}×"}


def to_accuracy(comparison: Comparison) -> dict[str, Any] | None:
    """Seconds until the best validation accuracy that all reach, an arm a row."""
    found = time_to_accuracy(comparison.study.arms)
    if found is None:
        return None
    longest_s = max(chain.from_iterable(found.seconds.values()))
    return {
        "target": f"{100 * found.target:.2f} %",
        "bars": [
            {
                "variant": variant,
                "width": round(100 * (found.mean_s(variant) or 0.0) / longest_s, 2),
                "text": f"{found.mean_s(variant):,.1f} s" + _spread(seconds),
            }
            for variant, seconds in found.seconds.items()
        ],
    }


def _spread(seconds: tuple[float, ...]) -> str:
    return f" ({min(seconds):,.1f} to {max(seconds):,.1f})" if len(seconds) > 1 else ""
