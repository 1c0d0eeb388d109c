"""How much more must be measured to settle a verdict: test examples, repeats, or occasions.

The half-width of an interval shrinks with the square root of what was measured, so that n · (half-width / distance)²
of it end at a threshold that is `distance` away. If the truth is what was seen, about every second such measurement
settles the verdict.
"""

from __future__ import annotations

import math

from scipy import special

from halfstep.stats.quality import QualityChange
from halfstep.stats.speedup import CONFIDENCE, Speedup, occasion_confidence

ADOPT_ERROR = 1 - CONFIDENCE  # one-sided, shared by all verdicts of a report
SHOWN_ERROR = (1 - CONFIDENCE) / 2  # one-sided, of a 95 % interval
MAX_EXAMPLES = 10_000_000
MOST_OCCASIONS = 5  # more need intervals that are too wide


def smallest_test_set(margin: float, seeds: int = 1, verdicts: int = 1) -> int:
    """The fewest test examples that can show the margin of a 0/1 score: those with which two variants never differ.

    Holm's first step asks every verdict for a one-sided error of 5 % / `verdicts`, and the interval for 2.5 %; let z be
    the normal quantile of the smaller one. With one seed, Tango's score without a discordant example is
    z² = n margin / (1 - margin). With more, the test over examples, which adds one gain and one loss, has
    z = margin (n + 2) / √2.

    Args:
        margin: largest loss that counts as the same, as a fraction.
        seeds: trainings of each variant.
        verdicts: number of verdicts in the report.
    """
    z = -float(special.ndtri(min(ADOPT_ERROR / verdicts, SHOWN_ERROR)))
    if seeds == 1:
        return math.ceil(z**2 * (1 - margin) / margin)
    return max(1, math.ceil(z * math.sqrt(2) / margin - 2))


def too_few_examples(
    examples: int, score_name: str, margin: float, seeds: int, verdicts: int = 1, planned: int = 0
) -> str | None:
    """A line to print if so many test examples can never show the margin of a 0/1 score; None otherwise.

    `planned` is the number by `examples_needed`, where something has been measured.
    """
    enough = smallest_test_set(margin, seeds, verdicts)
    if examples >= enough:
        return None
    needed = f"about {planned:,}" if planned > enough else f"at least {enough:,}"
    margins = (percent / 100 for percent in range(1, 100))
    shown = next((f" to {one:g}" for one in margins if smallest_test_set(one, seeds, verdicts) <= examples), "")
    shared, fewer = (f" for {verdicts} verdicts", "compare fewer variants, ") if verdicts > 1 else ("", "")
    return (
        f"With {examples:,} test examples, a loss of at most {margin:g} of {score_name} cannot be shown{shared}: use "
        f"{needed}, {fewer}raise compare.quality_margin{shown}, or judge the speed only"
    )


def examples_needed(change: QualityChange, margin: float) -> int | None:
    """Test examples that settle the margin with the spread seen, and as many times the seeds where there are several.

    A gain that was seen may be luck, and is planned as no change.

    Args:
        change: the quality so far.
        margin: largest loss that counts as the same, in units of the score.

    Returns:
        More than there are; None if the change is at the margin, or if the differences seen are too few or too skewed
        to plan with.
    """
    distance = abs(min(change.delta, 0.0) + margin)
    is_reliable = change.why_unreliable is None or change.examples < change.fewest_examples
    if distance == 0 or change.why_widened or not is_reliable:
        return None
    needed = change.examples * ((change.high - change.low) / 2 / distance) ** 2
    return max(math.ceil(needed), change.examples + 1, change.fewest_examples) if needed <= MAX_EXAMPLES else None


def times_as_long(speedup: Speedup, threshold: float) -> float | None:
    """How many times as long a run must be to settle on which side of `threshold` the ratio is.

    Only the error within the run shrinks; what whole runs differ by stays as it is.

    Returns:
        Possibly less than 1; None if no run settles it, however long.
    """
    distance, half = abs(math.log(speedup.ratio / threshold)), _log_half_width(speedup)
    within = _log_half_width(speedup.within_run)
    left = distance**2 - max(0.0, half**2 - within**2)
    return within**2 / left if left > 0 and math.isfinite(within) else None


def occasions_needed(speedup: Speedup, threshold: float) -> int | None:
    """Occasions in all, each as long as those so far, that settle on which side of `threshold` the ratio is.

    Each is another look, which needs a higher confidence.

    Returns:
        At least one more than there are; None if no number up to `MOST_OCCASIONS` settles it.
    """
    distance, half = abs(math.log(speedup.ratio / threshold)), _log_half_width(speedup)
    unit = half * math.sqrt(speedup.occasions) / special.ndtri((1 + speedup.confidence) / 2)
    for number in range(speedup.occasions + 1, MOST_OCCASIONS + 1):
        quantile = special.ndtri((1 + occasion_confidence(number - 1)) / 2)
        if unit * quantile / math.sqrt(number) <= distance:
            return number
    return None


def _log_half_width(speedup: Speedup) -> float:
    return math.log(speedup.high / speedup.low) / 2 if speedup.low > 0 else math.inf
