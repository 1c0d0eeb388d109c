"""The calm value of times: disturbances do not change it, and their number hardly does."""

from __future__ import annotations

import numpy as np
import pytest

from halfstep.stats.calm import calm_mean, calm_weights


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 40])
def test_weights_are_a_mean_of_the_fast_half(count: int) -> None:
    times = np.random.default_rng(0).permutation(np.arange(float(count)))
    weights = calm_weights(times)
    assert weights.sum() == pytest.approx(1.0)
    assert weights.min() >= 0.0
    assert (weights[times > count / 2] == 0.0).all()


def test_quarter_around_the_lower_quartile_counts() -> None:
    assert calm_weights([5.0, 1.0, 3.0, 7.0, 2.0, 8.0, 4.0, 6.0]) == pytest.approx([0, 0, 0.5, 0, 0.5, 0, 0, 0])
    assert calm_weights([9.0, 1.0, 2.0, 30.0]) == pytest.approx([0, 0.5, 0.5, 0])


def test_disturbed_times_do_not_count() -> None:
    assert calm_mean([10.0, 10.0, 10.0, 10.0, 30.0, 25.0, 14.0]) == pytest.approx(10.0)


def test_expectation_does_not_depend_on_the_number_of_times() -> None:
    """The copy of the baseline takes part in fewer rounds than the baseline."""
    draw = np.random.default_rng(0)
    means = [np.mean([calm_mean(draw.normal(10.0, 1.0, count)) for _ in range(4000)]) for count in (4, 6, 8, 24, 40)]
    assert means == pytest.approx([9.33] * 5, abs=0.06)
