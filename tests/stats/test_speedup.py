"""Ratios of times: pairing, what counts, the weight of a process, and the coverage of the interval."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from halfstep.errors import ComparisonError
from halfstep.stats.speedup import (
    COMPILATIONS,
    INTERIM_CONFIDENCE,
    LOOKS,
    MIN_LOOKS_PAID,
    MOST_DEGREES,
    REPEAT_SD,
    Error,
    Occasion,
    ProcessTimes,
    Speedup,
    Times,
    final_confidence,
    inference_speedup,
    mean_over_occasions,
    shared_repeats,
    times_of_rounds,
    train_speedup,
)
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
    assert speedup.standard_error == pytest.approx(REPEAT_SD)  # √(2 sd² / 2): two repeats may agree by chance
    assert (speedup.rounds, speedup.processes) == (4, 2)
    assert (speedup.baseline_time_ms, speedup.candidate_time_ms) == pytest.approx((37.5, 18.75))


def test_stall_counts_in_the_ratio_and_not_in_the_typical_ratio() -> None:
    for rounds in (3, 4, 9):
        candidate = _rounds([[10.0] * (rounds - 1) + [50.0], [10.0] * rounds])
        speedup = train_speedup(_rounds([[20.0] * rounds] * 2), candidate)
        assert speedup.ratio == pytest.approx(40 * rounds / (20 * rounds + 40))
        assert speedup.typical_ratio == pytest.approx(2.0)
        assert speedup.baseline_time_ms / speedup.candidate_time_ms == pytest.approx(speedup.ratio)


def test_repeats_that_agree_by_chance_do_not_narrow_the_interval() -> None:
    """The error of the rounds is the larger one, with the variance of repeats that differ by `REPEAT_SD`."""
    generator = np.random.default_rng(0)
    noise = generator.normal(0, 1, (3, 20))
    baseline = 20 + noise - noise.mean(axis=1, keepdims=True)  # the means of all repeats are equal
    speedup = train_speedup(_rounds(baseline.tolist()), _rounds([[10.0] * 20] * 3))
    in_pairs = baseline.reshape(3, 10, 2).sum(axis=2).var(axis=1, ddof=1).mean() / 2
    assert speedup.standard_error == pytest.approx(np.sqrt(in_pairs / 400 / 60 + 2 * REPEAT_SD**2 / 3))
    assert speedup.error.degrees == 3 * 9


def test_variance_of_repeats_that_the_rounds_explain_has_the_degrees_of_freedom_of_the_rounds() -> None:
    times_ms = np.array([[20.0], [20.6], [19.7], [20.3]]) + np.random.default_rng(0).normal(0, 1, (4, 20))
    speedup = train_speedup(_rounds(times_ms.tolist()), _rounds([[10.0] * 20] * 4))
    whole, (of_a_round, degrees) = speedup.standard_error**2, speedup._round_variance
    within = of_a_round / 80
    assert whole == pytest.approx((stats.sem(times_ms.mean(axis=1)) / times_ms.mean()) ** 2)
    expected = whole**2 / ((whole - within) ** 2 / 3 + within**2 / degrees)
    assert speedup.error.degrees == pytest.approx(min(expected, MOST_DEGREES * 3))
    assert expected > 3


def test_repeats_that_differ_by_more_than_their_rounds_decide() -> None:
    levels = np.array([10.0, 10.6, 9.7])
    candidate = [(level * np.array([1.0, 1.01, 0.99, 1.0])).tolist() for level in levels]
    speedup = train_speedup(_rounds([[20.0] * 4] * 3), _rounds(candidate))
    assert 2 < speedup.error.degrees < 2.05  # hardly any of their variance is that of the rounds
    assert speedup.standard_error == pytest.approx(stats.sem(levels) / levels.mean())
    rounds_sd, repeats_sd = speedup.components or (0.0, 0.0)
    assert repeats_sd == pytest.approx(levels.std(ddof=1) / levels.mean(), rel=0.02)
    assert 0 < rounds_sd < 0.02


def test_drift_within_pairs_of_rounds_cancels() -> None:
    """An order and its reverse: what is added to one round of the pair is taken from the other."""
    drifting = [[20.0 + sign * 3 for sign in (1, -1) * 6]] * 3
    speedup = train_speedup(_rounds(drifting), _rounds([[10.0] * 12] * 3))
    assert speedup.standard_error == pytest.approx(np.sqrt(2 / 3) * REPEAT_SD)


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


def test_turns_of_different_length_are_rejected() -> None:
    with pytest.raises(ComparisonError, match="differ in the length"):
        train_speedup(_rounds([[20.0], [20.0]], steps=2), _rounds([[10.0], [10.0]], steps=1))


def test_rounds_that_only_one_arm_has_do_not_count() -> None:
    """A candidate that ended, or took part in fewer repeats, is compared in the rounds that it shares."""
    baseline = _rounds([[20.0, 22.0], [90.0], [30.0, 33.0], [80.0]])
    candidate = _rounds([[10.0, 11.0], [], [15.0, 16.5, 99.0]])
    speedup = train_speedup(baseline, candidate)
    assert (speedup.ratio, speedup.typical_ratio) == pytest.approx((2.0, 2.0))
    assert (speedup.rounds, speedup.processes) == (4, 2)
    assert shared_repeats("train", Times(baseline, _calls([1.0])), Times(candidate, _calls([1.0]))) == 2
    with pytest.raises(ComparisonError, match="no round in common"):
        train_speedup(candidate, baseline[baseline["process"] % 2 == 1])


def test_calls_are_compared_in_the_processes_that_both_have() -> None:
    more = _calls([500.0, 9.0, 9.0]).assign(process=lambda table: table["process"] + 2)
    speedup = inference_speedup(pd.concat([_calls([500.0, 4.0, 6.0]), more]), _calls([700.0, 3.0, 2.0]), batch_size=1)
    assert speedup.ratio == pytest.approx(2.0)


def test_one_repeat_has_an_interval_only_where_it_is_allowed() -> None:
    baseline, candidate = _rounds([[20.0, 21.0, 20.0, 19.0]]), _rounds([[10.0, 10.5, 10.0, 9.5]])
    speedup = train_speedup(baseline, candidate, fewest=1)
    assert speedup.low < speedup.ratio < speedup.high < np.inf
    with pytest.raises(ComparisonError, match="needs at least 2 repeats and 1 was measured"):
        train_speedup(baseline, candidate)
    alone = train_speedup(baseline, candidate, fewest=1, interleaved=False)  # only repeats show its error
    assert (alone.low, alone.standard_error) == (0.0, np.inf)


def test_rounds_of_arms_that_did_not_take_turns_are_not_paired() -> None:
    """The order of the rounds changes nothing."""
    baseline = _rounds([[20.0, 22.0, 60.0], [30.0, 30.0, 33.0]])
    candidate = _rounds([[10.0, 11.0, 30.0], [15.0, 16.0, 16.0]])
    other = _rounds([[30.0, 11.0, 10.0], [16.0, 16.0, 15.0]])
    first, second = (train_speedup(baseline, table, interleaved=False) for table in (candidate, other))
    assert (first.low, first.high) == (second.low, second.high)
    assert first.typical_ratio == pytest.approx(second.typical_ratio)
    assert first.ratio == pytest.approx(195 / 98)
    paired, crossed = (train_speedup(baseline, table) for table in (candidate, other))
    assert paired.typical_ratio != pytest.approx(crossed.typical_ratio)
    assert paired.half_width < crossed.half_width


def test_arms_that_did_not_take_turns_have_the_error_of_both() -> None:
    """Welch: the squared errors of the two arms add up, also where they rise and fall together."""
    both = [[10.0], [11.0], [10.5], [10.8]]
    alone = train_speedup(_rounds(both), _rounds(both), interleaved=False)
    one = stats.sem(np.array(both)[:, 0]) / np.mean(both)
    assert alone.standard_error == pytest.approx(np.sqrt(2) * one)
    assert alone.error.degrees == pytest.approx(6)  # equal variances, four repeats of each arm
    assert train_speedup(_rounds(both), _rounds(both)).standard_error == pytest.approx(0.0)


def _alone(
    generator: np.random.Generator, counts: list[int], others: list[int] | None = None, ratio: float = 2.5
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rounds of a quiet GPU: they vary by 0.5 % and repeats by 0.3 %; the candidate may have other numbers of them."""

    def arm(time_ms: float, of_repeats: list[int]) -> pd.DataFrame:
        levels = time_ms * np.exp(generator.normal(0, 0.003, len(of_repeats)))
        shape = zip(levels, of_repeats, strict=True)
        return _rounds([(level * np.exp(generator.normal(0, 0.005, count))).tolist() for level, count in shape], 50)

    return arm(1000.0, counts), arm(1000.0 / ratio, others or counts)


