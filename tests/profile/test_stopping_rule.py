"""The stopping rule, for rounds with known noise."""

from __future__ import annotations

import time

import numpy as np
import pytest

from stages.params import ProfileParams
from stages.profile.records import ArmRecord, ArmSettings
from stages.profile.stopping_rule import MIN_PROCESSES, Decision, StoppingRule, speedups
from stages.results.profile import Call, InForce, Protocol, Round
from tests.small_study import CONFIGURATION

LOW_NOISE = 0.001  # standard deviation of the logarithm of a round's time
SETTINGS = ArmSettings(CONFIGURATION, InForce(policy="float32", xla=False, tf32=True, onednn=True), None)


def run(
    profile: ProfileParams, noise: float, *, rounds: int = 10, seconds: float = 0.0, speedup: float = 1.3
) -> tuple[Protocol, dict[str, ArmRecord]]:
    """Adds rounds that take `seconds` each until the rule ends the measurement."""
    rule, records, decision = measured(profile, noise, rounds=rounds, seconds=seconds, speedup=speedup)
    return rule.protocol(decision), records


def measured(
    profile: ProfileParams, noise: float, *, rounds: int = 10, seconds: float = 0.0, speedup: float = 1.3
) -> tuple[StoppingRule, dict[str, ArmRecord], Decision]:
    records = {name: ArmRecord(SETTINGS) for name in ("float32", "mixed_bfloat16", "_control")}
    rule, generator = StoppingRule(profile, "float32", records), np.random.default_rng(1)
    for process in range(profile.processes):
        with rule.timing():
            for number in rule.rounds():
                time.sleep(seconds)
                if number == rounds:
                    break
                for name, record in records.items():
                    time_ms = 100 * np.exp(noise * generator.normal()) / (speedup if name == "mixed_bfloat16" else 1)
                    record.times.rounds.append(Round(process, number, 0, 1, time_ms))
                    record.times.calls.append(Call(process, number, 1, 0, time_ms))
        decision = rule.decide()
        assert rule.decide() == decision  # no side effects
        if decision.ended_by:
            return rule, records, decision
    raise AssertionError("the rule ends with the last process")


def protocol(**changes: object) -> ProfileParams:
    return ProfileParams.model_validate({"inference_batch_sizes": [1], **changes})


def test_precise_measurement_ends_at_the_first_look() -> None:
    found = run(protocol(), LOW_NOISE)[0]
    assert (found.ended_by, found.processes, found.interim_looks) == ("target_precision", 4, 1)
    assert found.confidence == 0.995


def test_no_look_before_30_rounds() -> None:
    found = run(protocol(), LOW_NOISE, rounds=5)[0]
    assert (found.processes, found.rounds, found.interim_looks) == (6, 30, 1)


def test_noisy_measurement_runs_all_rounds() -> None:
    found = run(protocol(rounds=10), noise=0.2)[0]
    assert (found.ended_by, found.processes, found.interim_looks) == ("rounds", 8, 4)
    assert found.confidence == pytest.approx(0.965)  # three interim looks cost 0.5 % each


def test_repeated_decisions_do_not_change_the_interval() -> None:
    rule, _, decision = measured(protocol(rounds=10), noise=0.2)
    for _ in range(20):
        rule.decide()
    assert rule.decide() == decision
    assert rule.protocol(rule.decide()).confidence == pytest.approx(0.965)
    with pytest.raises(AttributeError):
        decision.confidence = 0.5  # type: ignore[misc]


def test_processes_share_the_time_budget() -> None:
    found, records = run(protocol(max_seconds=1.6), noise=0.2, rounds=1000, seconds=0.02)
    assert (found.ended_by, found.processes) == ("max_seconds", 8)
    assert found.timing_seconds > 1.4
    of_process = np.unique([row.process for row in records["float32"].times.rounds], return_counts=True)[1]
    assert of_process.min() >= 2
    assert found.rounds == sum(of_process) <= 1.6 / 0.02 + 8  # each process may start one round too many


def test_slow_arms_run_one_round_in_each_of_4_processes() -> None:
    found, _ = run(protocol(max_seconds=0.1), noise=0.2, seconds=0.06)
    assert (found.ended_by, found.processes, found.rounds) == ("max_seconds", MIN_PROCESSES, MIN_PROCESSES)
    assert found.timing_seconds > 0.2
    assert found.confidence == 0.95  # no interim look


def test_intervals_of_inference_are_included() -> None:
    profile = protocol()
    _, records = run(profile, LOW_NOISE)
    found = speedups(records, "float32", profile, 0.95)
    assert [ratio.ratio for ratio in found] == pytest.approx([1.3, 1.3], rel=0.01)


def test_control_is_used_without_a_candidate() -> None:
    profile = protocol()
    _, records = run(profile, LOW_NOISE)
    del records["mixed_bfloat16"]
    assert [ratio.ratio for ratio in speedups(records, "float32", profile, 0.95)] == pytest.approx([1, 1], rel=0.01)
    assert speedups(records, "absent", profile, 0.95) == []
