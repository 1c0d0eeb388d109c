"""How much is measured, from the costs of starting, of a step and of a call."""

from __future__ import annotations

from typing import Any

import pytest

from stages.params import ProfileParams
from stages.profile.plan import (
    BUFFER_SHARE,
    INPUT_SHARE,
    MAX_STAGE_S,
    MIN_PROCESSES,
    Costs,
    Plan,
    make_plan,
    plain_steps,
)

ARMS = ("float32", "mixed_bfloat16", "_control")


def costs(step_time_ms: float, **changes: Any) -> Costs:
    values: dict[str, Any] = {
        "startup_s": 6.0,
        "step_time_ms": dict.fromkeys(ARMS, step_time_ms),
        "input_time_ms": 0.05,
        "latency_ms": {size: dict.fromkeys(ARMS, 0.1 * step_time_ms * size**0.5) for size in (1, 32)},
        "buffered_batches": 4,
        "trainings_s": 600.0,
    }
    return Costs(**(values | changes))


def plan(step_time_ms: float, profile: dict[str, Any] | None = None, **changes: Any) -> Plan:
    return make_plan(ProfileParams(**(profile or {})), costs(step_time_ms, **changes))


@pytest.mark.parametrize("step_time_ms", [0.2, 2.5, 20.0, 74.0, 139.0, 500.0])
def test_half_of_the_stage_is_timing_from_fast_to_slow_steps(step_time_ms: float) -> None:
    found = plan(step_time_ms)
    assert found.timing_s >= 0.49 * found.stage_s
    assert found.stage_s <= MAX_STAGE_S + 1
    assert found.processes >= MIN_PROCESSES


def test_slow_network_still_has_4_processes_of_3_rounds() -> None:
    found = plan(2000.0, startup_s=35.0)
    assert (found.processes, found.steps_per_round) == (MIN_PROCESSES, 1)
    assert found.timing_s * found.training_share / MIN_PROCESSES >= 2 * 2.0 * len(ARMS)


def test_turn_takes_about_as_long_whatever_the_step_takes() -> None:
    assert [plan(ms).steps_per_round for ms in (0.2, 2.0, 30.0, 60.0, 2000.0)] == [300, 30, 2, 1, 1]


def test_short_trainings_get_a_short_profile() -> None:
    short, long = plan(5.0, trainings_s=5.0), plan(5.0, trainings_s=3600.0)
    assert short.stage_s < 100 < 150 < long.stage_s < MAX_STAGE_S + 30
    assert short.processes < long.processes


@pytest.mark.parametrize(("share", "lead_in"), [(0.5, 1), (2.0, 4)], ids=["cheap input", "notable input"])
def test_steps_before_a_turn_use_up_the_buffer_where_that_makes_a_difference(share: float, lead_in: int) -> None:
    assert plan(5.0, input_time_ms=share * BUFFER_SHARE * 5.0).lead_in_steps == lead_in


@pytest.mark.parametrize(("share", "measured"), [(0.5, False), (2.0, True)])
def test_cost_of_the_input_is_measured_only_where_it_may_matter(share: float, measured: bool) -> None:
    assert plan(5.0, input_time_ms=share * INPUT_SHARE * 5.0).input_matters == measured


def test_no_step_is_spent_before_a_turn_of_one_step() -> None:
    assert plan(139.0).lead_in_steps == 0


def test_number_in_the_parameters_overrides_the_plan() -> None:
    profile = {
        "max_seconds": 12.5,
        "processes": 7,
        "rounds": 3,
        "steps_per_round": 2,
        "trace_steps": 5,
        "inference_calls_per_round": 9,
    }
    found = plan(5.0, profile)
    assert (found.timing_s, found.processes, found.rounds) == (12.5, 7, 3)
    assert (found.steps_per_round, found.trace_steps) == (2, 5)
    assert set(found.calls.values()) == {9}


def test_without_a_training_the_profile_is_that_of_a_short_one() -> None:
    assert plan(5.0, trainings_s=0.0) == plan(5.0, trainings_s=5.0)


def test_first_answer_about_a_slow_network_takes_few_processes_and_rounds() -> None:
    first, usual = (plan(900.0, startup_s=48.0, trainings_s=seconds) for seconds in (0.0, 300.0))
    assert (first.processes, usual.processes) == (3, 4)
    assert first.timing_s < usual.timing_s
    assert first.stage_s < 215
    assert plan(900.0, startup_s=5.0, trainings_s=0.0).processes == 5


def test_few_steps_are_run_around_the_trace_of_a_slow_network() -> None:
    assert [plain_steps(4, ms) for ms in (10.0, 300.0, 900.0, 2000.0)] == [4, 3, 1, 1]


def test_all_time_is_for_training_without_inference() -> None:
    assert plan(5.0, latency_ms={}).training_share == 1
    assert 0.5 < plan(5.0).training_share < 1


PAIRS_OF_ARMS = (("float32", "mixed_bfloat16"), ("float32", "_control"))


def test_starts_of_all_pairs_are_in_the_time_of_the_stage() -> None:
    """A process of every arm costs twice the starts, and a round of every pair four turns instead of three."""
    all_at_once = plan(20.0, startup_s=12.0)
    pairs = plan(20.0, startup_s=16.0, blocks=PAIRS_OF_ARMS, spent_s=20.0)
    assert (all_at_once.at_once, all_at_once.blocks, all_at_once.spent_s) == (None, 1, 12.0)
    assert (pairs.at_once, pairs.blocks, pairs.spent_s) == (2, 2, 20.0)
    assert pairs.round_s == pytest.approx(4 / 3 * all_at_once.round_s)
    assert pairs.inference_round_s == pytest.approx(4 / 3 * all_at_once.inference_round_s)
    assert MIN_PROCESSES <= pairs.processes < all_at_once.processes
    assert pairs.stage_s <= MAX_STAGE_S + 1


def test_pairs_that_start_slowly_get_the_fewest_processes_and_a_few_rounds() -> None:
    found = plan(500.0, startup_s=120.0, blocks=PAIRS_OF_ARMS, spent_s=90.0)
    assert found.processes == MIN_PROCESSES
    assert found.timing_s <= 0.5 * MIN_PROCESSES * 120.0
    assert found.stage_s == pytest.approx(90.0 + MIN_PROCESSES * 120.0 + found.timing_s, abs=20)


def test_arms_that_live_alone_have_a_block_each() -> None:
    found = plan(20.0, blocks=[(name,) for name in ARMS])
    assert (found.at_once, found.blocks) == (1, 3)
    assert found.round_s == pytest.approx(plan(20.0).round_s)


def test_trace_of_a_slow_network_is_short() -> None:
    assert [plan(ms).trace_steps for ms in (5.0, 300.0, 2000.0)] == [8, 5, 2]
