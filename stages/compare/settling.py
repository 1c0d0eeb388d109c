"""What would settle an inconclusive verdict, in sentences that name the parameter to change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from stages.compare.comparison import Candidate, Comparison
from stages.compare.needed import images_needed, seeds_needed, times_as_long
from stages.compare.statistics import AccuracyChange
from stages.compare.verdict import worth_having
from stages.compare.wording import listed, margin_text, measure_label, ratio_text, signed_points
from stages.margins import too_few_images
from stages.speedup import Speedup


def what_would_settle(candidate: Candidate, comparison: Comparison) -> tuple[str, ...]:
    """A sentence for each open question of a candidate; none where every verdict is clear."""
    if "inconclusive" not in candidate.verdicts.values():
        return ()
    if candidate.accuracy is None:
        return tuple(reason.advice for reason in candidate.reasons if reason.code == "arm_failed")
    accuracy = _accuracy(candidate.accuracy, comparison) if _accuracy_counts(candidate, comparison) else ()
    return (*_speed(candidate, comparison), *accuracy)


def _accuracy_counts(candidate: Candidate, comparison: Comparison) -> bool:
    """Whether an open verdict hangs on the accuracy: a speed-up that is heading for `reject` does not need it."""
    return any(
        speedup.ratio >= comparison.params.min_speedup
        for measure, speedup in candidate.speedups.items()
        if candidate.verdicts[measure] == "inconclusive"
    )


def accuracy_needed(change: AccuracyChange, margin: float) -> dict[str, int]:
    """Test images and seeds of which either alone would settle the accuracy; what alone would not is absent."""
    found = {"test_images": images_needed(change, margin), "seeds": seeds_needed(change, margin)}
    return {name: number for name, number in found.items() if number is not None}


def _speed(candidate: Candidate, comparison: Comparison) -> Iterator[str]:
    open_measures = {
        measure: speedup
        for measure, speedup in candidate.speedups.items()
        if candidate.verdicts[measure] == "inconclusive" and speedup.low < _threshold(measure, comparison)
    }
    factors = {
        measure: times_as_long(speedup, comparison.noise[measure], comparison.params)
        for measure, speedup in open_measures.items()
    }
    known = {measure: factor for measure, factor in factors.items() if factor is not None}
    if known:
        spans = [_span(measure, open_measures[measure], comparison) for measure in known]
        longest = max(known, key=lambda measure: known[measure])
        how = _how(open_measures[longest], known[longest], comparison)
        what = "; ".join(spans)
        yield f"{what[0].upper()}{what[1:]}: {how} (an estimate: intervals shrink with the root of the time)."
    for measure in (measure for measure in factors if measure not in known):
        near = f"{measure_label(measure)} at {ratio_text(open_measures[measure])}"
        yield (
            f"The speed of {near} lies so near {_threshold(measure, comparison):.2f}× that measuring longer will "
            "hardly settle it: count it as not worth having, or declare another compare.min_speedup."
        )


def _threshold(measure: str, comparison: Comparison) -> float:
    return worth_having(comparison.noise[measure].noise_floor, comparison.params)


def _span(measure: str, speedup: Speedup, comparison: Comparison) -> str:
    asked, threshold = comparison.params.min_speedup, _threshold(measure, comparison)
    what = f"{measure_label(measure)}, {ratio_text(speedup)}, is neither clearly below"
    if threshold == asked:
        return f"{what} nor clearly above {asked:g}×"
    return f"{what} {asked:g}× nor clearly above {threshold:.2f}×, the noise floor"


def _how(speedup: Speedup, factor: float, comparison: Comparison) -> str:
    """What to change so that it is measured so many times as long."""
    protocol = _protocol(comparison)
    changes = []
    if seconds := protocol.get("timing_seconds"):
        changes.append(f"profile.max_seconds to about {_rounded_up(seconds * factor)}")
    if protocol.get("ended_by") == "rounds":
        changes.append(f"profile.rounds to about {_rounded_up(speedup.rounds / speedup.processes * factor)}")
    half_width = speedup.half_width / math.sqrt(factor)
    if half_width < protocol.get("target_precision", 0.0):
        changes.append(f"profile.target_precision to {half_width:.1g}")
    return f"set {listed(changes)}" if changes else f"measure about {factor:.1f} times as long (profile.max_seconds)"


def _protocol(comparison: Comparison) -> dict[str, Any]:
    profile = comparison.study.baseline.profile
    return profile.protocol if profile else {}


def _rounded_up(value: float) -> int:
    """To two digits."""
    step = 10 ** max(math.floor(math.log10(value)) - 1, 0)
    return math.ceil(value / step) * step


def _accuracy(change: AccuracyChange, comparison: Comparison) -> Iterator[str]:
    margin = comparison.params.accuracy_margin
    if change.outcome(margin) != "not established":
        return
    if (impossible := too_few_images(change.images, margin, change.seeds)) is not None:
        yield f"{impossible}."
    needed = accuracy_needed(change, margin)
    ways = []
    if "test_images" in needed:
        ways.append(f"about {needed['test_images']:,} test images in place of {change.images:,}")
    if "seeds" in needed:
        ways.append(f"about {needed['seeds']} train.seeds in place of {change.seeds}")
    what = " or ".join(ways) or "more train.seeds and more test images together, or a larger compare.accuracy_margin,"
    yield (
        f"A change of accuracy between {signed_points(change.low)} and {signed_points(change.high)} points leaves open "
        f"whether more than {margin_text(comparison.params)} is lost: {what} would settle it (an estimate, from the "
        "differences that were seen)."
    )
