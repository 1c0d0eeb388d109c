"""Ratios of times: pairing, what counts, the weight of a process, and the coverage of the interval."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from stages.errors import ComparisonError
from stages.stats.speedup import (
    ALONE,
    INTERIM_CONFIDENCE,
    MIN_LOOKS_PAID,
    PAIRS,
    ProcessTimes,
    Speedup,
    final_confidence,
    inference_speedup,
    interim_looks,
    interquartile_mean,
    train_speedup,
)
from tests.benchmarks.coverage import SharedMachine, shared_figures
from tests.small_study import measured_speedup


def _rounds(times_ms: list[list[float]], steps: int = 1, not_counted: int = 0) -> pd.DataFrame:
    """Rounds of each process, the first `not_counted` of them before the steady state."""
    rows = [(p, r, 0, steps, ms, r >= not_counted) for p, rounds in enumerate(times_ms) for r, ms in enumerate(rounds)]
    return pd.DataFrame(rows, columns=["process", "round", "position", "steps", "round_time_ms", "counted"])


def _calls(b1: list[float], b32: float = 99.0) -> pd.DataFrame:
    """Calls of two processes with one round each; the first one does not count."""
    rows = [(p, 0, 1, c, ms, c > 0) for p in range(2) for c, ms in enumerate(b1)]
    rows += [(p, 0, 32, 0, b32, True) for p in range(2)]
    return pd.DataFrame(rows, columns=["process", "round", "batch_size", "call", "latency_ms", "counted"])


def test_speedup_is_total_time_of_the_baseline_over_that_of_the_candidate() -> None:
    speedup = train_speedup(_rounds([[20.0, 40.0], [30.0, 60.0]]), _rounds([[10.0, 20.0], [15.0, 30.0]]))
    assert speedup.ratio == pytest.approx(2.0)
    assert (speedup.low, speedup.high) == pytest.approx((2.0, 2.0))
    assert (speedup.rounds, speedup.processes) == (4, 2)
    assert (speedup.baseline_time_ms, speedup.candidate_time_ms) == pytest.approx((37.5, 18.75))


def test_stall_counts_in_the_ratio_and_not_in_the_typical_ratio() -> None:
    for rounds in (3, 4, 9):
        candidate = _rounds([[10.0] * (rounds - 1) + [50.0], [10.0] * rounds])
        speedup = train_speedup(_rounds([[20.0] * rounds] * 2), candidate)
        assert speedup.ratio == pytest.approx(40 * rounds / (20 * rounds + 40))
        assert speedup.typical_ratio == pytest.approx(2.0)
        assert speedup.baseline_time_ms / speedup.candidate_time_ms == pytest.approx(speedup.ratio)


def test_stall_interval_excludes_one_where_every_process_of_the_candidate_stalls() -> None:
    baseline = _rounds([[20.0] * 8] * 4)
    often = train_speedup(baseline, _rounds([[10.0] * 7 + [stall] for stall in (50.0, 52.0, 54.0, 56.0)]))
    once = train_speedup(baseline, _rounds([[10.0] * 7 + [stall] for stall in (50.0, 10.0, 10.0, 10.0)]))
    assert often.stall_interval[1] < 1
    assert once.stall_interval[0] < 1 < once.stall_interval[1]


def test_rounds_before_the_steady_state_do_not_count() -> None:
    baseline = _rounds([[900.0, 20.0], [900.0, 20.0]], not_counted=1)
    speedup = train_speedup(baseline, _rounds([[10.0, 10.0], [10.0, 10.0]], not_counted=1))
    assert speedup.ratio == pytest.approx(2.0)
    assert speedup.rounds == 2


def test_speedup_counts_time_per_step() -> None:
    speedup = train_speedup(_rounds([[20.0], [20.0]], steps=2), _rounds([[10.0], [10.0]], steps=2))
    assert (speedup.baseline_time_ms, speedup.ratio) == pytest.approx((10.0, 2.0))


def test_turns_of_different_length_are_rejected() -> None:
    with pytest.raises(ComparisonError, match="differ in length"):
        train_speedup(_rounds([[20.0], [20.0]], steps=2), _rounds([[10.0], [10.0]], steps=1))


def test_speedup_pairs_by_round_and_not_by_order() -> None:
    candidate = _rounds([[10.0, 20.0], [15.0, 30.0]]).sample(frac=1, random_state=1)
    speedup = train_speedup(_rounds([[20.0, 40.0], [30.0, 60.0]]), candidate)
    assert speedup.low == speedup.high == pytest.approx(2.0)


def test_control_is_a_second_baseline() -> None:
    """The mean of both is the baseline, and independent deviations of both cancel in part."""
    generator = np.random.default_rng(0)
    baseline, control = (_rounds(generator.normal(20, 1, size=(8, 4)).tolist()) for _ in range(2))
    candidate = _rounds([[10.0] * 4] * 8)
    pooled = train_speedup(baseline, candidate, control=control)
    alone = [train_speedup(table, candidate) for table in (baseline, control)]
    assert pooled.baseline_time_ms == pytest.approx(sum(item.baseline_time_ms for item in alone) / 2)
    assert pooled.half_width < min(item.half_width for item in alone)


def test_pair_is_compared_in_the_processes_that_it_shares() -> None:
    """The baseline lives in the blocks 0 and 2 with the candidate, and in 1 and 3 with the control."""
    baseline = _rounds([[20.0, 22.0], [90.0], [30.0, 33.0], [80.0]])
    candidate, control = _rounds([[10.0, 11.0], [], [15.0, 16.5]]), _rounds([[], [45.0], [], [40.0]])
    speedup = train_speedup(baseline, candidate, control=control, at_once=PAIRS)
    assert (speedup.ratio, speedup.typical_ratio) == pytest.approx((2.0, 2.0))
    assert (speedup.rounds, speedup.processes) == (4, 2)
    assert speedup.low == pytest.approx(speedup.high)
    assert train_speedup(baseline, control, at_once=PAIRS).ratio == pytest.approx(2.0)
    with pytest.raises(ComparisonError, match="do not match"):
        train_speedup(baseline, candidate)
    with pytest.raises(ComparisonError, match="nothing was measured"):
        train_speedup(candidate, control, at_once=PAIRS)
    with pytest.raises(ComparisonError, match="do not match"):
        train_speedup(baseline, candidate[candidate["round"] == 0], at_once=PAIRS)


def test_calls_of_a_pair_are_compared_in_the_processes_that_it_shares() -> None:
    baseline, other = (
        _calls([500.0, 4.0, 6.0]),
        _calls([500.0, 9.0, 9.0]).assign(process=lambda table: table["process"] + 2),
    )
    candidate = _calls([700.0, 3.0, 2.0])
    speedup = inference_speedup(pd.concat([baseline, other]), candidate, batch_size=1, control=other, at_once=PAIRS)
    assert speedup.ratio == pytest.approx(2.0)


def test_rounds_of_arms_that_lived_one_after_the_other_are_not_paired() -> None:
    """The order of the rounds changes nothing. The control lived in the same processes and is a second baseline."""
    baseline, control = (
        _rounds([[20.0, 22.0, 60.0], [30.0, 30.0, 33.0]]),
        _rounds([[24.0, 26.0, 64.0], [34.0, 34.0, 37.0]]),
    )
    candidate, other = (
        _rounds([[10.0, 11.0, 30.0], [15.0, 16.0, 16.0]]),
        _rounds([[30.0, 11.0, 10.0], [16.0, 16.0, 15.0]]),
    )
    first, second = (train_speedup(baseline, table, control=control, at_once=ALONE) for table in (candidate, other))
    assert (first.ratio, first.typical_ratio) == pytest.approx((second.ratio, second.typical_ratio))
    assert first.ratio == pytest.approx((195 + 219) / 2 / 98)
    assert train_speedup(baseline, candidate).typical_ratio != pytest.approx(
        train_speedup(baseline, other).typical_ratio
    )


def test_interquartile_mean() -> None:
    assert interquartile_mean(np.array([1, 2, 3, 5, 8, 13, 21, 1000])) == pytest.approx((3 + 5 + 8 + 13) / 4)
    assert interquartile_mean(np.array([1, 2, 9])) == 2


def test_interval_is_t_over_processes() -> None:
    """Where all processes of the baseline take as long, it is that of the candidate's mean, linearised."""
    times = np.array([10.0, 11.0, 10.5])
    speedup = Speedup(tuple(ProcessTimes(1, 20.0, ms, 0.0, 1) for ms in times))
    expected = stats.t.interval(0.95, 2, loc=np.log(20 / times.mean()), scale=stats.sem(times) / times.mean())
    assert (speedup.low, speedup.high) == pytest.approx(tuple(np.exp(expected)))
    assert speedup.interval(0.99)[0] < speedup.low