@pytest.mark.parametrize(
    ("counts", "others"),
    [
        ([16, 16, 16, 14], None),
        ([16, 16, 12, 10], None),
        ([16, 16, 12, 10], [16, 9, 12, 4]),
        ([16, 16, 16, 16, 2], None),
        ([26, 2, 2, 2], None),
    ],
)
def test_numbers_of_rounds_are_no_noise_one_at_a_time(counts: list[int], others: list[int] | None) -> None:
    generator = np.random.default_rng(0)
    speedups = [train_speedup(*_alone(generator, counts, others), interleaved=False) for _ in range(100)]
    assert np.mean([item.low <= 2.5 <= item.high for item in speedups]) >= 0.91
    errors = np.array([item.standard_error for item in speedups])
    seen = np.std([np.log(item.ratio) for item in speedups])
    assert 0.85 * seen < np.sqrt(np.mean(errors**2)) < 1.3 * seen
    degrees = np.mean([item.error.degrees for item in speedups])
    assert degrees < 2 if counts[0] == 26 else degrees > 2.5  # where one repeat has nearly all the weight


def test_all_rounds_count_one_at_a_time() -> None:
    """A repeat weighs as much as the rounds of the arm with fewer of them, of which no round is left out."""
    baseline, candidate = _rounds([[20.0, 22.0, 60.0], [30.0]]), _rounds([[10.0], [14.0, 16.0], [99.0]])
    speedup = train_speedup(baseline, candidate, interleaved=False)
    assert speedup.ratio == pytest.approx((34 + 30) / (10 + 15))
    assert (speedup.baseline_time_ms, speedup.candidate_time_ms) == pytest.approx((32.0, 12.5))
    assert speedup.by_process[0].typical_log_ratio == pytest.approx(np.log(22 / 10))
    with pytest.raises(ComparisonError, match="no round in common"):
        train_speedup(candidate[candidate["process"] == 2], baseline, interleaved=False)


