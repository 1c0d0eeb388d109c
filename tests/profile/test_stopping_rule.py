"""The stopping rule, for rounds with known noise."""

from __future__ import annotations

import numpy as np
import pytest

from stages import files
from stages.profile import stopping_rule
from stages.profile.plan import MIN_PROCESSES, Plan
from stages.profile.records import ArmRecord
from stages.profile.stopping_rule import Decision, StoppingRule, speedups
from stages.results.profile import Call, RawTimes, Round
from stages.stats.speedup import ALONE, PAIRS
from tests.profile.arm_records import arm_record

LOW_NOISE = 0.001  # standard deviation of the logarithm of a round's time
BRIDGE = f"{files.BRIDGE_PREFIX}onednn_off"
SPEEDUPS = {"float32": 1.0, "mixed_bfloat16": 1.3, "_control": 1.0, BRIDGE: 0.8}
Measured = tuple[StoppingRule, dict[str, ArmRecord], Decision]


class Clock:
    """A clock that only `sleep` advances, so that other programs do not change what is tested."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


CLOCK = Clock()


@pytest.fixture(autouse=True)
def simulated_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping_rule, "time", CLOCK)


def plan(**changes: object) -> Plan:
    values: dict[str, object] = {
        "processes": 8,
        "timing_s": 60.0,
        "training_share": 0.5,
        "steps_per_round": 1,
        "lead_in_steps": 0,
        "calls": {1: 1},
        "rounds": 5,
        "trace_steps": 2,
        "input_matters": False,
        "startup_s": 1.0,
        "stage_s": 100.0,
    }
    return Plan(**(values | changes))  # type: ignore[arg-type]


def measured(plan: Plan, noise: float, *, seconds: float = 0.0) -> Measured:
    """Adds rounds that take `seconds` each until the rule ends the measurement."""
    records = {name: arm_record() for name in SPEEDUPS}
    rule, generator = StoppingRule(plan, 0.02, "float32", records), np.random.default_rng(1)
    while True:
        process = rule.processes
        for rows, rounds in (("rounds", rule.training_rounds()), ("calls", rule.inference_rounds())):
            for number in rounds:
                CLOCK.sleep(seconds)
                for name, record in records.items():
                    time_ms = 100 * np.exp(noise * generator.normal()) / SPEEDUPS[name]
                    row = (
                        Round(process, number, 0, 1, time_ms)
                        if rows == "rounds"
                        else Call(process, number, 1, 0, time_ms)
                    )
                    getattr(record.times, rows).append(row)
        rule.end_process()
        decision = rule.decide()
        again = rule.decide()
        assert (again.ended_by, again.confidence, again.looks) == (
            decision.ended_by,
            decision.confidence,
            decision.looks,
        )
        if decision.ended_by:
            return rule, records, decision


def shared(plan: Plan, seconds: dict[str, float]) -> tuple[StoppingRule, dict[str, ArmRecord]]:
    """Measures arms of which only `plan.at_once` live at once; a round takes `seconds`, by arm."""
    records = {name: arm_record() for name in ("float32", "mixed_bfloat16", "_control")}
    blocks = [("float32", "mixed_bfloat16"), ("float32", "_control")]
    rule = StoppingRule(plan, 0.02, "float32", records)
    for process in range(plan.processes):
        for block, names in enumerate(blocks if plan.at_once == PAIRS else [(name,) for name in records]):
            number = process * plan.blocks + block if plan.at_once == PAIRS else process
            for row in rule.training_rounds():
                for name in names:
                    CLOCK.sleep(seconds[name])
                    records[name].times.rounds.append(Round(number, row, 0, 1, 1e3 * seconds[name]))
            for row in rule.inference_rounds():
                for name in names:
                    records[name].times.calls.append(Call(number, row, 1, 0, 1e3 * seconds[name]))
            rule.end_process()
        assert (rule.processes, rule.is_complete) == (process + 1, True)
    return rule, records


SECONDS = {"float32": 0.02, "mixed_bfloat16": 0.01, "_control": 0.02}
AT_ONCE = {"timing_s": 1.2, "rounds": None, "processes": 4, "training_share": 0.9}


def test_pairs_share_the_time_of_a_process() -> None:
    rule, records = shared(plan(**AT_ONCE, at_once=PAIRS, blocks=2, calls={}), SECONDS)
    assert 1.0 < rule.timing_seconds < 1.2 + 8 * 0.05
    of_pairs = np.unique([row.process for row in records["float32"].times.rounds], return_counts=True)
    assert of_pairs[0].tolist() == list(range(8))
    assert of_pairs[1].min() >= 2
    decision = rule.decide()
    assert (rule.processes, decision.ended_by) == (4, "target_precision")
    assert decision.speedups["mixed_bfloat16"]["train"].ratio == pytest.approx(2)
    assert decision.speedups["mixed_bfloat16"]["train"].processes == 4


def test_arms_that_live_one_after_the_other_run_as_many_rounds() -> None:
    planned = plan(**AT_ONCE, at_once=ALONE, blocks=3, round_s=0.05, inference_round_s=0.01)
    rule, records = shared(planned, SECONDS)
    for table in ("rounds", "calls"):
        rows = [[(row.process, row.round) for row in getattr(record.times, table)] for record in records.values()]
        assert rows[0] == rows[1] == rows[2]
        assert {process for process, _ in rows[0]} == set(range(4))
        assert np.unique([process for process, _ in rows[0]], return_counts=True)[1].min() >= 2
    assert 0.9 < rule.timing_seconds < 1.5
    assert rule.decide().speedups["mixed_bfloat16"]["train"].ratio == pytest.approx(2)


def test_number_of_rounds_in_the_parameters_holds_one_after_the_other() -> None:
    planned = plan(processes=2, rounds=2, at_once=ALONE, blocks=3, round_s=0.05, inference_round_s=0.015, calls={})
    rule, records = shared(planned, SECONDS)
    assert {row.round for row in records["float32"].times.rounds} == {0, 1}
    assert rule.decide().ended_by in ("rounds", "target_precision")


def times(records: dict[str, ArmRecord]) -> dict[str, RawTimes]:
    return {name: record.times for name, record in records.items()}


def test_precise_measurement_ends_at_the_first_look() -> None:
    rule, _, decision = measured(plan(), LOW_NOISE)
    assert (decision.ended_by, rule.processes, decision.looks) == ("target_precision", 4, 1)
    assert decision.confidence == 0.995


def test_noisy_measurement_runs_all_rounds() -> None:
    rule, _, decision = measured(plan(), noise=0.2)
    assert (decision.ended_by, rule.processes, decision.looks) == ("rounds", 8, 4)
    assert decision.confidence == pytest.approx(0.965)  # three interim looks cost 0.5 % each


def test_processes_share_the_time() -> None:
    rule, records, decision = measured(plan(timing_s=1.6, rounds=None), noise=0.2, seconds=0.02)
    assert (decision.ended_by, rule.processes) == ("max_seconds", 8)
    assert 1.4 < rule.timing_seconds < 1.6 + 16 * 0.03  # each part of a process may start one round too many
    for rows in (records["float32"].times.rounds, records["float32"].times.calls):
        assert np.unique([row.process for row in rows], return_counts=True)[1].min() >= 2


def test_slow_arms_run_one_round_in_each_of_4_processes() -> None:
    rule, records, decision = measured(plan(timing_s=0.1), noise=0.2, seconds=0.06)
    assert (decision.ended_by, rule.processes) == ("max_seconds", MIN_PROCESSES)
    assert len(records["float32"].times.rounds) == len(records["float32"].times.calls) == MIN_PROCESSES
    assert decision.confidence == 0.995 or decision.looks == 1


def test_all_time_is_for_training_without_inference() -> None:
    _, records, decision = measured(plan(calls={}, training_share=1.0), LOW_NOISE)
    assert set(decision.speedups["mixed_bfloat16"]) == {"train"}
    assert records["float32"].times.calls == []


def test_speedups_are_of_candidates_and_pool_the_control() -> None:
    _, records, _ = measured(plan(), LOW_NOISE)
    found = speedups(times(records), "float32", 0.95)
    assert list(found) == ["mixed_bfloat16"]  # neither the control nor the bridging arm
    assert [ratio.ratio for ratio in found["mixed_bfloat16"].values()] == pytest.approx([1.3, 1.3], rel=0.01)
    without = speedups({name: rows for name, rows in times(records).items() if name != "_control"}, "float32", 0.95)
    assert without["mixed_bfloat16"]["train"].ratio != found["mixed_bfloat16"]["train"].ratio


def test_control_is_used_without_a_candidate() -> None:
    _, records, _ = measured(plan(), LOW_NOISE)
    found = {name: rows for name, rows in times(records).items() if name in ("float32", "_control")}
    (ratios,) = speedups(found, "float32", 0.95).values()
    assert [ratio.ratio for ratio in ratios.values()] == pytest.approx([1, 1], rel=0.01)
    assert speedups(found, "absent", 0.95) == {}
