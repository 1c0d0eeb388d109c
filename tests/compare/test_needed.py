"""What would settle an open question: each estimate is the smallest that does."""

from __future__ import annotations

import numpy as np
import pytest

from stages.compare.needed import images_needed, seeds_needed, times_as_long
from stages.compare.statistics import AccuracyChange, tango_interval
from stages.params import CompareParams
from stages.speedup import Speedup

MARGIN = 0.01


def _change(gained: list[int], lost: list[int], images: int) -> AccuracyChange:
    """One entry a seed; the images that are lost follow those that are gained."""
    baseline, candidate = np.ones((len(lost), images), bool), np.ones((len(lost), images), bool)
    for seed, (more, fewer) in enumerate(zip(gained, lost, strict=True)):
        baseline[seed, :more] = False
        candidate[seed, more : more + fewer] = False
    return AccuracyChange(baseline, candidate)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (4, 5), (5, 4), (1, 9)])
def test_as_many_images_at_the_same_rates_settle_it(gained: int, lost: int) -> None:
    change = _change([gained], [lost], 300)
    needed = images_needed(change, MARGIN)
    assert needed is not None
    assert needed > 300
    for images, settled in ((needed - 1, False), (needed, True)):
        low, high = tango_interval(gained * images / 300, lost * images / 300, images)
        assert (low >= -MARGIN or high < -MARGIN) is settled


def test_no_number_of_images_settles_a_change_that_lies_at_the_margin() -> None:
    assert images_needed(_change([2], [5], 300), MARGIN) is None


def test_what_is_settled_needs_nothing() -> None:
    for change in (_change([0], [0], 400), _change([0], [80], 400)):
        assert images_needed(change, MARGIN) is None
        assert seeds_needed(change, MARGIN) is None


def test_seeds_that_disagree_are_not_settled_by_images_alone() -> None:
    change = _change([12, 0, 0], [0, 0, 9], 2000)
    assert change.outcome(MARGIN) == "not established"
    assert images_needed(change, MARGIN) is None
    seeds = seeds_needed(change, MARGIN)
    assert seeds is not None
    assert 3 < seeds < 15


def test_one_seed_says_nothing_of_seeds() -> None:
    assert seeds_needed(_change([4], [5], 300), MARGIN) is None


def test_more_seeds_settle_what_two_leave_open() -> None:
    right = np.ones((2, 500), bool)
    baseline, candidate = right.copy(), right.copy()
    baseline[0, :8], baseline[1, 20:28] = False, False  # each seed has images of its own, as trainings do
    candidate[0, 40:48], candidate[1, 60:69] = False, False
    change = AccuracyChange(baseline, candidate)
    assert change.outcome(MARGIN) == "not established"
    seeds = seeds_needed(change, MARGIN)
    images = images_needed(change, MARGIN)
    assert seeds is not None
    assert images is not None
    assert seeds > 2
    assert images > 500


def _speedup(low: float, high: float) -> Speedup:
    logs = np.log([low, high])
    return Speedup(
        ((float(logs.mean() - np.ptp(logs) / 2 / 12.7062047),), (float(logs.mean() + np.ptp(logs) / 2 / 12.7062047),))
    )


NARROW = _speedup(0.999, 1.001)


def test_the_interval_of_the_issue_takes_about_seventeen_times_as_long() -> None:
    """0.97 to 1.08 around 1.0235; the nearer side, 1.05, is log 0.0256 away, and half the interval is 0.0537."""
    factor = times_as_long(_speedup(0.97, 1.08), NARROW, CompareParams())
    assert factor == pytest.approx((0.05372 / 0.02560) ** 2, rel=0.02)


def test_what_is_settled_takes_no_longer() -> None:
    for ends in ((1.2, 1.3), (0.8, 0.9)):
        assert times_as_long(_speedup(*ends), NARROW, CompareParams()) == 1.0


def test_the_noise_floor_shrinks_too() -> None:
    """1.19 to 1.21 lies within a noise floor of 0.3, which four times as long brings below 0.15."""
    factor = times_as_long(_speedup(1.19, 1.21), _speedup(1 / 1.3, 1.3), CompareParams())
    assert factor is not None
    assert 2 < factor < 2.6


def test_a_ratio_at_the_threshold_is_never_settled() -> None:
    assert times_as_long(_speedup(1.0, 1.1025), NARROW, CompareParams()) is None