def test_few_repeats_borrow_the_variance_of_the_others_one_at_a_time() -> None:
    """The control has two repeats, which may agree or differ by chance."""
    generator = np.random.default_rng(4)
    other = train_speedup(*_alone(generator, [16, 16, 14, 12], ratio=1.0), interleaved=False)
    control = train_speedup(*_alone(generator, [16, 12], ratio=1.0), interleaved=False)
    pooled = replace(control, others=(other,))
    degrees = [control.error.degrees, other.error.degrees]
    weights = np.array([[16, 12]]) / 28, np.array([[16, 16, 14, 12]]) / 58
    of_one, of_other = (
        item.standard_error**2 / np.sum(weight**2) for item, weight in zip((control, other), weights, strict=True)
    )
    expected = np.average([of_one, of_other], weights=degrees) * np.sum(weights[0] ** 2)
    assert pooled.standard_error**2 == pytest.approx(expected)
    assert pooled.error.degrees == pytest.approx(sum(degrees))


def test_repeats_of_different_length_keep_the_coverage_in_turns() -> None:
    generator, hits = np.random.default_rng(5), 0
    for _ in range(300):
        times = [_measurement(generator, 1, rounds, 0.03)[0] for rounds in (24, 24, 16, 10, 6)]
        speedup = Speedup(tuple(times), final_confidence(0))
        hits += speedup.low <= 1 <= speedup.high
    assert hits / 300 >= 0.93


def test_interval_is_t_over_repeats_that_have_single_rounds() -> None:
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


def test_what_runs_differ_by_is_in_the_interval_and_not_in_that_within_the_run() -> None:
    """1 % of each arm is a standard deviation of 1.4 % of the ratio, which is known."""
    within = measured_speedup(1.2, -0.02, 0.02, 0.01, -0.01)
    speedup = replace(within, run_sd=0.01)
    assert speedup.standard_error == pytest.approx(math.hypot(within.standard_error, 0.01 * math.sqrt(2)))
    squares = within.standard_error**2, 2e-4
    assert speedup.error.degrees == pytest.approx(within.error.degrees * (sum(squares) / squares[0]) ** 2)
    assert speedup.low < within.low
    assert speedup.p_below(1.15) >= within.p_below(1.15)
    assert speedup.p_below(1.19) > within.p_below(1.19)
    assert speedup.within_run == within
    assert speedup.components == within.components
    exact = replace(measured_speedup(1.2, 0.0, 0.0), run_sd=0.01)
    assert exact.low == pytest.approx(1.2 * math.exp(-1.959964 * 0.01 * math.sqrt(2)))


