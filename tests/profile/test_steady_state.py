"""Which rounds and calls count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from halfstep.profile.records import ArmRecord
from halfstep.profile.steady_state import first_steady, mark_counted
from halfstep.profile.warm_up import warm_up_length
from halfstep.results.profile import InferenceCall, Round
from tests.profile.arm_records import arm_record


def noisy(values: list[float], seed: int = 0) -> NDArray[np.float64]:
    return np.asarray(values, np.float64) + 0.01 * np.random.default_rng(seed).normal(size=len(values))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.12, *[0.0] * 9], 1),
        ([0.2, 0.15, 0.1, *[0.0] * 9], 3),
        ([0.0] * 10, 0),
        ([0.12, *[0.0] * 7], 1),
        ([-0.2, -0.15, -0.1, *[0.0] * 9], 0),
    ],
    ids=["first round slower", "three rounds slower", "steady", "eight rounds", "faster"],
)
def test_slower_beginning_is_the_warm_up(values: list[float], expected: int) -> None:
    assert warm_up_length(noisy(values)) == expected


@pytest.mark.parametrize(("length", "most"), [(2, 0.0), (6, 0.0), (8, 0.03), (10, 0.025), (16, 0.01)])
def test_steady_rounds_are_hardly_ever_dropped(length: int, most: float) -> None:
    draws = np.random.default_rng(1).normal(size=(1000, length))
    assert np.mean([warm_up_length(values) > 0 for values in draws]) <= most


@pytest.mark.parametrize("length", [8, 12, 24])
def test_warm_up_that_is_larger_than_the_noise_is_found(length: int) -> None:
    draws = 0.01 * np.random.default_rng(2).normal(size=(200, length)) + 0.12 * np.exp(-np.arange(length) / 3)
    assert np.mean([warm_up_length(values) > 1 for values in draws]) > 0.9


def test_at_most_half_of_the_rounds_are_dropped() -> None:
    warm_up_lengths = [
        warm_up_length(np.square(np.arange(length, dtype=np.float64) - length)) for length in range(1, 30)
    ]
    assert all(dropped <= length // 2 for length, dropped in enumerate(warm_up_lengths, start=1))
    assert max(warm_up_lengths) > 0


def record(times_ms: dict[int, list[float]], latencies_ms: list[float] | None = None) -> ArmRecord:
    arm = arm_record()
    arm.times.rounds = [
        Round(process, number, 0, 2, time_ms)
        for process, of_process in times_ms.items()
        for number, time_ms in enumerate(of_process)
    ]
    arm.times.calls = [
        InferenceCall(process, 0, 1, call, latency_ms)
        for process in times_ms
        for call, latency_ms in enumerate(latencies_ms or [])
    ]
    return arm


def test_warm_up_is_dropped_in_all_arms_and_processes() -> None:
    steady = [10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0, 10.1]
    warming = [14.0, *steady[1:]]
    records = {
        "float32": record(dict.fromkeys(range(4), steady)),
        "mixed_bfloat16": record(dict.fromkeys(range(4), warming)),
    }
    assert mark_counted(records) == 0
    for arm in records.values():
        assert [(row.process, row.round) for row in arm.times.rounds if not row.counted] == [(p, 0) for p in range(4)]


def test_slower_first_round_of_a_few_is_dropped() -> None:
    """Of four rounds a process, as on a GPU, where the first update that is applied takes seconds."""
    steady = {process: list(10 * np.exp(noisy([0.0] * 4, seed=process))) for process in range(3)}
    warming = {process: [19.0, *times_ms[1:]] for process, times_ms in steady.items()}
    records = {"float32": record(steady), "mixed_float16": record(warming)}
    mark_counted(records)
    for arm in records.values():
        assert [(row.process, row.round) for row in arm.times.rounds if not row.counted] == [(p, 0) for p in range(3)]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_first_of_a_few_steady_rounds_is_hardly_ever_dropped(processes: int) -> None:
    draws = 0.01 * np.random.default_rng(3).normal(size=(2000, processes, 4))
    assert np.mean([first_steady(list(draw)) for draw in draws]) <= 0.005


@pytest.mark.parametrize(("processes", "rounds", "stall"), [(8, 8, 1.3), (4, 4, 1.9)])
def test_stall_that_comes_first_in_one_of_several_processes_counts(processes: int, rounds: int, stall: float) -> None:
    times_ms = {process: list(10 * np.exp(noisy([0.0] * rounds, seed=process))) for process in range(processes)}
    times_ms[0][0] *= stall
    records = {"float32": record(times_ms)}
    mark_counted(records)
    assert all(row.counted for row in records["float32"].times.rounds)


def test_calls_count_from_where_the_latency_is_steady_in_all_arms() -> None:
    rounds = {process: [10.0] * 4 for process in range(3)}
    records = {
        "float32": record(rounds, [2.0, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0]),
        "mixed_bfloat16": record(rounds, [2.0, 1.5, 1.2, 1.0, 1.01, 0.99, 1.0, 1.01]),
    }
    mark_counted(records)
    for arm in records.values():
        assert {row.call for row in arm.times.calls if not row.counted} == {0, 1, 2}


def test_process_that_becomes_slower_all_the_time_is_reported() -> None:
    drifting = [10.0 * 1.02**number for number in range(12)]
    assert mark_counted({"float32": record({0: drifting, 1: [10.0, 10.1] * 6})}) == 1


def throttled(arm: ArmRecord, *places: tuple[int, int]) -> ArmRecord:
    """The record with rounds marked as throttled, by process and number."""
    arm.times.rounds = [replace(row, throttled=(row.process, row.round) in places) for row in arm.times.rounds]
    return arm


def test_throttled_rounds_do_not_count() -> None:
    times_ms = {process: [10.0, 10.1, 9.9, 10.0] for process in range(3)}
    records = {name: throttled(record(times_ms), (0, 1), (2, 3)) for name in ("float32", "mixed_bfloat16")}
    mark_counted(records)
    for arm in records.values():
        left_out = [(row.process, row.round) for row in arm.times.rounds if not row.counted]
        assert left_out == [(0, 1), (2, 3)]


def test_process_with_throttled_rounds_only_keeps_its_times() -> None:
    times_ms = {process: [10.0, 10.1, 9.9, 10.0] for process in range(2)}
    records = {"float32": throttled(record(times_ms), (0, 0), *((1, number) for number in range(4)))}
    mark_counted(records)
    counted = [(row.process, row.round) for row in records["float32"].times.rounds if row.counted]
    assert counted == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]


def test_throttled_calls_do_not_count_at_their_batch_size() -> None:
    arm = record({0: [10.0] * 4})
    arm.times.calls = [
        InferenceCall(0, turn, size, call, 1.0, throttled=turn == 0)
        for turn in range(2)
        for size in (1, 8)
        for call in range(2)
    ]
    arm.times.calls += [InferenceCall(0, 0, 32, call, 1.0, throttled=True) for call in range(2)]
    mark_counted({"float32": arm})
    assert {(row.round, row.batch_size) for row in arm.times.calls if row.counted} == {(1, 1), (1, 8), (0, 32)}
