"""When each measure of each candidate ends, for rounds with known noise."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from halfstep.profile import schedule
from halfstep.profile.records import ArmRecord, Calibration, Measurement
from halfstep.profile.stopping_rule import StoppingRule, Target
from halfstep.results.profile import InferenceCall, Round
from halfstep.stats.speedup import INTERIM_CONFIDENCE, LOOKS, final_confidence
from halfstep.system import files
from halfstep.words.text import TRAIN
from tests.profile.arm_records import BRIDGE, arm_record
from tests.small_study import settings_in_force
from tools.benchmarks.simulation import Machine, simulate

TARGET = Target(precision=0.02, min_speedup=1.05, verdicts=6)
MEASURES = ("train", "inference_b1")


def record(name: str, step_ms: float) -> ArmRecord:
    arm = arm_record(name if name.startswith("mixed") else "float32")
    if name == "mixed_float16":  # as `onednn: false`
        settings = arm.settings
        changed = settings_in_force("mixed_float16", onednn=False)
        arm.settings = type(settings)(settings.configuration, changed)
    arm.calibration = Calibration(step_ms, 0.1, 0, None, {1: step_ms}, {1: 0})
    return arm


def records(**step_ms: float) -> dict[str, ArmRecord]:
    return {name: record(name, time_ms) for name, time_ms in step_ms.items()}


def add_repeat(
    arms: dict[str, ArmRecord], number: int, step_ms: dict[str, float], noise: float = 0.02, rounds: int = 12
) -> None:
    """Adds rounds and calls of a repeat of the arms that have a time."""
    random = np.random.default_rng([number, rounds])
    for name, time_ms in step_ms.items():
        times = arms.setdefault(name, record(name, time_ms)).times
        for row in range(rounds):
            noisy_ms = [float(time_ms * np.exp(noise * random.normal())) for _ in range(2)]
            times.rounds.append(Round(number, row, 0, 1, noisy_ms[0]))
            times.calls.append(InferenceCall(number, row, 1, 0, noisy_ms[1]))


def rule(arms: dict[str, ArmRecord], target: Target = TARGET) -> StoppingRule:
    return StoppingRule(Measurement({}, records=arms), "float32", (1,), target)


def measured(step_ms: dict[str, float], repeats: int, noise: float = 0.02, target: Target = TARGET) -> StoppingRule:
    """A rule that looks after each repeat."""
    arms = records(**step_ms)
    rule_ = rule(arms, target)
    for number in range(repeats):
        add_repeat(arms, number, step_ms, noise)
        rule_.look(None)
    return rule_


def test_clear_answer_ends_at_the_first_look() -> None:
    stopping_rule = measured({"float32": 10.0, "mixed_bfloat16": 5.0}, 3)
    ending = stopping_rule.endings["mixed_bfloat16", "train"]
    assert (ending.ended_by, ending.confidence, ending.looks, ending.repeats) == ("decided", INTERIM_CONFIDENCE, 1, 3)
    assert not stopping_rule.has_open


@pytest.mark.parametrize("candidate_ms", [10.0, 20.0])
def test_rejection_is_decided_as_an_adoption_is(candidate_ms: float) -> None:
    stopping_rule = measured({"float32": 10.0, "mixed_bfloat16": candidate_ms}, 3)
    assert {ending.ended_by for ending in stopping_rule.endings.values()} <= {"decided", "target_precision"}
    assert not stopping_rule.has_open


def test_undecided_measure_goes_on_until_the_time_is_up() -> None:
    stopping_rule = measured({"float32": 10.5, "mixed_bfloat16": 10.0}, 5, noise=0.2)
    assert stopping_rule.has_open
    stopping_rule.look("time")
    endings = stopping_rule.endings.values()
    assert {ending.ended_by for ending in endings} == {"time"}
    assert {ending.looks for ending in endings} == {3}  # after 3 and 4 repeats, and the last
    assert [ending.confidence for ending in endings] == [pytest.approx(1 - 0.57 * 0.04)] * 2


def test_looks_are_few_and_paid() -> None:
    stopping_rule = measured({"float32": 10.5, "mixed_bfloat16": 10.0}, 9, noise=0.3)
    stopping_rule.look("rounds")
    assert {ending.looks for ending in stopping_rule.endings.values()} == {len(LOOKS) + 1}
    expected = pytest.approx(1 - 0.57 * (0.05 - 0.005 * len(LOOKS)))
    assert [ending.confidence for ending in stopping_rule.endings.values()] == [expected] * 2


@pytest.mark.parametrize(
    ("candidate_ms", "noise", "goes_on"),
    [(9.7, 0.03, True), (10.0, 0.2, False), (8.0, 0.05, False), (20.0, 0.2, False)],
    ids=["undecided, and may be settled", "undecided, at the threshold", "adopted", "rejected"],
)
def test_measure_goes_on_after_its_time_only_if_that_may_settle_it(
    candidate_ms: float, noise: float, goes_on: bool
) -> None:
    """Also where its interval is wide: what is decided then has ended."""
    stopping_rule = measured({"float32": 10.5, "mixed_bfloat16": candidate_ms}, 5, noise)
    stopping_rule._measurement.looks.clear()
    stopping_rule.look("time", narrowing=0.7)
    assert {measure for _, measure in stopping_rule.open()} == ({"train", "inference_b1"} if goes_on else set())
    stopping_rule.look("time")
    endings = stopping_rule.endings.values()
    assert {ending.last_looks for ending in endings} == {2 if goes_on else 1}
    assert {ending.confidence for ending in endings} == {final_confidence(0)}


def test_wide_interval_does_not_end_a_measure_although_it_is_decided() -> None:
    """Few repeats may agree by chance that a candidate is fast."""
    stopping_rule = measured({"float32": 30.0, "mixed_bfloat16": 10.0}, 3, noise=0.3)
    assert stopping_rule.has_open


@pytest.mark.parametrize(("candidate_ms", "ends"), [(64.0, True), (31.0, False)])
def test_wide_interval_far_below_what_is_required_ends_a_measure(candidate_ms: float, ends: bool) -> None:
    """More repeats would say 0.47× more exactly, and reject it all the same."""
    stopping_rule = measured({"float32": 30.0, "mixed_bfloat16": candidate_ms}, 3, noise=0.2)
    assert {ending.ended_by for ending in stopping_rule.endings.values()} == ({"decided"} if ends else set())
    assert stopping_rule.has_open is not ends


SERVED = replace(TARGET, trains=False)


@pytest.mark.parametrize(
    ("format_ms", "target", "ends"), [(0.5, SERVED, True), (5.0, SERVED, False), (0.5, TARGET, False)]
)
def test_format_that_is_far_beyond_what_is_required_ends_after_two_repeats(
    format_ms: float, target: Target, ends: bool
) -> None:
    """20×, and not 2×, which is too near; and no training, whose first look is after three repeats."""
    stopping_rule = measured({"float32": 10.0, "litert": format_ms}, 2, target=target)
    assert stopping_rule.has_open is not ends
    assert {ending.repeats for ending in stopping_rule.endings.values()} == ({2} if ends else set())
    assert {ending.confidence for ending in stopping_rule.endings.values()} == ({INTERIM_CONFIDENCE} if ends else set())


def test_wide_interval_far_beyond_what_is_required_goes_on() -> None:
    assert measured({"float32": 10.0, "litert": 0.5}, 2, noise=0.8, target=SERVED).has_open


def test_precision_counts_for_the_factor_of_the_precision_too() -> None:
    """A candidate with another setting is open until its bridging arm is as precise."""
    step_ms = {"float32": 10.0, "mixed_float16": 9.0}
    arms = records(**step_ms)
    rule_ = rule(arms, Target(precision=0.05, min_speedup=1.05, verdicts=6))
    for number in range(3):
        add_repeat(arms, number, step_ms, noise=0.01)
    rule_.look(None)
    assert rule_.has_open
    for number in range(3, 6):
        add_repeat(arms, number, {**step_ms, BRIDGE: 9.5}, noise=0.01)
    rule_.look(None)
    assert not rule_.has_open


def test_bridging_arm_runs_where_its_candidate_may_still_be_adopted() -> None:
    fast, slow = records(float32=10.0, mixed_float16=5.0), records(float32=10.0, mixed_float16=20.0)
    assert rule(fast).needed(with_control=True)[BRIDGE] == {*MEASURES}
    assert BRIDGE not in rule(slow).needed(with_control=True)
    for number in range(2):  # slow by its calibration, and fast by its rounds
        add_repeat(slow, number, {"float32": 10.0, "mixed_float16": 8.0})
    assert rule(slow).needed(with_control=True)[BRIDGE] == {*MEASURES}


def test_control_is_no_candidate() -> None:
    stopping_rule = rule(records(float32=10.0, mixed_bfloat16=10.0, **{files.CONTROL: 10.0}))
    assert stopping_rule.candidates == ["mixed_bfloat16"]
    assert stopping_rule.needed(with_control=True)[files.CONTROL] == {*MEASURES}
    assert files.CONTROL not in stopping_rule.needed(with_control=False)


def test_control_is_the_candidate_without_others() -> None:
    stopping_rule = rule(records(float32=10.0, **{files.CONTROL: 10.0}))
    assert stopping_rule.candidates == [files.CONTROL]
    assert stopping_rule.needed(with_control=True)[files.CONTROL] == {*MEASURES}


@pytest.mark.parametrize("machine", [Machine(), Machine(0.003, 0.005, interleaved=False, tuner_sd=0.01)])
def test_rule_ends_a_simulated_measurement(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/evidence.md counts errors by."""
    monkeypatch.setattr(schedule, "time", time)  # afterwards the clock is a real one again
    found = simulate(machine, np.random.default_rng(0), {("mixed_float16", TRAIN): 1.5})
    assert found.repeats >= 2
    assert found.speedups["mixed_float16", TRAIN].low > 1.2