def test_what_runs_differ_by_makes_no_interval_narrower() -> None:
    """Its degrees of freedom would, where few repeats differ by about as much."""
    within = measured_speedup(1.2, -0.03, 0.03)
    speedup = replace(within, run_sd=0.01)
    assert within.error.with_known(2e-4).quantile(0.95) < within.error.quantile(0.95)
    assert (speedup.low, speedup.high) == (within.low, within.high)


def test_occasions_are_averaged_with_what_they_are_expected_to_differ_by() -> None:
    """Two that agree by chance have the error of both, and not an interval without any width."""
    error = Error(0.01, 10)
    first = replace(measured_speedup(1.21, -0.02, 0.02, 0.01, -0.01), run_sd=0.01)
    own = first.occasion.error.standard_error
    both = replace(first, earlier=(Occasion(math.log(1.0), error),))
    assert both.ratio == pytest.approx(1.1)
    assert both.run_ratio == pytest.approx(first.ratio)
    assert both.baseline_time_ms / both.candidate_time_ms == pytest.approx(1.21)
    agreeing = replace(first, earlier=(Occasion(math.log(1.21), error),))
    assert agreeing.standard_error == pytest.approx(math.sqrt(2e-4 + 2e-4 + own**2 + 0.01**2) / 2)
    assert agreeing.error.degrees > 20
    assert (agreeing.occasions, first.occasions, first.occasion_spread) == (2, 1, None)
    assert both.occasion_spread == pytest.approx(math.log(1.21) / math.sqrt(2))
    assert both.within_run == first.within_run


def test_occasions_that_differ_by_more_decide_by_their_spread() -> None:
    """Beyond what is expected there is one degree of freedom less than occasions; with nothing expected only those."""
    logs = [0.10, 0.16, 0.04]
    exact = mean_over_occasions([Occasion(value, Error(0.0, math.inf)) for value in logs])
    assert exact.log_ratio == pytest.approx(0.1)
    assert exact.error.degrees == 2
    assert exact.error.standard_error == pytest.approx(0.06 / math.sqrt(3))
    mean = mean_over_occasions([Occasion(value, Error(0.04, 8)) for value in logs], 2e-4)
    assert mean.error.standard_error == pytest.approx(0.06 / math.sqrt(3))
    assert 2 < mean.error.degrees <= 2 * MOST_DEGREES
    assert mean_over_occasions([Occasion(0.1, Error(math.inf, 1)), Occasion(0.1, Error(0.01, 8))]).error.degrees == 1


def test_noise_floor_is_the_larger_deviation() -> None:
    speedup = measured_speedup(1.0, -0.01, 0.01)
    assert speedup.noise_floor == pytest.approx(speedup.high - 1)
    assert speedup.noise_floor > 1 - speedup.low


@pytest.mark.parametrize(
    ("baseline", "candidate", "message"),
    [
        ([[1.0], [1.0]], [[], [], [1.0]], "no round in common"),
        ([[1.0], [1.0]], [[1.0], [0.0]], "not a positive number"),
        ([[1.0, 1.0]], [[1.0, 1.0]], "needs at least 2"),
    ],
)
def test_unusable_times_are_rejected(baseline: list[list[float]], candidate: list[list[float]], message: str) -> None:
    with pytest.raises(ComparisonError, match=message) as raised:
        train_speedup(_rounds(baseline), _rounds(candidate))
    assert "dvc repro" in str(raised.value)
    assert "\n" not in str(raised.value)


def _measurement(
    generator: np.random.Generator, repeats: int, rounds: int, repeat_sd: float
) -> tuple[ProcessTimes, ...]:
    """The times of the repeats of two equal arms. A round deviates by 10 %, most of which both arms share."""
    shape, times = (repeats, rounds), []
    shared = generator.normal(0, 0.1, shape)
    arms = [
        20 * np.exp(shared + generator.normal(0, repeat_sd, (repeats, 1)) + generator.normal(0, 0.05, shape))
        for _ in range(2)
    ]
    for before, after in zip(*arms, strict=True):
        times.append(times_of_rounds(np.arange(rounds), np.stack([before, after], axis=1), rounds))
    return tuple(times)


@pytest.mark.parametrize("repeat_sd", [pytest.param(0.0, marks=pytest.mark.slow), 0.02])
def test_interval_at_which_a_measurement_ends_keeps_its_coverage(repeat_sd: float) -> None:
    """Interim looks as in `profile`, which stops at the first interval that is narrow enough."""
    generator, hits, trials = np.random.default_rng(0), 0, 300
    for _ in range(trials):
        measured = _measurement(generator, max(LOOKS), 12, repeat_sd)
        for repeats in LOOKS:
            confidence = INTERIM_CONFIDENCE if repeats < max(LOOKS) else final_confidence(len(LOOKS) - 1)
            speedup = Speedup(measured[:repeats], confidence)
            if speedup.half_width < 0.04:
                break
        hits += speedup.low <= 1 <= speedup.high
    assert hits / trials >= 0.925  # two standard errors below 0.95


