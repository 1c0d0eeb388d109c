"""Changes of times between two arms: their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from halfstep.stats.changes import Changes, paired_changes, unpaired_changes
from halfstep.stats.speedup import REPEAT_SD

TIMES = 4000


def drawn(arms: int, repeats: int, arm_sd: float, repeat_sd: float) -> np.ndarray:
    """Times around 20 ms, `(arms, repeats, TIMES)`; what a repeat adds is the same for all of its arms."""
    draw = np.random.default_rng(0)
    of_repeats = draw.normal(0, repeat_sd, (1, repeats, TIMES))
    return 20 + of_repeats + draw.normal(0, arm_sd, (arms, repeats, TIMES))


def coverage(changes: Changes, truth: float) -> float:
    return float((np.abs(changes.deltas - truth) <= changes.half_widths()).mean())


@pytest.mark.parametrize("repeats", [2, 3, 4, 5])
@pytest.mark.parametrize("repeat_sd", [0.0, 1.0])
def test_interval_holds_the_truth(repeats: int, repeat_sd: float) -> None:
    before, after, copy = drawn(3, repeats, 0.4, repeat_sd)
    pooled = paired_changes(before, after, copy)
    alone = paired_changes(before, after)
    assert coverage(alone, 0.0) >= 0.935
    assert coverage(pooled, 0.0) >= 0.935
    assert np.median(pooled.half_widths()) < np.median(alone.half_widths())
    assert coverage(unpaired_changes(before, after), 0.0) >= 0.94


def test_interval_of_a_much_faster_arm_holds_the_truth_too() -> None:
    before, after, copy = drawn(3, 4, 0.4, 0.0)
    after *= 0.6
    assert coverage(paired_changes(before, after, copy), -8.0) >= 0.935


@pytest.mark.parametrize("factor", [0.3, 0.55, 1.8, 3.0])
@pytest.mark.parametrize("repeats", [3, 6])
def test_interval_holds_the_truth_where_the_machine_drifts(repeats: int, factor: float) -> None:
    """A machine that is slow in a repeat makes the slower arm lose more milliseconds in it."""
    before, after, copy = drawn(3, repeats, 0.4, 0.0)
    machine = np.random.default_rng(1).normal(1, 0.05, (repeats, TIMES))
    changes = paired_changes(before * machine, after * machine * factor, copy * machine)
    assert coverage(changes, 20 * (factor - 1)) >= 0.935
    alone = paired_changes(before * machine, after * machine * factor)
    assert np.median(changes.p_values) < np.median(alone.p_values), "what all arms share does not hide a change"


@pytest.mark.parametrize(("with_copy", "degrees"), [(5, 8.0), (4, 7.0), (3, 6.0), (2, 5.0), (1, 4.0)])
def test_copy_in_fewer_repeats_adds_degrees_of_freedom(with_copy: int, degrees: float) -> None:
    before, after, copy = drawn(3, 5, 0.4, 0.5)
    copy[with_copy:] = np.nan
    changes = paired_changes(before, after, copy)
    equal = after * before.mean(axis=0) / after.mean(axis=0)  # without an error of what the arms share
    assert paired_changes(before, equal, copy).degrees == pytest.approx(degrees)
    assert coverage(changes, 0.0) >= 0.935
    alone = paired_changes(before, after)
    assert bool(np.median(changes.half_widths()) < np.median(alone.half_widths())) is (with_copy > 1)


def test_p_values_are_uniform_where_nothing_changes() -> None:
    p_values = paired_changes(*drawn(3, 4, 0.8, 0.5)).p_values
    levels = [0.005, 0.05, 0.5]
    assert [float((p_values <= level).mean()) for level in levels] == pytest.approx(levels, rel=0.4)


def test_what_both_arms_share_in_a_repeat_cancels() -> None:
    drift = np.arange(4.0)[:, None]
    changes = paired_changes(10 + drift, 12 + drift)
    assert changes.deltas == pytest.approx([2.0])
    assert changes.standard_errors == pytest.approx([REPEAT_SD * np.hypot(11.5, 13.5) / 2])  # repeats may differ
    assert unpaired_changes(10 + drift, 12 + drift).standard_errors[0] > 0.5


def test_single_repeat_shows_no_error() -> None:
    times = np.ones((1, 1))
    assert np.isinf(paired_changes(times, times + 1).half_widths()[0])
    assert np.isinf(unpaired_changes(times, times + 1).half_widths()[0])
