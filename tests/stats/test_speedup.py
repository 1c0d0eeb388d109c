"""Ratios of times: pairing, the weight of a process, and the coverage of the interval."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from stages.errors import ComparisonError
from stages.stats.speedup import (
    INTERIM_CONFIDENCE,
    Speedup,
    final_confidence,
    inference_speedup,
    interim_looks,
    interquartile_mean,
    train_speedup,
)


def _rounds(times_ms: list[list[float]], steps: int = 1) -> pd.DataFrame:
    rows = [(p, r, 0, steps, ms) for p, rounds in enumerate(times_ms) for r, ms in enumerate(rounds)]
    return pd.DataFrame(rows, columns=["process", "round", "position", "steps", "round_time_ms"])


def test_speedup_is_baseline_time_over_candidate_time() -> None:
    speedup = train_speedup(_rounds([[20.0, 40.0], [30.0, 60.0]]), _rounds([[10.0, 20.0], [15.0, 30.0]]))
    assert speedup.ratio == pytest.approx(2.0)
    assert (speedup.low, speedup.high) == pytest.approx((2.0, 2.0))
    assert (speedup.rounds, speedup.processes) == (4, 2)


def test_speedup_counts_time_per_step() -> None:
    speedup = train_speedup(_rounds([[20.0], [20.0]], steps=2), _rounds([[10.0], [10.0]], steps=1))
    assert speedup.ratio == pytest.approx(1.0)


def test_speedup_pairs_by_round_and_not_by_order() -> None:
    candidate = _rounds([[10.0, 20.0], [15.0, 30.0]]).sample(frac=1, random_state=1)
    assert train_speedup(_rounds([[20.0, 40.0], [30.0, 60.0]]), candidate).ratio == pytest.approx(2.0)


def test_one_outlier_of_a_process_has_no_effect() -> None:
    for rounds in (3, 4, 9):
        candidate = _rounds([[10.0] * (rounds - 1) + [900.0], [10.0] * rounds])
        assert train_speedup(_rounds([[20.0] * rounds] * 2), candidate).ratio == pytest.approx(2.0)


def test_interquartile_mean() -> None:
    assert interquartile_mean([1, 2, 3, 5, 8, 13, 21, 1000]) == pytest.approx((3 + 5 + 8 + 13) / 4)
    assert interquartile_mean([1, 2, 9]) == 2


def test_interval_is_t_over_processes() -> None:
    medians = np.log([1.2, 1.3, 1.1])
    speedup = Speedup(tuple((m - 0.3, m, m + 0.3) for m in medians))
    expected = stats.t.interval(0.95, 2, loc=medians.mean(), scale=stats.sem(medians))
    assert (speedup.low, speedup.high) == pytest.approx(tuple(np.exp(expected)))


def test_noise_floor_is_the_larger_deviation() -> None:
    speedup = Speedup(((np.log(0.9),), (np.log(1.1),)))
    assert speedup.noise_floor == pytest.approx(max(1 - speedup.low, speedup.high - 1))
    assert speedup.noise_floor == pytest.approx(speedup.high - 1)


def test_inference_uses_the_median_call_of_each_round_and_one_batch_size() -> None:
    def calls(b1: list[float]) -> pd.DataFrame:
        rows = [(p, 0, 1, c, ms) for p in range(2) for c, ms in enumerate(b1)] + [(p, 0, 32, 0, 99.0) for p in range(2)]
        return pd.DataFrame(rows, columns=["process", "round", "batch_size", "call", "latency_ms"])

    speedup = inference_speedup(calls([4.0, 6.0, 500.0]), calls([3.0, 3.0, 3.0]), batch_size=1)
    assert speedup.ratio == pytest.approx(2.0)
    assert speedup.rounds == 2


@pytest.mark.parametrize(
    ("baseline", "candidate", "message"),
    [
        ([[1.0], [1.0]], [[1.0], [1.0, 1.0]], "do not match"),
        ([[1.0], [1.0]], [[1.0], [0.0]], "not a positive number"),
        ([[1.0, 1.0]], [[1.0, 1.0]], "needs at least 2"),
    ],
)
def test_unusable_times_are_rejected(baseline: list[list[float]], candidate: list[list[float]], message: str) -> None:
    with pytest.raises(ComparisonError, match=message) as raised:
        train_speedup(_rounds(baseline), _rounds(candidate))
    assert "dvc repro" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("process_sd", [0.0, 0.01, 0.02])
def test_interval_at_which_a_measurement_ends_keeps_its_coverage(process_sd: float) -> None:
    """Interim looks as in `profile`, which stops at the first interval that is narrow enough."""
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(500):
        logs = generator.normal(0.0, process_sd, size=(8, 1)) + generator.normal(0.0, 0.05, size=(8, 10))
        for processes in (*interim_looks(8), 8):
            confidence = INTERIM_CONFIDENCE if processes < 8 else final_confidence(len(interim_looks(8)))
            speedup = Speedup(tuple(map(tuple, logs[:processes])), confidence)
            if speedup.half_width < 0.02:
                break
        hits += speedup.low <= 1 <= speedup.high
    assert hits / 500 >= 0.93  # two standard errors below 0.95


@pytest.mark.parametrize("processes", [2, 3, 4, 5, 8, 50])
def test_interim_looks_share_the_error_rate(processes: int) -> None:
    early = interim_looks(processes)
    assert len(early) <= 3
    assert all(3 <= count < processes for count in early)
    assert len(early) * (1 - INTERIM_CONFIDENCE) + 1 - final_confidence(len(early)) == pytest.approx(0.05)