@pytest.mark.parametrize("repeats", [3, 5])
def test_few_repeats_that_differ_keep_the_coverage(repeats: int) -> None:
    """Intervals of the rounds alone would miss the truth more often where repeats differ by 2 %."""
    generator = np.random.default_rng(1)
    speedups = [Speedup(_measurement(generator, repeats, 24, 0.02), final_confidence(0)) for _ in range(400)]
    assert np.mean([item.low <= 1 <= item.high for item in speedups]) >= 0.93
    components = [item.components or (np.nan, np.nan) for item in speedups]
    errors = [of_round / np.sqrt(item.rounds) for item, (of_round, _) in zip(speedups, components, strict=True)]
    covered = [abs(np.log(item.ratio)) <= 2 * error for item, error in zip(speedups, errors, strict=True)]
    assert np.mean(covered) < 0.85


@pytest.mark.parametrize(("tuner_sd", "least"), [(0.005, 0.95), (0.01, 0.94), (0.04, 0.85)])
def test_repeats_that_share_compilations_keep_the_coverage(tuner_sd: float, least: float) -> None:
    """Two compilations of each arm, loaded in turn: more repeats do not show more of what the tuner may choose."""
    generator, holds, without = np.random.default_rng(0), list[bool](), list[bool]()
    for _ in range(1000):
        draws = 10 * np.exp(tuner_sd * generator.normal(size=(2, COMPILATIONS)))
        noise = np.exp(0.005 * generator.normal(size=(2, 4, 8)))
        tables = [
            _rounds([(draw[repeat % COMPILATIONS] * of_repeat).tolist() for repeat, of_repeat in enumerate(of_arm)])
            for draw, of_arm in zip(draws, noise, strict=True)
        ]
        speedup = train_speedup(*tables, interleaved=False)
        both = replace(speedup, tuned=2)
        holds.append(both.low <= 1 <= both.high)
        without.append(speedup.low <= 1 <= speedup.high)
    assert np.mean(holds) >= least
    assert np.mean(without) < np.mean(holds)
    assert both.within_run.error == speedup.within_run.error


def test_looks_share_the_error_rate() -> None:
    """Equal arms: of all the intervals that may be the last one, 5 % have one that misses 1."""
    trials, ends = 20_000, 4  # the last two because more was asked for, again and again
    means = np.cumsum(np.random.default_rng(0).normal(size=(trials, ends, 4)).mean(axis=2), axis=1)
    means /= np.arange(1, ends + 1)
    for looks in range(len(LOOKS) + 1):
        confidences = np.array([final_confidence(looks, before) for before in range(ends)])
        halves = stats.norm.ppf((1 + confidences) / 2) / np.sqrt(4 * np.arange(1, ends + 1))
        missed = np.logical_or.accumulate(abs(means) > halves, axis=1).mean(axis=0)
        interim = max(looks, MIN_LOOKS_PAID) * (1 - INTERIM_CONFIDENCE)
        assert 0.85 * (0.05 - interim) < missed[1] < 1.05 * (0.05 - interim)
        assert missed[-1] + interim < 0.0525
    assert final_confidence(len(LOOKS)) < INTERIM_CONFIDENCE


def test_ratio_is_of_examples_per_second_where_batches_differ() -> None:
    """A step of 64 examples takes 15 ms, one of 32 takes 10 ms: 4/3 as many examples per second."""
    before, after = _rounds([[20.0, 40.0], [30.0, 60.0]], steps=2), _rounds([[15.0, 30.0], [22.5, 45.0]], steps=1)
    speedup = train_speedup(before, after, batch_sizes=(32, 64))
    assert speedup.ratio == pytest.approx(4 / 3)
    assert speedup.baseline_time_ms / speedup.candidate_time_ms == pytest.approx(4 / 3)
    assert speedup.baseline_time_ms == pytest.approx(150 / 8)
    with pytest.raises(ComparisonError, match="differ in the length"):
        train_speedup(before, after)
    with pytest.raises(ComparisonError, match="a round occurs twice"):
        train_speedup(before, pd.concat([after, after]), batch_sizes=(32, 64))
