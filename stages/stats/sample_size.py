"""How much more must be measured to settle a verdict: test images, seeds, or time. Estimates from the spread so far."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from stages.stats.quality import QualityChange, Z, moments_interval, tango_interval
from stages.stats.speedup import CONFIDENCE, Interval, Speedup, t_interval

MAX_EXAMPLES = 10_000_000
MAX_SEEDS = 200
MAX_TIME_FACTOR = 10_000.0  # a ratio that needs longer is too close to the threshold to be settled


def required_speedup(noise_floor: float, min_speedup: float) -> float:
    """The ratio that a speed-up must be shown to reach: worth having, and above the noise floor."""
    return max(min_speedup, 1 + noise_floor)


def smallest_test_set(margin: float, seeds: int = 1) -> int:
    """The fewest test images that can exclude a loss of more than `margin`: those with which two arms never differ.

    With one seed, Tango's score interval without a discordant image ends at −z² / (n + z²). With more, the interval
    over images, which adds one gain and one loss, ends at −z √2 / (n + 2).

    Args:
        margin: largest loss that counts as the same accuracy, as a fraction.
        seeds: trainings of each variant.
    """
    if seeds == 1:
        return math.ceil(Z**2 * (1 - margin) / margin)
    return max(1, math.ceil(Z * math.sqrt(2) / margin - 2))


def too_few_images(images: int, margin: float, seeds: int) -> str | None:
    """A line to print if so many test images can never show the margin; None otherwise."""
    enough = smallest_test_set(margin, seeds)
    if images >= enough:
        return None
    return (
        f"{images:,} test images cannot show compare.quality_margin {margin:g}, whatever the accuracies are; at least "
        f"{enough:,} are needed: raise data.test_fraction, add images, or declare a larger margin"
    )


def examples_needed(change: QualityChange, margin: float) -> int | None:
    """Test examples that would settle the margin at the rates of gains and losses so far, with the same seeds.

    None if it is settled, or if more examples alone would not settle it: the change is at the margin, or the seeds
    disagree too much.
    """
    if change.outcome(margin) != "not established":
        return None
    if change.seeds >= 3 and not _is_settled(t_interval(change.difference.mean(axis=1)), margin):
        return None
    projected = _one_seed(change) if change.seeds == 1 else _several_seeds(change)
    return _fewest(lambda examples: _is_settled(projected(examples), margin), change.examples, MAX_EXAMPLES)


def seeds_needed(change: QualityChange, margin: float) -> int | None:
    """Seeds that would settle the margin on the same test examples, from the spread between the seeds so far.

    None if it is settled, if there is one seed and so no spread, or if more seeds alone would not settle it.
    """
    if change.seeds < 2 or change.outcome(margin) != "not established":
        return None
    by_seed = change.difference.mean(axis=1)
    mean, sd = float(by_seed.mean()), float(by_seed.std(ddof=1))
    within = float(change.difference.var(axis=0, ddof=1).mean())  # averaging over seeds reduces this part only
    between = max(float(change.difference.mean(axis=0).var()) - within / change.seeds, 0.0)

    def settled(seeds: int) -> bool:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1)) * sd / math.sqrt(seeds)
        low, high = moments_interval(mean, between + within / seeds + mean**2, change.examples)
        return _is_settled((min(mean - half, low), max(mean + half, high)), margin)

    return _fewest(settled, max(change.seeds + 1, 3), MAX_SEEDS)


def time_factor(speedup: Speedup, control: Speedup, min_speedup: float) -> float | None:
    """How many times as long to measure until the speed-up is settled, if intervals shrink with the root of the time.

    1 if it is settled already; None if the ratio is too close to the threshold.
    """

    def settled(factor: float) -> bool:
        low, high = _narrowed(speedup, factor)
        noise_floor = max(abs(end - 1) for end in _narrowed(control, factor))
        return low >= required_speedup(noise_floor, min_speedup) or high < min_speedup

    if not settled(MAX_TIME_FACTOR):
        return None
    below, enough = 1.0, MAX_TIME_FACTOR
    if settled(below):
        return below
    while enough / below > 1.01:
        middle = math.sqrt(below * enough)
        below, enough = (below, middle) if settled(middle) else (middle, enough)
    return enough


def _narrowed(speedup: Speedup, factor: float) -> Interval:
    half = math.log(speedup.high / speedup.low) / 2 / math.sqrt(factor)
    return speedup.ratio * math.exp(-half), speedup.ratio * math.exp(half)


def _one_seed(change: QualityChange) -> Callable[[int], Interval]:
    gained, lost = change.gained / change.examples, change.lost / change.examples
    return lambda examples: tango_interval(gained * examples, lost * examples, examples)


def _several_seeds(change: QualityChange) -> Callable[[int], Interval]:
    by_example = change.difference.mean(axis=0)
    mean, mean_square = float(by_example.mean()), float(np.square(by_example).mean())
    return lambda examples: moments_interval(mean, mean_square, examples)


def _is_settled(interval: Interval, margin: float) -> bool:
    return interval[0] >= -margin or interval[1] < -margin


def _fewest(settles: Callable[[int], bool], start: int, most: int) -> int | None:
    """The smallest number from `start` to `most` that settles it, by bisection: more never unsettles it."""
    if not settles(most):
        return None
    below, enough = start - 1, most
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if settles(middle) else (middle, enough)
    return enough
