"""The array of a metric: its layout, its resamples, and what a metric must not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfstep.errors import HalfstepError
from halfstep.stats.resampling import REPLICATES, MetricScores, array_length, jackknife_groups, metric_scores


def mean_error(y_true: Any, y_pred: Any) -> float:
    return -float(np.abs(y_true - y_pred).mean())


def arrays(examples: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    generator = np.random.default_rng(seed)
    y_true = generator.normal(size=examples)
    return y_true, y_true + generator.normal(size=examples)


@pytest.mark.parametrize(("examples", "groups"), [(7, 7), (200, 200), (201, 200), (2_000, 200)])
def test_layout(examples: int, groups: int) -> None:
    y_true, y_pred = arrays(examples)
    array = metric_scores(mean_error, y_true, y_pred)
    assert array.shape == (1 + REPLICATES + groups,) == (array_length(examples),)
    assert array.dtype == np.float64
    scores = MetricScores(array)
    assert scores.value == mean_error(y_true, y_pred)
    assert scores.replicates.shape == (REPLICATES,)
    assert scores.jackknife.shape == (groups,) == (jackknife_groups(examples),)
    assert np.std(scores.replicates) == pytest.approx(np.abs(y_true - y_pred).std() / np.sqrt(examples), rel=0.1)


def test_jackknife_leaves_out_each_example_once() -> None:
    y_true, y_pred = arrays(20)
    jackknife = MetricScores(metric_scores(mean_error, y_true, y_pred)).jackknife
    expected = [mean_error(np.delete(y_true, index), np.delete(y_pred, index)) for index in range(20)]
    assert jackknife == pytest.approx(expected)


def test_resamples_depend_on_the_number_of_examples_and_the_seed_only() -> None:
    """So that the arrays of two variants can be subtracted."""
    (y_true, one), (_, other) = arrays(50), arrays(50, seed=1)
    both = metric_scores(mean_error, y_true, one) - metric_scores(mean_error, y_true, other)
    together = metric_scores(lambda y, p: mean_error(y, p[0]) - mean_error(y, p[1]), y_true, (one, other))
    assert both == pytest.approx(together)
    assert not np.array_equal(metric_scores(mean_error, y_true, one, seed=1), metric_scores(mean_error, y_true, one))


def test_nested_arrays_keep_their_nesting() -> None:
    y_true, y_pred = arrays(30)

    def nested(truth: Any, predicted: Any) -> float:
        assert isinstance(truth, dict)
        assert isinstance(predicted, list)
        assert isinstance(predicted[1], tuple)
        return mean_error(truth["y"], predicted[0]) + 0 * float(predicted[1][0].sum())

    scores = metric_scores(nested, {"y": y_true}, [y_pred, (np.zeros((30, 2)),)])
    assert scores == pytest.approx(metric_scores(mean_error, y_true, y_pred))


def test_metric_that_is_undefined_on_a_resample_is_named() -> None:
    def one_class_is_an_error(y_true: Any, _: Any) -> float:
        if len(set(y_true.tolist())) < 2:
            raise ValueError("Only one class\nis present")
        return 1.0

    rare = np.array([1] + [0] * 9)
    with pytest.raises(HalfstepError, match="task's metric fails on a resample") as caught:
        metric_scores(one_class_is_an_error, rare, rare)
    message = str(caught.value)
    assert "ValueError: Only one class" in message
    assert "\n" not in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_metric_that_is_not_finite_is_named(value: float) -> None:
    with pytest.raises(HalfstepError, match=f"task's metric is {value} on the test set; it must return one finite"):
        metric_scores(lambda *_: value, np.zeros(5), np.zeros(5))


@pytest.mark.parametrize(("y_true", "shown"), [(np.zeros(4), "4, 5"), ({}, "5"), (np.zeros((5, 2)), None)])
def test_arrays_of_different_lengths_are_rejected(y_true: Any, shown: str | None) -> None:
    if shown in (None, "5"):  # another array alone gives the length
        metric_scores(lambda *_: 1.0, y_true, np.zeros(5))
        return
    with pytest.raises(HalfstepError, match=f"their lengths are {shown}"):
        metric_scores(lambda *_: 1.0, y_true, np.zeros(5))
