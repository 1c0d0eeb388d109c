"""What would settle an inconclusive verdict, in sentences that name the parameter to change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from stages.compare.comparison import Candidate, Comparison
from stages.compare.report.text import joined, margin_text, measure_label, ratio_text, signed_points
from stages.stats.quality import QualityChange
from stages.stats.sample_size import examples_needed, required_speedup, seeds_needed, time_factor, too_few_images
from stages.stats.speedup import Speedup


def next_steps(candidate: Candidate, comparison: Comparison) -> tuple[str, ...]:
    """A sentence for each open question of a candidate; none if every verdict is decided."""
    if "inconclusive" not in candidate.verdicts.values():
        return ()
    if candidate.quality is None:
        return tuple(reason.advice for reason in candidate.reasons if reason.code == "arm_failed")
    quality = _quality(candidate.quality, comparison) if _depends_on_quality(candidate, comparison) else ()
    return (*_speed(candidate, comparison), *quality)


def quality_sample_size(change: QualityChange, margin: float) -> dict[Literal["examples", "seeds"], int]:
    """Test examples and seeds, either of which alone would settle the quality; absent if it alone would not."""
    found: dict[Literal["examples", "seeds"], int | None] = {
        "examples": examples_needed(change, margin),
        "seeds": seeds_needed(change, margin),
    }
    return {name: number for name, number in found.items() if number is not None}


def _depends_on_quality(candidate: Candidate, comparison: Comparison) -> bool:
    """Whether an open verdict depends on the quality: not where the speed-up alone points to `reject`."""
    return any(
        speedup.ratio >= comparison.params.min_speedup
        for measure, speedup in candidate.speedups.items()
        if candidate.verdicts[measure] == "inconclusive"
    )


def _speed(candidate: Candidate, comparison: Comparison) -> Iterator[str]:
    undecided = {
        measure: speedup
        for measure, speedup in candidate.speedups.items()
        if candidate.verdicts[measure] == "inconclusive" and speedup.low < _threshold(measure, comparison)
    }
    min_speedup = comparison.params.min_speedup
    factors = {
        measure: time_factor(speedup, comparison.control[measure], min_speedup)
        for measure, speedup in undecided.items()
    }
    known = {measure: factor for measure, factor in factors.items() if factor is not None}
    if known:
        what = "; ".join(_question(measure, undecided[measure], comparison) for measure in known)
        longest = max(known, key=lambda measure: known[measure])
        how = _how(undecided[longest], known[longest], comparison)
        yield f"{what[0].upper()}{what[1:]}: {how} (an estimate: intervals shrink with the root of the time)."
    for measure in (measure for measure in factors if measure not in known):
        yield (
            f"The speed-up of {measure_label(measure)}, {ratio_text(undecided[measure])}, is so close to "
            f"{_threshold(measure, comparison):.2f}× that measuring longer will hardly settle it: treat it as not "
            "worth having, or declare another compare.min_speedup."
        )


def _threshold(measure: str, comparison: Comparison) -> float:
    return required_speedup(comparison.control[measure].noise_floor, comparison.params.min_speedup)


def _question(measure: str, speedup: Speedup, comparison: Comparison) -> str:
    required, threshold = comparison.params.min_speedup, _threshold(measure, comparison)
    what = f"{measure_label(measure)}, {ratio_text(speedup)}, is neither clearly below"
    if threshold == required:
        return f"{what} nor clearly above {required:g}×"
    return f"{what} {required:g}× nor clearly above {threshold:.2f}×, the noise floor"


def _how(speedup: Speedup, factor: float, comparison: Comparison) -> str:
    """Which parameters to change to measure `factor` times as long."""
    profile = comparison.study.baseline.profile
    assert profile is not None, "there are speed-ups"
    protocol = profile.summary.protocol
    changes = [f"profile.max_seconds to about {_rounded_up(protocol.timing_seconds * factor)}"]
    if protocol.ended_by == "rounds":
        changes.append(f"profile.rounds to about {_rounded_up(speedup.rounds / speedup.processes * factor)}")
    half_width = speedup.half_width / math.sqrt(factor)
    if half_width < protocol.target_precision:
        changes.append(f"profile.target_precision to {half_width:.1g}")
    return f"set {joined(changes)}"


def _rounded_up(value: float) -> int:
    """To two digits."""
    step = 10 ** max(math.floor(math.log10(value)) - 1, 0)
    return math.ceil(value / step) * step


def _quality(change: QualityChange, comparison: Comparison) -> Iterator[str]:
    margin = comparison.params.quality_margin
    if change.outcome(margin) != "not established":
        return
    if (impossible := too_few_images(change.examples, margin, change.seeds)) is not None:
        yield f"{impossible}."
    sizes = quality_sample_size(change, margin)
    ways = []
    if "examples" in sizes:
        ways.append(f"about {sizes['examples']:,} test images instead of {change.examples:,}")
    if "seeds" in sizes:
        ways.append(f"about {sizes['seeds']} train.seeds instead of {change.seeds}")
    what = " or ".join(ways) or "more train.seeds and more test images together, or a larger compare.quality_margin,"
    yield (
        f"The interval of the change of accuracy, {signed_points(change.low)} to {signed_points(change.high)} points, "
        f"includes a loss of {margin_text(comparison.params)}: {what} would settle it (an estimate from the "
        "differences so far)."
    )
