"""How time is divided among repeats, by a clock that only the test advances."""

from __future__ import annotations

from typing import Any

import pytest

from halfstep.params.schema import ProfileParams
from halfstep.profile import schedule
from halfstep.profile.plan import LEAST_TIMING_S, MAX_REPEATS, Plan
from halfstep.profile.records import Measurement
from halfstep.profile.schedule import Schedule
from tests.profile.test_plan import plan


def schedule_of(
    planned: Plan, profile: ProfileParams | None = None, repeats: int = 0, timing_s: float = 0.0, spent_s: float = 0.0
) -> tuple[Schedule, Measurement]:
    measurement = Measurement({}, planned, repeats=repeats, timing_s=timing_s)
    return Schedule(measurement, profile or ProfileParams(), spent_s), measurement


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(schedule, "time", fake_clock)
    return fake_clock


def run(clock: Clock, start_s: float = 6.0, **profile: Any) -> tuple[Schedule, Measurement, list[list[int]]]:
    """Measures rounds of 0.2 s until nothing is left; returns the round numbers of each repeat."""
    planned = plan(50.0, profile, start_s=start_s, trainings_s=120.0)
    timetable, measurement = schedule_of(planned, ProfileParams(**profile))
    rounds: list[list[int]] = []
    while timetable.out_of() is None:
        clock.now_s += start_s
        training_s, _ = timetable.seconds(training=True, inference=True)
        rounds.append([])
        for number in timetable.rounds_until(training_s):
            rounds[-1].append(number)
            clock.now_s += 0.2
        measurement.repeats += 1
    return timetable, measurement, rounds


def test_rounds_come_in_pairs_of_an_order_and_its_reverse(clock: Clock) -> None:
    _, _, rounds = run(clock)
    assert all(len(of_repeat) % 2 == 0 and of_repeat == list(range(len(of_repeat))) for of_repeat in rounds)


def test_stage_ends_in_its_time(clock: Clock) -> None:
    timetable, _, rounds = run(clock)
    assert len(rounds) >= timetable.plan.fewest_repeats
    assert 0.6 * timetable.plan.stage_s < clock.now_s <= timetable.plan.stage_s
    assert timetable.out_of() == "time"


def test_fewest_repeats_are_measured_whatever_they_take(clock: Clock) -> None:
    timetable, _, rounds = run(clock, start_s=80.0)
    assert len(rounds) == timetable.plan.fewest_repeats
    assert clock.now_s > timetable.plan.stage_s


@pytest.mark.parametrize("start_s", [6.0, 20.0, 80.0])
def test_expected_time_is_about_what_the_measurement_takes(clock: Clock, start_s: float) -> None:
    begun, _ = schedule_of(plan(50.0, start_s=start_s, trainings_s=120.0))
    expected_s, left_s = begun.expected_s, begun.expected_left_s
    run(clock, start_s=start_s)
    assert expected_s <= left_s
    assert clock.now_s - start_s == pytest.approx(expected_s, rel=0.4)


def test_seconds_in_the_parameters_are_those_of_the_timing(clock: Clock) -> None:
    timetable, measurement, rounds = run(clock, max_seconds=20.0)
    assert measurement.timing_s == pytest.approx(20.0, abs=0.5)
    assert timetable.plan.fewest_repeats <= len(rounds) <= MAX_REPEATS


def test_shortest_time_is_a_pair_of_rounds_in_each_of_the_fewest_repeats(clock: Clock) -> None:
    timetable, _, rounds = run(clock, max_seconds=0.001)
    assert rounds == [[0, 1]] * timetable.plan.fewest_repeats
    assert timetable.out_of() == "max_seconds"


def test_numbers_in_the_parameters_hold(clock: Clock) -> None:
    timetable, _, rounds = run(clock, processes=3, rounds=50)  # which take longer than the stage may
    assert rounds == [[*range(50)]] * 3
    assert timetable.out_of() == "rounds"


@pytest.mark.parametrize(("start_s", "least_s"), [(1.0, LEAST_TIMING_S), (30.0, 3 * 30.0)])
def test_timing_takes_as_long_as_the_starts_and_not_less_than_some_seconds(
    clock: Clock, start_s: float, least_s: float
) -> None:
    timetable, measurement = schedule_of(plan(50.0, start_s=start_s, trainings_s=0.0))
    while timetable.out_of() is None:
        clock.now_s += 3 * start_s  # other load
        for _ in timetable.rounds_until(sum(timetable.seconds(training=True, inference=True))):
            clock.now_s += 0.2
        measurement.repeats += 1
    assert measurement.repeats == timetable.plan.fewest_repeats
    assert least_s <= measurement.timing_s < least_s + 3


def test_control_takes_part_as_long_as_it_costs_little() -> None:
    timetable, _ = schedule_of(plan(5.0), repeats=3)
    assert timetable.takes_control(control_s=3.0, stage_s=50.0)
    assert not timetable.takes_control(control_s=6.0, stage_s=50.0)
    assert schedule_of(plan(5.0), ProfileParams(), repeats=2)[0].takes_control(control_s=20.0, stage_s=50.0)
    alone = plan(5.0, interleaved=False)
    taken = [schedule_of(alone, ProfileParams(), repeats=number)[0].takes_control(0.0, 1.0) for number in range(8)]
    assert taken == [True, True, False, False] * 2
