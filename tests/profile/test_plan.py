"""How long turns are, and how much is measured, from the costs of starting, of a step and of a call."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from halfstep.params.schema import ProfileParams
from halfstep.profile.plan import (
    BUFFER_SHARE,
    FEWER_REPEATS,
    INPUT_SHARE,
    MAX_STAGE_S,
    MIN_STAGE_S,
    Costs,
    Plan,
    best_rounds,
    make_plan,
)

ARMS = ("float32", "mixed_bfloat16", "_control")


def costs(step_time_ms: float, **changes: Any) -> Costs:
    values: dict[str, Any] = {
        "start_s": 6.0,
        "step_time_ms": dict.fromkeys(ARMS, step_time_ms),
        "batch_size": dict.fromkeys(ARMS, 32),
        "input_time_ms": 0.05,
        "latency_ms": {size: dict.fromkeys(ARMS, 0.1 * step_time_ms * size**0.5) for size in (1, 32)},
        "cold_calls": {1: 2, 32: 1},
        "buffered_batches": 4,
        "trainings_s": 600.0,
        "arms": len(ARMS),
    }
    return Costs(**(values | changes))


def plan(
    step_time_ms: float, profile: dict[str, Any] | None = None, *, interleaved: bool = True, **changes: Any
) -> Plan:
    return make_plan(ProfileParams(**(profile or {})), costs(step_time_ms, **changes), interleaved=interleaved)


def test_turn_takes_about_as_long_whatever_the_step_takes() -> None:
    assert [plan(ms).steps_of(32) for ms in (0.2, 2.0, 30.0, 60.0, 2000.0)] == [180, 18, 2, 1, 1]


def test_turns_of_another_batch_take_as_long() -> None:
    sizes = {"float32": 32, "float32_batch_128": 128, "float32_batch_8": 8}
    times_ms = {"float32": 30.0, "float32_batch_128": 90.0, "float32_batch_8": 9.0}
    protocol = make_plan(
        ProfileParams(), replace(costs(30.0), step_time_ms=times_ms, batch_size=sizes), interleaved=True
    )
    assert protocol.steps_by_batch == {32: 3, 128: 1, 8: 10}
    assert protocol.steps_of(64) == 2  # as many examples, where its time is not known yet
    assert protocol.round_s == pytest.approx(1e-3 * (4 * 30 + 2 * 90 + 11 * 9))  # with a lead-in step


def test_turn_on_a_gpu_is_long_and_follows_a_step() -> None:
    protocols = [plan(ms, interleaved=False) for ms in (2.0, 80.0, 900.0)]
    assert [item.steps_of(32) for item in protocols] == [500, 13, 4]
    assert {item.lead_in_steps for item in protocols} == {1}
    assert {item.fewest_repeats for item in protocols} == {FEWER_REPEATS}
    assert FEWER_REPEATS % 2 == 0  # an order and its reverse


def test_stage_takes_a_quarter_longer_than_the_trainings_within_limits() -> None:
    assert plan(5.0, trainings_s=0.0).stage_s == MIN_STAGE_S
    assert plan(5.0, trainings_s=100.0).stage_s == 125.0
    assert plan(5.0, trainings_s=3600.0).stage_s == MAX_STAGE_S


def test_batches_of_start_up_are_used_up_where_steps_may_wait_for_their_input() -> None:
    waits, fast = (plan(5.0, input_time_ms=share * BUFFER_SHARE * 5.0) for share in (2.0, 0.5))
    assert (waits.drained_batches, fast.drained_batches) == (4, 0)


@pytest.mark.parametrize(("share", "measured"), [(0.5, False), (2.0, True)])
def test_cost_of_the_input_is_measured_only_where_it_may_matter(share: float, measured: bool) -> None:
    protocol = plan(5.0, input_time_ms=share * INPUT_SHARE * 5.0)
    assert (protocol.input_rounds > 0, protocol.input_s > 0) == (measured, measured)


@pytest.mark.parametrize(
    ("latency_ms", "cold", "expected"),
    [(0.05, 0, 480), (1.0, 3, 27), (10.0, 2, 18), (100.0, 1, 4), (400.0, 0, 1)],
)
def test_turn_of_inference_has_16_calls_or_300_ms_after_the_calls_that_are_left_out(
    latency_ms: float, cold: int, expected: int
) -> None:
    protocol = plan(5.0, latency_ms={1: {"float32": latency_ms}}, cold_calls={1: cold})
    assert protocol.calls == {1: expected}


def test_number_in_the_parameters_overrides_the_plan() -> None:
    profile = {"processes": 7, "steps_per_round": 2, "trace_steps": 5, "inference_calls_per_round": 9}
    protocol = plan(5.0, profile)
    assert (protocol.steps_of(32), protocol.trace_steps, protocol.fewest_repeats) == (2, 5, 7)
    assert set(protocol.calls.values()) == {9}


@pytest.mark.parametrize("repeat_sd", [0.01, 0.03])
def test_best_number_of_rounds_gives_the_smallest_error_for_the_time(repeat_sd: float) -> None:
    start_s, round_s, round_sd = 5.0, 0.2, 0.1

    def error(rounds: int) -> float:
        """In 100 s; a repeat costs its start and its rounds."""
        repeats = 100 / (start_s + rounds * round_s)
        return math.sqrt((repeat_sd**2 + round_sd**2 / rounds) / repeats)

    best = best_rounds(start_s, round_s, round_sd, repeat_sd)
    assert error(best) == pytest.approx(min(map(error, range(1, 500))), rel=1e-3)