@pytest.mark.parametrize("confidence", [0.95, 0.965])
def test_p_is_a_half_of_the_error_at_the_end_of_the_interval(confidence: float) -> None:
    speedup = measured_speedup(1.2, -0.02, 0.02, 0.01, -0.01, confidence=confidence)
    assert speedup.p_below(speedup.low) == pytest.approx(0.025)
    assert speedup.p_below(1.2) == pytest.approx(min(1.0, 0.5 * 0.05 / (1 - confidence)))
    assert speedup.p_below(speedup.high) > 0.5
    assert measured_speedup(1.2, 0.0, 0.0).p_below(1.1) == 0.0


def test_noise_floor_is_the_larger_deviation() -> None:
    speedup = measured_speedup(1.0, -0.01, 0.01)
    assert speedup.noise_floor == pytest.approx(speedup.high - 1)
    assert speedup.noise_floor > 1 - speedup.low


def test_inference_uses_the_counted_calls_of_one_batch_size() -> None:
    speedup = inference_speedup(_calls([500.0, 4.0, 6.0]), _calls([700.0, 3.0, 2.0]), batch_size=1)
    assert speedup.ratio == pytest.approx(2.0)
    assert (speedup.rounds, speedup.candidate_time_ms) == (2, 2.5)


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


@pytest.mark.parametrize("process_sd", [0.005, 0.01, 0.02])
def test_interval_at_which_a_measurement_ends_keeps_its_coverage(process_sd: float) -> None:
    """Interim looks as in `profile`, which stops at the first interval that is narrow enough; a pooled control."""
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(500):
        times = 20 * np.exp(generator.normal(0.0, process_sd, size=(3, 8)))
        by_process = tuple(
            ProcessTimes(1, (before + again) / 2, after, 0.0, 1) for before, again, after in times.T.tolist()
        )
        for processes in (*interim_looks(8), 8):
            confidence = INTERIM_CONFIDENCE if processes < 8 else final_confidence(len(interim_looks(8)))
            speedup = Speedup(by_process[:processes], confidence)
            if speedup.half_width < 0.02:
                break
        hits += speedup.low <= 1 <= speedup.high
    assert hits / 500 >= 0.93  # two standard errors below 0.95


