"""Changes of times between two arms: their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from halfstep.stats.changes import Changes, paired_changes, unpaired_changes
from halfstep.stats.speedup import REPEAT_SD

TIMES = 4000


def drawn(arms: int, repeats: int, arm_sd: float, repeat_sd: float) -> np.ndarray:
    """Times around 20 ms, `(arms, repeats, 1, TIMES)`; what a repeat adds is the same for all of its arms."""
    draw = np.random.default_rng(0)
    of_repeats = draw.normal(0, repeat_sd, (1, repeats, TIMES))
    times: np.ndarray = 20 * np.exp(of_repeats + draw.normal(0, arm_sd, (arms, repeats, TIMES)))
    return times[:, :, None]


def coverage(changes: Changes, log: float) -> float:
    truth = 2 * changes.levels * np.sinh(log / 2)
    low, high = changes.intervals()
    return float(((low <= truth) & (truth <= high)).mean())


def width(changes: Changes) -> float:
    return float(np.median(np.subtract(*changes.intervals()[::-1])))


@pytest.mark.parametrize("repeats", [2, 3, 4, 5])
@pytest.mark.parametrize("repeat_sd", [0.0, 0.3])
@pytest.mark.parametrize("factor", [1.0, 0.6, 3.0])
def test_interval_holds_the_truth(repeats: int, repeat_sd: float, factor: float) -> None:
    before, after, copy = drawn(3, repeats, 0.05, repeat_sd)
    pooled = paired_changes(before, factor * after, copy)
    alone = paired_changes(before, factor * after)
    assert coverage(alone, np.log(factor)) >= 0.935
    assert coverage(pooled, np.log(factor)) >= 0.935
    assert width(pooled) < width(alone)
    assert coverage(unpaired_changes(before, factor * after), np.log(factor)) >= 0.93
    assert np.median(pooled.deltas) == pytest.approx(20 * (factor - 1), abs=3 * repeat_sd + 0.3)


@pytest.mark.parametrize("spread", [0.2, 5.0])
def test_interval_holds_the_truth_where_one_arm_varies_more(spread: float) -> None:
    before, after, copy = drawn(3, 3, 0.05, 0.1)
    after = before * (after / before) ** spread  # both draws of the candidate have another spread
    assert coverage(paired_changes(before, after, copy), 0.0) >= 0.89  # three repeats do not always show it


@pytest.mark.parametrize("inflated", [0.0, 0.25])
def test_change_of_a_share_is_brought_to_a_common_inflation(inflated: float) -> None:
    draw, slope = np.random.default_rng(0), -0.4
    inflations = np.exp(draw.normal(0, 0.2, (3, 4, 6)) + np.array([0.0, inflated, 0.0])[:, None, None])
    steps = 20 * np.exp(draw.normal(0, 0.05, (3, 4)))
    noise = np.exp(draw.normal(0, 0.02, (3, 4, 6, TIMES)))
    before, after, copy = 0.3 * (steps[:, :, None] * inflations**slope)[..., None] * noise
    changes = paired_changes(before, after, copy, inflations)
    of_steps = np.log(steps[1] / steps[0]).mean()
    of_inflation = slope * np.log(inflations[1] / inflations[0]).mean()
    assert np.median(changes.plain_logs) == pytest.approx(of_steps + of_inflation, abs=0.01)
    assert np.median(changes.logs) == pytest.approx(of_steps, abs=0.01)
    assert coverage(changes, of_steps) >= 0.935
    whole, other, third = (np.broadcast_to(step[:, None, None], (4, 6, TIMES)) for step in steps)
    unchanged = paired_changes(whole, other, third, inflations)
    assert unchanged.logs == pytest.approx(unchanged.plain_logs), "the whole step has no share that may vary"


@pytest.mark.parametrize(("repeats_sd", "coverages"), [(0.0, (0.95, 0.99)), (0.03, (0.93, 0.98)), (0.3, (0.93, 0.98))])
def test_turns_add_to_what_is_known_unless_repeats_differ_by_more(
    repeats_sd: float, coverages: tuple[float, float]
) -> None:
    draw = np.random.default_rng(0)
    of_repeats = draw.normal(0, repeats_sd, (3, 3, 1, TIMES))
    arms = 20 * np.exp(of_repeats + draw.normal(0, 0.1, (3, 3, 8, TIMES)))
    changes = paired_changes(*arms)
    whole = paired_changes(*arms.mean(axis=2, keepdims=True))
    alone = unpaired_changes(*arms[:2])
    assert changes.logs == pytest.approx(whole.logs)
    assert coverages[0] <= coverage(changes, 0.0) <= coverages[1]
    assert coverages[0] <= coverage(alone, 0.0) <= coverages[1]
    if repeats_sd == 0:
        assert width(changes) < 0.95 * width(whole)
        assert np.median(changes.degrees) == 8


def test_repeats_may_have_more_and_fewer_turns() -> None:
    arms = 20 * np.exp(np.random.default_rng(0).normal(0, 0.1, (3, 3, 8, TIMES)))
    arms[:, 1, 4:] = np.nan
    arms[2, 2] = np.nan
    changes = paired_changes(*arms)
    assert 0.93 <= coverage(changes, 0.0) <= 0.99
    assert np.nanmin(changes.standard_errors) > 0


@pytest.mark.parametrize(("with_copy", "degrees"), [(5, 8.0), (4, 7.0), (3, 6.0), (2, 5.0), (1, 4.0)])
def test_copy_in_fewer_repeats_adds_degrees_of_freedom(with_copy: int, degrees: float) -> None:
    before, after, copy = drawn(3, 5, 0.05, 0.05)
    copy[with_copy:] = np.nan
    changes = paired_changes(before, after, copy)
    assert np.median(changes.degrees) == pytest.approx(degrees)
    assert coverage(changes, 0.0) >= 0.935


def test_p_values_are_uniform_where_nothing_changes() -> None:
    p_values = paired_changes(*drawn(3, 4, 0.05, 0.05)).p_values
    levels = [0.005, 0.05, 0.5]
    assert [float((p_values <= level).mean()) for level in levels] == pytest.approx(levels, rel=0.4)


def test_what_both_arms_share_in_a_repeat_cancels() -> None:
    slow = np.array([1.0, 1.5, 1.2, 2.0])[:, None, None]
    changes = paired_changes(10 * slow, 12 * slow)
    assert changes.logs == pytest.approx([np.log(1.2)])
    assert changes.standard_errors == pytest.approx([REPEAT_SD * np.sqrt(2) / 2])  # repeats may differ
    assert unpaired_changes(10 * slow, 12 * slow).standard_errors[0] > 0.1


def test_smallest_change_that_would_show_is_one_that_shows() -> None:
    before, after, copy = drawn(3, 4, 0.05, 0.05)
    changes = paired_changes(before, after, copy)
    low, high = changes.intervals(0.9)
    assert ((low > 0) | (high < 0)) == pytest.approx(np.abs(changes.deltas) > changes.least(0.9))


def test_single_repeat_shows_no_error() -> None:
    times = np.ones((1, 1, 1))
    for changes in (paired_changes(times, times + 1), unpaired_changes(times, times + 1)):
        assert np.isinf(changes.intervals()[1][0])
        assert changes.p_values == 1
