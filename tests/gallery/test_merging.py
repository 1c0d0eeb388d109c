"""Occasions are merged by the mean of their logarithms, whose interval holds as often as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from halfstep.results.comparison import Ratio
from halfstep.words.text import TRAIN
from tests.gallery.conftest import Make
from tools.gallery.merging import expected_share, held, mean_of, rows_of


def ratio(value: float, half_width: float = 0.02) -> Ratio:
    return Ratio(value=value, low=value - half_width, high=value + half_width)


def test_mean_is_that_of_logarithms_with_a_t_interval() -> None:
    mean = mean_of([ratio(0.8), ratio(1.25), ratio(1.0)])
    assert mean.ratio == pytest.approx(1.0)
    logs = np.log([0.8, 1.25, 1.0])
    interval = stats.t.interval(0.95, 2, loc=0, scale=stats.sem(logs))
    assert (math.log(mean.low), math.log(mean.high)) == pytest.approx(interval)
    assert mean.spread == pytest.approx(math.exp(logs.std(ddof=1)) - 1)


def test_occasion_holds_the_mean_of_the_others_or_not() -> None:
    assert held([ratio(1.2), ratio(1.21)]) == 2
    assert held([ratio(1.2), ratio(1.3)]) == 0
    assert held([ratio(1.2, 0.2), ratio(1.3)]) == 1
    assert held([ratio(1.2), ratio(1.2), ratio(1.4)]) == 0  # the mean of 1.2 and 1.4 is 1.296


@pytest.mark.parametrize("occasions", [2, 3, 4])
def test_expected_share_is_that_of_equal_occasions(occasions: int) -> None:
    draw = np.random.default_rng(1)
    reach = float(stats.norm.ppf(0.975)) * 0.01
    tries = 3000
    count = 0
    for logs in draw.normal(0, 0.01, (tries, occasions)):
        ratios = [Ratio(value=math.exp(x), low=math.exp(x - reach), high=math.exp(x + reach)) for x in logs]
        count += held(ratios)
    assert count / (tries * occasions) == pytest.approx(expected_share(occasions), abs=0.02)
    assert expected_share(occasions) < 0.95


def test_verdict_of_occasions_that_differ_is_inconclusive(make: Make) -> None:
    first, second = make(occasion="one"), make(occasion="two")
    rows = {row.name: row for row in rows_of([first, second])}
    assert rows["mixed_float16"].verdict == first.comparison.candidates["mixed_float16"].verdict == "reject"
    changed = second.comparison.candidates["mixed_float16"].model_copy(update={"verdicts": {"train": "adopt"}})
    candidates = {**second.comparison.candidates, "mixed_float16": changed}
    other = second.model_copy(update={"comparison": second.comparison.model_copy(update={"candidates": candidates})})
    assert {row.name: row for row in rows_of([first, other])}["mixed_float16"].verdict == "inconclusive"


def test_candidate_that_failed_on_one_occasion_keeps_the_others(make: Make) -> None:
    first, second = make(occasion="one"), make("cnn", "own_task", occasion="two")
    (row,) = rows_of([first, second])
    assert row.name == "mixed_bfloat16"
    assert len(row.ratios(TRAIN)) == 2
    failed = make("cnn", "failed_arm", occasion="three")
    assert {row.name: len(row.ratios(TRAIN)) for row in rows_of([first, failed])} == {"float16": 0, "mixed_bfloat16": 2}
