"""The bootstrap of a metric: scipy's intervals, equal variants, and when nothing is claimed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from halfstep.stats.bootstrap import FEWEST_EXAMPLES, Bootstrap, MetricChange
from halfstep.stats.proportions import tango_interval
from halfstep.stats.resampling import metric_scores


def correlation(y_true: Any, y_pred: Any) -> float:
    return float(np.corrcoef(y_true, y_pred)[0, 1])


def change_of(
    y_true: NDArray[Any], before: NDArray[Any], after: NDArray[Any], metric: Any = correlation
) -> MetricChange:
    """A change of one seed, or of several where the predictions are `(seeds, examples)`."""
    baseline, candidate = (
        np.stack([metric_scores(metric, y_true, y_pred) for y_pred in np.atleast_2d(predictions)])
        for predictions in (before, after)
    )
    return MetricChange(baseline, candidate, len(y_true))


def predictions(noise: float, examples: int = 600, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    generator = np.random.default_rng(seed)
    y_true = generator.normal(size=examples)
    before = y_true + 0.5 * generator.normal(size=examples)
    return y_true, before, before + noise * generator.normal(size=examples)


def test_interval_is_that_of_scipy() -> None:
    """From scipy's own replicates; with its own resamples, the ends are close."""
    y_true, before, after = predictions(0.2, examples=150)

    def statistic(y: Any, one: Any, other: Any) -> float:
        return correlation(y, other) - correlation(y, one)

    expected = stats.bootstrap(
        (y_true, before, after), statistic, paired=True, vectorized=False, method="BCa", n_resamples=2000, rng=1
    )
    jackknife = [statistic(*(np.delete(array, index) for array in (y_true, before, after))) for index in range(150)]
    own = Bootstrap(statistic(y_true, before, after), expected.bootstrap_distribution, np.array(jackknife))
    z = stats.norm.ppf(0.975)
    assert (own.end(z), own.end(-z)) == pytest.approx(tuple(expected.confidence_interval), rel=1e-9)
    ours = change_of(y_true, before, after).bootstrap
    width = own.end(-z) - own.end(z)
    assert (ours.end(z), ours.end(-z)) == pytest.approx(tuple(expected.confidence_interval), abs=0.1 * width)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_p_belongs_to_the_interval(seeds: int) -> None:
    samples = [predictions(0.2, seed=0)] + [predictions(0.2 + 0.01 * seed) for seed in range(1, seeds)]
    change = change_of(samples[0][0], np.stack([one[1] for one in samples]), np.stack([one[2] for one in samples]))
    assert change.why_unreliable is None
    assert change.seeds == seeds
    for factor in (0.99, 1.01):
        margin = -change.low * factor
        assert (change.p_loss(margin) <= 0.025) == (change.low >= -margin) == (change.outcome(margin) == "shown")
    p = [change.p_loss(margin) for margin in np.linspace(0.001, 0.2, 100)]
    assert p == sorted(p, reverse=True)
    assert 0 < p[-1] < 1e-4


def test_equal_variants_have_tangos_interval_of_a_share() -> None:
    """As a metric, accuracy has the range of influence 1: a loss that no example shows is as large as Tango has it."""
    y_true = np.zeros(200)
    right = (np.arange(200) % 10 > 0).astype(float)
    change = change_of(y_true, right, right, lambda _, p: float(p.mean()))
    assert change.interval == pytest.approx(tango_interval(0, 0, 200))
    assert change.why_unreliable is not None, "there are fewer than 500"


def test_equal_variants_are_the_same_with_enough_examples() -> None:
    y_true, before, _ = predictions(0.0, examples=2000)
    change = change_of(y_true, before, before)
    assert change.why_unreliable is None
    assert change.low < 0 < change.high
    assert change.low == pytest.approx(-change.high)
    assert 0.001 < change.high < 0.05
    assert change.outcome(0.1) == "shown"
    assert 0 < change.p_loss(0.1) < 0.025
    assert change.outcome(0.001) == "not established"
    assert "so few test examples change the metric" in str(change.reason(0.001))


@pytest.mark.parametrize(
    ("examples", "reason"),
    [(FEWEST_EXAMPLES - 1, "at least 500 test examples, and there are 499"), (FEWEST_EXAMPLES, None)],
)
def test_fewer_examples_establish_nothing(examples: int, reason: str | None) -> None:
    change = change_of(*predictions(0.2, examples=examples))
    assert (change.outcome(0.5) == "shown") is (reason is None)
    assert str(reason) in str(change.reason(0.5))
    assert (change.p_loss(0.5) == 1.0) is (reason is not None)


def test_metric_that_no_example_changes_establishes_nothing() -> None:
    y_true, before, after = predictions(0.2)
    change = change_of(y_true, before, after, lambda *_: 1.0)
    assert change.outcome(0.5) == "not established"
    assert "no single test example changes the metric" in str(change.reason(0.5))


def test_dominating_examples_widen_the_interval() -> None:
    y_true, before, _ = predictions(0.0, examples=1000)
    losses = np.random.default_rng(0).lognormal(0, 2, size=1000)
    change = change_of(y_true, before, before - losses, lambda _, p: float(p.mean()))
    assert change.is_few
    assert change.low < change.bootstrap.end(1.96) - 0.5 * losses.std() / np.sqrt(1000)
    margin = -change.bootstrap.end(1.97)
    assert change.outcome(margin) == "not established"
    assert "so few test examples change the metric" in str(change.reason(margin))


def test_loss_in_a_few_examples_is_rarely_shown_as_the_same() -> None:
    """0.3 % of the examples lose everything. The plain bootstrap would show it as the same far more often."""
    rows: list[NDArray[np.float64]] = []

    def note(_: Any, chosen: NDArray[np.float64]) -> float:
        rows.append(chosen)
        return 0.0

    metric_scores(note, np.zeros(500), np.arange(500))
    weights = np.stack([np.bincount(chosen, minlength=500) / len(chosen) for chosen in rows])  # a mean is a product
    generator, shown, plain, runs = np.random.default_rng(0), 0, 0, 200
    before = (np.arange(500) >= 50).astype(float)
    for _ in range(runs):
        after = before * (generator.random(500) >= 0.003)
        change = MetricChange((weights @ before)[None], (weights @ after)[None], 500)
        shown += change.outcome(0.0027) == "shown"
        plain += change.bootstrap.end(1.96) >= -0.0027
    assert shown / runs < 0.05 < plain / runs