@pytest.mark.parametrize("trend", [0.0, 0.03])
@pytest.mark.parametrize("at_once", [PAIRS, ALONE])
@pytest.mark.parametrize("processes", [4, 8])
def test_interval_keeps_its_coverage_where_not_all_arms_live_at_once(
    processes: int, at_once: int, trend: float
) -> None:
    """On a machine whose speed changes by 2 % from block to block, and steadily by `trend`."""
    machine = SharedMachine(processes, at_once, process_sd=0.01, drift_sd=0.02, trend=trend)
    assert shared_figures(machine, trials=500)["covers"] >= 0.93  # two standard errors below 0.95


def test_drift_is_not_in_the_interval_of_arms_in_the_same_order() -> None:
    machine = SharedMachine(8, ALONE, process_sd=0.01, drift_sd=0.02, trend=0.03, same_order=True)
    assert shared_figures(machine, trials=200)["covers"] < 0.8


@pytest.mark.parametrize("processes", [2, 3, 4, 5, 8, 50])
def test_interim_looks_share_the_error_rate(processes: int) -> None:
    early = interim_looks(processes)
    assert len(early) <= 3
    assert all(4 <= count < processes for count in early)
    paid = max(len(early), MIN_LOOKS_PAID)
    assert paid * (1 - INTERIM_CONFIDENCE) + 1 - final_confidence(len(early)) == pytest.approx(0.05)
