"""Reasons that rest on timings: built cases, and the nearest ones whose interval holds no difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from halfstep.compare.case import Case, SpeedupFactors
from halfstep.compare.rules.explain import explain
from halfstep.results.comparison import Reason
from halfstep.results.profile import Profile
from halfstep.stats.speedup import Speedup, train_speedup
from halfstep.words.text import TRAIN
from tests.small_study import case_of, environment, measured_speedup, profile, speedup_between

CPU = environment("avx2", "avx512_bf16")
B1, B32 = "inference_b1", "inference_b32"


def _rounds(step_times_ms: NDArray[np.float64]) -> pd.DataFrame:
    """A rounds.csv from times of a step, `(processes, rounds)`."""
    processes, rounds = step_times_ms.shape
    return pd.DataFrame(
        {
            "process": np.repeat(np.arange(processes), rounds),
            "round": np.tile(np.arange(rounds), processes),
            "steps": 4,
            "round_time_ms": 4 * step_times_ms.ravel(),
            "counted": True,
        }
    )


def _case(
    speedups: dict[str, Speedup], candidate: Profile | None = None, policy: str = "mixed_bfloat16", **changes: Any
) -> Case:
    after = candidate or profile(policy=policy)
    return case_of(profile(), after, None, CPU, speedups=speedups, **{"min_speedup": 1.05} | changes)


def _only(reasons: tuple[Reason, ...], code: str) -> Reason:
    (only_reason,) = (reason for reason in reasons if reason.code == code)
    return only_reason


def _codes(case: Case) -> list[tuple[str, str]]:
    return [(reason.measure, reason.code) for reason in explain(case)]


def _stalling(seed: int, share: float, arm: int) -> Speedup:
    """A candidate 10 % faster; one arm takes three times as long in a share of its rounds."""
    rng = np.random.default_rng(seed)
    arms = [10 * np.exp(rng.normal(0, 0.02, (8, 40))), 9 * np.exp(rng.normal(0, 0.02, (8, 40)))]
    for row in arms[arm]:
        row[rng.choice(40, int(share * 40), replace=False)] *= 3
    return train_speedup(*map(_rounds, arms))


def test_candidate_that_is_faster_but_stalls() -> None:
    """The middle half of the rounds shows 1.11, and the true throughput is 0.855."""
    speedup = _stalling(1, 0.15, arm=1)
    reason = _only(explain(_case({TRAIN: speedup})), "stalls")
    assert reason.evidence["arm"] == "variant"
    assert reason.evidence["ratio"] == pytest.approx(10 / 9 / 1.3, rel=0.01)
    assert reason.evidence["typical_ratio"] == pytest.approx(10 / 9, rel=0.02)
    assert reason.evidence["high"] < 1
    assert f"{speedup.ratio:.2f}×, lower than that of typical rounds, {speedup.typical_ratio:.2f}×" in reason.text
    assert reason.time_ms == pytest.approx(9 * 0.3, rel=0.1)


def test_baseline_that_stalls() -> None:
    reason = _only(explain(_case({B1: _stalling(2, 0.15, arm=0)})), "stalls")
    assert (reason.measure, reason.evidence["arm"]) == (B1, "baseline")
    assert reason.evidence["low"] > 1


def test_stalls_that_may_be_noise_are_no_reason() -> None:
    assert _codes(_case({TRAIN: _stalling(1, 0.0, arm=1)})) == []
    rng = np.random.default_rng(4)
    arms = [np.full((4, 20), 10.0), np.full((4, 20), 9.0)]
    arms[1][0, rng.choice(20, 6, replace=False)] *= 3  # in one process only
    speedup = train_speedup(*map(_rounds, arms))
    assert speedup.ratio / speedup.typical_ratio < 0.98
    assert speedup.stall_interval[1] > 1
    assert _codes(_case({TRAIN: speedup})) == []


def test_control_that_differs_voids_what_was_timed_for_its_measure() -> None:
    stalling, control = _stalling(1, 0.15, arm=1), {TRAIN: measured_speedup(1.1, 0.01, -0.01, 0.0, 0.0), B1: None}
    speedups = {TRAIN: stalling, B1: stalling}
    void = _case(speedups, void={TRAIN}, control=control)
    assert _codes(void) == [(TRAIN, "control_differs"), (B1, "stalls")]
    reason = _only(explain(void), "control_differs")
    assert reason.evidence["confidence"] == pytest.approx(0.995)  # 1 % over two measures
    assert 1 < reason.evidence["low"] < 1.1 < reason.evidence["high"]
    assert _codes(_case(speedups, control=control)) == [(TRAIN, "stalls"), (B1, "stalls")]


def _factors(settings: tuple[float, float], precision: tuple[float, float]) -> SpeedupFactors:
    return SpeedupFactors(speedup_between(*settings), speedup_between(*precision))


WITHOUT_ONEDNN = {"onednn": False}


def test_speedup_that_comes_from_the_settings() -> None:
    """float16 at batch 1 is faster because oneDNN is off."""
    after = profile(policy="mixed_float16", entry=WITHOUT_ONEDNN)
    factors = {B1: _factors((1.33, 1.43), (0.95, 1.01))}
    reasons = explain(_case({B1: speedup_between(1.30, 1.40)}, after, factors=factors))
    reason = _only(reasons, "settings_not_precision")
    assert reason.measure == B1
    assert reason.evidence["settings"] == WITHOUT_ONEDNN
    assert reason.evidence["precision_factor"]["high"] == pytest.approx(1.01)
    assert "comes from oneDNN off" in reason.text
    assert "1.38× (1.33 to 1.43)" in reason.text
    assert reason.advice == "Try onednn: false in the entry of the baseline in variants."
    assert [reason.code for reason in reasons if reason.measure == B1] == ["settings_not_precision"]


@pytest.mark.parametrize(
    ("whole", "settings", "precision"),
    [
        ((1.04, 1.40), (1.33, 1.43), (0.95, 1.01)),
        ((1.30, 1.40), (1.33, 1.43), (0.95, 1.06)),
        ((0.70, 0.80), (0.60, 0.80), (0.95, 1.01)),
    ],
    ids=["the whole may not be worth having", "the precision may be", "slower"],
)
def test_settings_are_named_with_their_factor_otherwise(
    whole: tuple[float, float], settings: tuple[float, float], precision: tuple[float, float]
) -> None:
    after = profile(policy="mixed_float16", entry=WITHOUT_ONEDNN)
    case = _case({B1: speedup_between(*whole)}, after, factors={B1: _factors(settings, precision)})
    (reason,) = (reason for reason in explain(case) if reason.measure == B1)
    assert reason.code == "onednn_differs"
    assert f"({settings[0]:.2f} to {settings[1]:.2f})" in reason.text
    assert f"({precision[0]:.2f} to {precision[1]:.2f})" in reason.text


def test_setting_without_an_effect_is_no_reason() -> None:
    factors, whole = {B1: _factors((0.99, 1.43), (0.95, 1.01))}, {B1: speedup_between(1.30, 1.40)}
    for policy, data in (("mixed_float16", factors), ("float32", {})):
        after, ratios = profile(policy=policy, entry=WITHOUT_ONEDNN), whole if data else {B1: speedup_between(0.9, 1.1)}
        assert [item for item in explain(_case(ratios, after, factors=data)) if item.measure == B1] == []


@pytest.mark.parametrize(("low", "high", "better"), [(1.30, 1.40, "plain"), (0.70, 0.80, "float32")])
def test_setting_is_what_is_compared_where_the_policy_is_the_same(low: float, high: float, better: str) -> None:
    after = profile(policy="float32", entry=WITHOUT_ONEDNN)
    after = replace(after, summary=after.summary.model_copy(update={"variant": "plain"}))
    reasons = explain(_case({B1: speedup_between(low, high)}, after))
    (reason,) = (reason for reason in reasons if reason.measure == B1)
    assert reason.text.endswith(f"({low:.2f} to {high:.2f}) comes from oneDNN off.")
    assert reason.advice == f"To predict faster, take onednn as in {better}."


def _input_rounds(*rounds: tuple[float, float]) -> pd.DataFrame:
    """An input_rounds.csv of two repeats from the times of a step with the input and on a cached batch, by round."""
    return pd.DataFrame(
        [
            {"process": number % 2, "round": number // 2, "batches": kind, "steps": 5, "round_time_ms": 5 * time_ms}
            for number, times in enumerate(rounds)
            for kind, time_ms in zip(("pipeline", "cached"), times, strict=True)
        ]
    )


def _input_reasons(rounds: pd.DataFrame, metrics: dict[str, float] | None = None) -> list[Reason]:
    measured = replace(profile(metrics), input_rounds=rounds, rounds=_rounds(np.ones((4, 2))))
    return [reason for reason in explain(Case.alone(measured, CPU)) if reason.code == "input_bound"]


def test_few_noisy_rounds_are_no_reason() -> None:
    """39 % of the step by one round a side, as a memory-mapped data set of small images once showed."""
    traced = {"profiler/step_time_ms": 100.0, "profiler/input_ms": 50.0}
    assert _input_reasons(_input_rounds((189.0, 115.2))) == []
    assert _input_reasons(_input_rounds((189.0, 115.2)), traced) == []
    assert _input_reasons(_input_rounds(*[(189.0, 115.2)] * 3)) == []
    assert _input_reasons(_input_rounds((189.0, 115.2), (60.0, 58.0), (59.0, 61.0), (60.0, 60.0), (61.0, 58.0))) == []


def test_input_that_takes_a_fifth_of_the_step_in_every_round() -> None:
    rounds = _input_rounds((50.0, 39.0), (52.0, 41.5), (51.0, 40.0), (50.0, 40.0), (51.0, 40.5), (50.0, 39.5))
    (reason,) = _input_reasons(rounds)
    assert reason.evidence["share"] == pytest.approx(63.5 / 304)
    assert 0 < reason.evidence["low"] < reason.evidence["share"] < reason.evidence["high"]
    assert reason.evidence["rounds"] == 6
    assert reason.text == (
        f"10.6 of 50.7 ms of a training step wait for input (21 %, {100 * reason.evidence['low']:.0f} to "
        f"{100 * reason.evidence['high']:.0f} %), which no precision makes shorter."
    )
    assert reason.time_ms == pytest.approx(63.5 / 6)


@pytest.mark.parametrize(
    "rounds",
    [
        [(50.0, 41.0), (52.0, 42.5), (51.0, 42.0), (50.0, 41.0), (52.0, 42.0)],
        [(50.0, 10.0), (50.0, 50.0), (50.0, 49.0), (50.0, 49.0), (51.0, 49.0)],
        [(50.0, 30.0), (50.0, 31.0), (50.0, 30.0)],
        [(50.0, 30.0), (50.0, 30.0), (50.0, 47.0), (50.0, 47.0)] * 2,
    ],
    ids=["less than a fifth", "one round only", "three rounds", "low end below a tenth"],
)
def test_input_that_may_not_matter_is_no_reason(rounds: list[tuple[float, float]]) -> None:
    assert _input_reasons(_input_rounds(*rounds)) == []


def test_trace_of_another_program_shows_input_by_itself() -> None:
    foreign = profile({"profiler/step_time_ms": 100.0, "profiler/input_ms": 20.0})
    assert [reason.code for reason in explain(Case.alone(foreign, CPU))] == ["input_bound"]
    assert explain(Case.alone(profile({"profiler/step_time_ms": 100.0, "profiler/input_ms": 19.9}), CPU)) == ()
    measured = replace(foreign, rounds=_rounds(np.ones((4, 2))))
    assert explain(Case.alone(measured, CPU)) == ()


def _with_calls(*by_process: tuple[float, float]) -> Profile:
    """Latencies at batch sizes 1 and 32, by process; the first call of each does not count."""
    calls = [
        {
            "process": process,
            "round": 0,
            "batch_size": size,
            "call": call,
            "latency_ms": latency if call else 9 * latency,
            "counted": call > 0,
        }
        for process, latencies in enumerate(by_process)
        for size, latency in zip((1, 32), latencies, strict=True)
        for call in range(3)
    ]
    return replace(profile(policy="mixed_bfloat16"), calls=pd.DataFrame(calls))


def test_fixed_time_of_a_call() -> None:
    """0.5 ms and 0.05 ms an image: at batch size 1, 91 % of a call does not grow with the batch size."""
    after = _with_calls((0.55, 2.1), (0.56, 2.11), (0.54, 2.09), (0.55, 2.1))
    same = speedup_between(0.99, 1.03)
    reasons = explain(_case({B1: same, B32: same}, after))
    (reason,) = reasons
    assert (reason.measure, reason.code) == (B1, "fixed_overhead")
    assert reason.evidence["share"] == pytest.approx(0.5 / 0.55, rel=0.01)
    assert reason.evidence["call_ms"] == pytest.approx(0.55)
    assert reason.evidence["low"] > 0.5
    assert "91 % of a call" in reason.text


@pytest.mark.parametrize(
    ("calls", "interval"),
    [
        ([(0.55, 12.0)] * 4, (0.99, 1.03)),
        ([(0.55, 2.1), (0.9, 2.1), (0.2, 6.0), (0.55, 2.1)], (0.99, 1.03)),
        ([(0.55, 2.1)] * 2, (0.99, 1.03)),
        ([(0.55, 2.1)] * 4, (1.01, 1.06)),
        ([(0.55, 2.1)] * 4, (0.90, 0.99)),
    ],
    ids=["grows with the batch", "differs between processes", "two processes", "may be worth having", "slower"],
)
def test_fixed_time_that_explains_nothing(calls: list[tuple[float, float]], interval: tuple[float, float]) -> None:
    same = speedup_between(*interval)
    assert explain(_case({B1: same, B32: same}, _with_calls(*calls))) == ()


def test_reasons_of_training_come_first() -> None:
    after = profile({"profiler/step_time_ms": 100.0, "profiler/other_ms": 80.0}, policy="mixed_bfloat16")
    speedups = {TRAIN: _stalling(1, 0.15, arm=1), B32: _stalling(2, 0.15, arm=1)}
    assert _codes(_case(speedups, after)) == [(TRAIN, "model_too_small"), (TRAIN, "stalls"), (B32, "stalls")]
