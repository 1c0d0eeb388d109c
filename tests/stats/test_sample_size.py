"""How much more must be measured: each estimate is the smallest number that settles the question."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stages.prepare.__main__ import main
from stages.stats.quality import QualityChange, tango_interval
from stages.stats.sample_size import (
    examples_needed,
    required_speedup,
    seeds_needed,
    smallest_test_set,
    time_factor,
    too_few_images,
)
from stages.stats.speedup import Speedup

MARGIN = 0.01
MIN_SPEEDUP = 1.05
T_975_OF_ONE_DEGREE = 12.7062047


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("margin", [0.003, 0.01, 0.05, 0.5])
def test_one_image_fewer_cannot_show_the_margin(margin: float, seeds: int) -> None:
    enough = smallest_test_set(margin, seeds)
    for images, shown in ((enough - 1, False), (enough, True)):
        correct = np.ones((seeds, images), bool)
        assert (QualityChange(correct, correct).low >= -margin) is shown


def test_margin_of_one_percent_needs_381_images() -> None:
    assert smallest_test_set(0.01) == 381
    assert too_few_images(381, 0.01, seeds=1) is None
    message = too_few_images(380, 0.01, seeds=1)
    assert message is not None
    assert message.startswith("380 test images cannot show compare.quality_margin 0.01")
    assert "381" in message


@pytest.mark.parametrize(("margin", "reported"), [(0.01, True), (0.05, False)])
def test_prepare_reports_that_the_test_set_is_too_small(
    project: Path,
    write_params: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    margin: float,
    reported: bool,
) -> None:
    write_params(data={"source": "digits", "test_fraction": 0.1, "image_size": 8}, compare={"quality_margin": margin})
    assert main() == 0
    assert ("test images cannot show compare.quality_margin 0.01" in capsys.readouterr().out) is reported


def _change(gained: list[int], lost: list[int], examples: int) -> QualityChange:
    """One entry a seed; the examples that are lost follow those that are gained."""
    baseline, candidate = np.ones((len(lost), examples), bool), np.ones((len(lost), examples), bool)
    for seed, (more, fewer) in enumerate(zip(gained, lost, strict=True)):
        baseline[seed, :more] = False
        candidate[seed, more : more + fewer] = False
    return QualityChange(baseline, candidate)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (4, 5), (5, 4), (1, 9)])
def test_needed_examples_settle_the_margin_at_the_same_rates(gained: int, lost: int) -> None:
    needed = examples_needed(_change([gained], [lost], 300), MARGIN)
    assert needed is not None
    assert needed > 300
    for examples, settled in ((needed - 1, False), (needed, True)):
        low, high = tango_interval(gained * examples / 300, lost * examples / 300, examples)
        assert (low >= -MARGIN or high < -MARGIN) is settled


def test_no_number_of_examples_settles_a_change_at_the_margin() -> None:
    assert examples_needed(_change([2], [5], 300), MARGIN) is None


def test_settled_quality_needs_nothing() -> None:
    for change in (_change([0], [0], 400), _change([0], [80], 400)):
        assert examples_needed(change, MARGIN) is None
        assert seeds_needed(change, MARGIN) is None


def test_more_examples_alone_do_not_settle_seeds_that_disagree() -> None:
    change = _change([12, 0, 0], [0, 0, 9], 2000)
    assert change.outcome(MARGIN) == "not established"
    assert examples_needed(change, MARGIN) is None
    seeds = seeds_needed(change, MARGIN)
    assert seeds is not None
    assert 3 < seeds < 15


def test_one_seed_gives_no_estimate_of_seeds() -> None:
    assert seeds_needed(_change([4], [5], 300), MARGIN) is None


def test_more_seeds_settle_an_open_margin_of_two() -> None:
    baseline, candidate = np.ones((2, 500), bool), np.ones((2, 500), bool)
    baseline[0, :8], baseline[1, 20:28] = False, False  # each seed has other examples, as real trainings do
    candidate[0, 40:48], candidate[1, 60:69] = False, False
    change = QualityChange(baseline, candidate)
    assert change.outcome(MARGIN) == "not established"
    seeds, examples = seeds_needed(change, MARGIN), examples_needed(change, MARGIN)
    assert seeds is not None
    assert examples is not None
    assert seeds > 2
    assert examples > 500


def _speedup(low: float, high: float) -> Speedup:
    """A speed-up over two processes with this interval."""
    logs = np.log([low, high])
    half = np.ptp(logs) / 2 / T_975_OF_ONE_DEGREE
    return Speedup(((float(logs.mean() - half),), (float(logs.mean() + half),)))


NARROW = _speedup(0.999, 1.001)


def test_required_speedup_is_above_the_noise_floor() -> None:
    assert required_speedup(0.02, MIN_SPEEDUP) == MIN_SPEEDUP
    assert required_speedup(0.25, MIN_SPEEDUP) == 1.25


def test_open_speedup_needs_the_square_of_the_interval_over_the_distance() -> None:
    """0.97 to 1.08 around 1.0235: 1.05 is log 0.0256 away, and half the interval is 0.0537."""
    factor = time_factor(_speedup(0.97, 1.08), NARROW, MIN_SPEEDUP)
    assert factor == pytest.approx((0.05372 / 0.02560) ** 2, rel=0.02)


@pytest.mark.parametrize("ends", [(1.2, 1.3), (0.8, 0.9)])
def test_settled_speedup_needs_no_more_time(ends: tuple[float, float]) -> None:
    assert time_factor(_speedup(*ends), NARROW, MIN_SPEEDUP) == 1.0


def test_noise_floor_shrinks_with_time_too() -> None:
    """1.19 to 1.21 is within a noise floor of 0.3; 2.2 times as long brings the floor below 0.2."""
    factor = time_factor(_speedup(1.19, 1.21), _speedup(1 / 1.3, 1.3), MIN_SPEEDUP)
    assert factor is not None
    assert 2 < factor < 2.6


def test_ratio_at_the_threshold_is_never_settled() -> None:
    assert time_factor(_speedup(1.0, 1.1025), NARROW, MIN_SPEEDUP) is None
