"""What it would take to settle what is open: estimates, from the spread that was seen."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from stages.compare.statistics import AccuracyChange, moments_interval, tango_interval
from stages.compare.verdict import worth_having
from stages.margins import CONFIDENCE
from stages.params import CompareParams
from stages.speedup import Interval, Speedup, t_interval

MOST_IMAGES = 10_000_000
MOST_SEEDS = 200
LONGEST = 10_000.0  # times what was measured; beyond it the ratio is as good as at the threshold


def images_needed(change: AccuracyChange, margin: float) -> int | None:
    """Test images that would settle the margin if they differed at the rates that were seen, with the same seeds.

    None where it is settled, or where more images alone would not do: the change lies at the margin, or the seeds
    disagree too much.
    """
    if change.outcome(margin) != "not established":
        return None
    if change.seeds >= 3 and not _settled(t_interval(change.difference.mean(axis=1)), margin):
        return None
    projected = _one_seed(change) if change.seeds == 1 else _several_seeds(change)
    return _fewest(lambda images: _settled(projected(images), margin), change.images, MOST_IMAGES)


def seeds_needed(change: AccuracyChange, margin: float) -> int | None:
    """Seeds that would settle the margin on the same test images, from the spread between the seeds that were seen.

    None where it is settled, where one seed shows no spread, or where more seeds alone would not do.
    """
    if change.seeds < 2 or change.outcome(margin) != "not established":
        return None
    by_seed = change.difference.mean(axis=1)
    mean, sd = float(by_seed.mean()), float(by_seed.std(ddof=1))
    within = float(change.difference.var(axis=0, ddof=1).mean())  # what averaging over seeds takes away from an image
    between = max(float(change.difference.mean(axis=0).var()) - within / change.seeds, 0.0)

    def settled(seeds: int) -> bool:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1)) * sd / math.sqrt(seeds)
        images = moments_interval(mean, between + within / seeds + mean**2, change.images)
        return _settled((min(mean - half, images[0]), max(mean + half, images[1])), margin)

    return _fewest(settled, max(change.seeds + 1, 3), MOST_SEEDS)


def times_as_long(speedup: Speedup, noise: Speedup, params: CompareParams) -> float | None:
    """How many times as long to measure until the speed-up is settled, if intervals shrink with the root of the time.

    1 where it is settled; None where the ratio lies so near the threshold that no reasonable time would do.
    """

    def settled(factor: float) -> bool:
        _, high = _narrowed(speedup, factor)
        low, floor = _narrowed(speedup, factor)[0], max(abs(end - 1) for end in _narrowed(noise, factor))
        return low >= worth_having(floor, params) or high < params.min_speedup

    if not settled(LONGEST):
        return None
    below, enough = 1.0, LONGEST
    if settled(below):
        return below
    while enough / below > 1.01:
        middle = math.sqrt(below * enough)
        below, enough = (below, middle) if settled(middle) else (middle, enough)
    return enough


def _narrowed(speedup: Speedup, factor: float) -> Interval:
    half = math.log(speedup.high / speedup.low) / 2 / math.sqrt(factor)
    return speedup.ratio * math.exp(-half), speedup.ratio * math.exp(half)


def _one_seed(change: AccuracyChange) -> Callable[[int], Interval]:
    gained, lost = change.gained / change.images, change.lost / change.images
    return lambda images: tango_interval(gained * images, lost * images, images)


def _several_seeds(change: AccuracyChange) -> Callable[[int], Interval]:
    by_image = change.difference.mean(axis=0)
    mean, mean_square = float(by_image.mean()), float(np.square(by_image).mean())
    return lambda images: moments_interval(mean, mean_square, images)


def _settled(interval: Interval, margin: float) -> bool:
    return interval[0] >= -margin or interval[1] < -margin


def _fewest(settles: Callable[[int], bool], start: int, most: int) -> int | None:
    """The smallest number from `start` to `most` that settles it: found by halving, as more never unsettles it."""
    if not settles(most):
        return None
    below, enough = start - 1, most
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if settles(middle) else (middle, enough)
    return enough
