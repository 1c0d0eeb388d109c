"""The wait for input and its interval: what holds the truth, what is impossible, and what is too little to say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from halfstep.compare.explain.waiting import MIN_ROUNDS, measured_wait, waiting
from halfstep.results.comparison import LEAST_WAIT

REPEATS, ROUNDS, STEPS = 4, 2, 5


def table(step_ms: NDArray[np.float64]) -> pd.DataFrame:
    """An input_rounds.csv of steps in these times, `(repeats, rounds, 2)`: on the pipeline, and on a cached batch."""
    kinds, places = ("pipeline", "cached"), list(np.ndindex(*step_ms.shape))
    return pd.DataFrame(
        [
            (process, number, kinds[kind], STEPS, STEPS * step_ms[process, number, kind])
            for process, number, kind in places
        ],
        columns=["process", "round", "batches", "steps", "round_time_ms"],
    )


def drawn(
    share: float, random: np.random.Generator, *, repeats: int = REPEATS, repeat_sd: float = 0.0, common_sd: float = 0.3
) -> pd.DataFrame:
    """Steps of which this share waits. A turn differs by 5 %, both turns of a pair alike by much more."""
    mean_ms, shape = 10.0 * np.array([1.0, 1 - share]), (repeats, ROUNDS, 2)
    logs = common_sd * random.normal(size=(repeats, ROUNDS, 1)) + repeat_sd * random.normal(size=(repeats, 1, 2))
    return table(mean_ms * np.exp(logs + 0.05 * random.normal(size=shape)))


@pytest.mark.parametrize(("share", "repeat_sd"), [(0.04, 0.0), (0.04, 0.05), (0.95, 0.05)])
def test_interval_holds_the_truth(share: float, repeat_sd: float) -> None:
    """Of 120 intervals, 88 % at least; 95 % should."""
    random = np.random.default_rng(0)
    waits = [measured_wait(drawn(share, random, repeat_sd=repeat_sd)) for _ in range(120)]
    assert np.mean([wait is not None and wait.low <= share <= wait.high for wait in waits]) > 0.88


def test_machine_that_is_slower_in_one_pair_does_not_matter() -> None:
    """Both turns of a pair meet the same machine."""
    wait = waiting(drawn(0.3, np.random.default_rng(1), common_sd=0.5))
    steady = waiting(drawn(0.3, np.random.default_rng(1), common_sd=0.0))
    assert wait is not None
    assert steady is not None
    assert wait.high - wait.low < 2 * (steady.high - steady.low)


def test_repeats_that_differ_widen_the_interval() -> None:
    """The pairs of each repeat agree, and the repeats do not: the pairs would give 30 % with an error of 1 %."""
    step_ms = np.full((REPEATS, ROUNDS, 2), 10.0)
    step_ms[..., 1] = np.array([[5.0], [9.0], [6.0], [8.0]])
    wait = waiting(table(step_ms))
    assert wait is not None
    assert wait.share == pytest.approx(0.3)
    assert wait.low < 0.1
    assert wait.bound is None


def test_wait_below_nothing_is_not_known() -> None:
    wait = measured_wait(drawn(-0.3, np.random.default_rng(0)))
    assert wait is not None
    assert wait.high < 0
    assert wait.is_impossible
    assert waiting(drawn(-0.3, np.random.default_rng(0))) is None
    none = waiting(drawn(0.0, np.random.default_rng(0)))  # an interval around 0 is possible
    assert none is not None
    assert none.bound is None


def test_no_bound_unless_the_low_end_is_above_a_tenth() -> None:
    waits = [waiting(drawn(share, np.random.default_rng(0), common_sd=0.0)) for share in (0.12, 0.3)]
    assert [wait is not None and wait.low > 0 for wait in waits] == [True, True]
    assert [wait is not None and wait.low > LEAST_WAIT for wait in waits] == [False, True]
    assert [wait is not None and wait.bound is not None for wait in waits] == [False, True]


def test_few_rounds_and_a_single_repeat_show_nothing() -> None:
    rows = drawn(0.5, np.random.default_rng(0))
    assert waiting(rows) is not None
    assert waiting(rows[rows["process"] == 0]) is None
    assert waiting(rows[rows["round"] == 0].iloc[: 2 * (MIN_ROUNDS - 1)]) is None
    assert waiting(rows[rows["batches"] == "cached"]) is None
    assert waiting(rows.iloc[:0]) is None
