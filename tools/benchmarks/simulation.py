"""Simulated measurements: the rule and the schedule of `profile` decide about times that are drawn at random.

The clock is simulated, too: a repeat takes its start and its rounds, as on a real machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stages import files
from stages.params import CompareParams, ProfileParams, Variant
from stages.profile import schedule as schedule_module
from stages.profile.plan import Costs, make_plan
from stages.profile.records import ArmRecord, ArmSettings, Calibration
from stages.profile.schedule import Schedule
from stages.profile.stopping_rule import Key, StoppingRule, Target
from stages.profile.turns import CONTROL_PAIRS
from stages.results.profile import InForce
from stages.stats.speedup import ProcessTimes, Speedup, times_alone, times_of_rounds
from stages.text import TRAIN, inference_measure
from tests.profile.fake_worker import CONFIGURATION

BASELINE, CANDIDATES = "float32", ("mixed_float16", "mixed_bfloat16")
SIZES = (1, 32)
MEASURES = (TRAIN, *map(inference_measure, SIZES))
MIN_SPEEDUP = CompareParams().min_speedup
OUTLIER_FACTOR, STALL_FACTOR = 5.0, 3.0  # of the spread of a turn, and of its time

Rounds = dict[str, dict[str, dict[int, NDArray[np.float64]]]]  # of each arm and measure: time of each round by repeat


@dataclass(frozen=True)
class Machine:
    """How times vary; standard deviations are those of the logarithm of one arm's time.

    Attributes:
        repeat_sd: between the repeats of an arm.
        round_sd: between the rounds of a repeat.
        outliers: share of the turns that vary five times as much.
        stalls: share of the turns that take three times as long.
        states: by how much a candidate is faster in one of two states, between which the machine changes.
        state_rounds: mean number of rounds in a state.
        run_sd: between whole measurements of an arm.
        drift_sd: from one repeat to the next, or from one arm to the next where one is measured at a time.
        trend: what is added to the logarithm of the time in each of them.
        interleaved: whether the arms take turns.
        start_s: seconds to start a repeat.
        round_s, inference_round_s: seconds of a round.
        trainings_s: what the trainings took.
    """

    repeat_sd: float = 0.0
    round_sd: float = 0.10
    outliers: float = 0.0
    stalls: float = 0.0
    states: float = 0.0
    state_rounds: float = 10.0
    run_sd: float = 0.0
    drift_sd: float = 0.0
    trend: float = 0.0
    interleaved: bool = True
    start_s: float = 4.0
    round_s: float = 0.25
    inference_round_s: float = 0.15
    trainings_s: float = 45.0


@dataclass(frozen=True)
class Found:
    """A measurement that has ended.

    Attributes:
        speedups: by candidate and measure, each at the confidence with which it ended.
        precision: of the candidate with a bridging arm, the factor of the precision, by measure.
        control: of the control, by measure.
        repeats: measured.
        seconds: that the stage took.
        endings: reason by candidate and measure.
    """

    speedups: dict[Key, Speedup]
    precision: dict[Key, Speedup]
    control: dict[str, Speedup]
    repeats: int
    seconds: float
    endings: dict[Key, str] = field(default_factory=dict)


class RuleOnRounds(StoppingRule):
    """The rule of `profile` on arrays of rounds instead of tables."""

    def __init__(
        self, rounds: Rounds, records: Mapping[str, ArmRecord], target: Target, sizes: tuple[int, ...] = SIZES
    ) -> None:
        super().__init__(records, BASELINE, sizes, target)
        self.rounds = rounds

    def _times(self) -> dict[str, Any]:
        return {name: {} for name in self._records} | self.rounds

    def _shared(self, times: Mapping[str, Any], measure: str, baseline: str, candidate: str) -> int:
        return len(times[baseline].get(measure, {}).keys() & times[candidate].get(measure, {}).keys())

    def _speedup(self, measure: str, before: Any, after: Any, confidence: float) -> Speedup:
        return ratio(before[measure], after[measure], confidence, interleaved=self._target.interleaved)


def ratio(
    before: Mapping[int, NDArray[np.float64]],
    after: Mapping[int, NDArray[np.float64]],
    confidence: float,
    *,
    interleaved: bool = True,
) -> Speedup:
    """Of the rounds that both arms have, or of all if they did not take turns; not a number: it does not count."""
    repeats = [(before[repeat], after[repeat]) for repeat in sorted(before.keys() & after.keys())]
    return Speedup(tuple(_paired(*arms) if interleaved else _alone(*arms) for arms in repeats), confidence, interleaved)


def _paired(before: NDArray[np.float64], after: NDArray[np.float64]) -> ProcessTimes:
    count = min(len(before), len(after))
    both = np.stack([before[:count], after[:count]], axis=1)
    numbers = np.flatnonzero(np.isfinite(both).all(axis=1))
    return times_of_rounds(numbers, both[numbers], len(numbers))


def _alone(before: NDArray[np.float64], after: NDArray[np.float64]) -> ProcessTimes:
    counted = (arm[np.isfinite(arm)] for arm in (before, after))
    return times_alone(*(np.stack([np.ones_like(arm), arm], axis=1) for arm in counted))


def simulate(
    machine: Machine,
    generator: Generator,
    speeds: Mapping[Key, float] | None = None,
    bridges: Mapping[str, float] | None = None,
    target_precision: float = 0.02,
) -> Found:
    """Runs a measurement until the rule or the schedule ends it.

    Args:
        machine: how times vary.
        generator: of the random numbers.
        speeds: true speed-up by candidate and measure; 1 if absent.
        bridges: by measure, the true factor of the settings of `mixed_float16`, which then has a bridging arm.
        target_precision: as in `profile`.
    """
    clock = SimpleNamespace(now_s=0.0)
    clock.monotonic = lambda: clock.now_s
    setattr(schedule_module, "time", clock)  # noqa: B010
    profile = ProfileParams(target_precision=target_precision)
    truth = _speeds(dict(speeds or {}), dict(bridges or {}))
    records = {
        name: record_of(name, truth, has_bridge=bool(bridges)) for name in (BASELINE, *CANDIDATES, files.CONTROL)
    }
    costs = Costs(
        start_s=machine.start_s,
        step_time_ms=dict.fromkeys(records, 5.0),
        batch_size=dict.fromkeys(records, 32),
        input_time_ms=0.0,
        latency_ms={size: dict.fromkeys(records, 1.0) for size in SIZES},
        cold_calls=dict.fromkeys(SIZES, 0),
        buffered_batches=0,
        trainings_s=machine.trainings_s,
        arms=len(records),
        spent_s=8.0,
    )
    plan = make_plan(profile, costs, interleaved=machine.interleaved)
    rounds: Rounds = {}
    target = Target(target_precision, MIN_SPEEDUP, len(CANDIDATES) * len(MEASURES), machine.interleaved)
    rule, schedule = RuleOnRounds(rounds, records, target), Schedule(plan, profile, spent_s=8.0)
    draws = _Draws(machine, generator, truth)
    while rule.has_open and schedule.out_of() is None:
        takes_control = schedule.takes_control(0.08 * clock.now_s, clock.now_s)
        needed = rule.needed(with_control=takes_control) if rounds else _all(records, rule)
        clock.now_s += machine.start_s
        counts = _counts(machine, schedule, clock, needed)
        for name, measures in draws.order(needed):
            for measure in measures:
                times = draws.rounds(name, measure, schedule.repeats, counts[measure])
                rounds.setdefault(name, {}).setdefault(measure, {})[schedule.repeats] = times
        schedule.repeats += 1
        rule.look(schedule.out_of())
        schedule.learn(rule.speedups().values())
    return _found(rule, rounds, schedule, clock.now_s)


def _speeds(speeds: dict[Key, float], bridges: dict[str, float]) -> dict[Key, float]:
    bridge = f"{files.BRIDGE_PREFIX}onednn_off"
    return speeds | {(bridge, measure): factor for measure, factor in bridges.items()}


def record_of(name: str, truth: Mapping[Key, float], *, has_bridge: bool = False) -> ArmRecord:
    """What is known of an arm beside its times: its settings, and what it costs alone."""
    policy: Any = name if name.startswith("mixed") else "float32"
    onednn = not (has_bridge and name == "mixed_float16")
    entry = Variant(policy=policy, onednn=onednn)
    settings = ArmSettings(CONFIGURATION, InForce(policy=policy, xla=False, tf32=True, onednn=onednn, batch_size=32))
    latency_ms = {size: 1.0 / truth.get((name, inference_measure(size)), 1.0) for size in SIZES}
    calibration = Calibration(
        5.0 / truth.get((name, TRAIN), 1.0), 0.0, 0, None, 5.0, latency_ms, dict.fromkeys(SIZES, 0)
    )
    return ArmRecord(entry, settings, calibration)


def _all(records: Mapping[str, ArmRecord], rule: StoppingRule) -> dict[str, set[str]]:
    return {name: set(MEASURES) for name in records} | rule.needed(with_control=True)


def _counts(machine: Machine, schedule: Schedule, clock: Any, needed: Mapping[str, set[str]]) -> dict[str, int]:
    """Rounds of each measure in a repeat, for which the clock goes on."""
    measures = set.union(*needed.values())
    training_s, inference_s = schedule.seconds(training=TRAIN in measures, inference=measures != {TRAIN})
    found = dict.fromkeys(MEASURES, 0)
    for of, seconds, round_s in (
        ((TRAIN,), training_s, machine.round_s),
        (MEASURES[1:], inference_s, machine.inference_round_s),
    ):
        if measures & {*of}:
            for number in schedule.rounds_until(seconds):
                clock.now_s += round_s
                found |= dict.fromkeys(of, number + 1)
    return found


class _Draws:
    """Draws the times of rounds."""

    def __init__(self, machine: Machine, generator: Generator, truth: Mapping[Key, float]) -> None:
        self._machine, self._generator, self._truth = machine, generator, truth
        self._run: dict[Key, float] = {}
        self._level, self._order = 0.0, list[str]()
        self._states: dict[tuple[str, int], NDArray[np.bool_]] = {}

    def order(self, needed: Mapping[str, set[str]]) -> list[tuple[str, set[str]]]:
        """A random order, and its reverse in the next repeat."""
        known = [name for name in self._order if name in needed]
        if self._order:
            order, self._order = known[::-1], []
        else:
            order = [*needed]
            self._generator.shuffle(order)
            self._order = order
        order += [name for name in needed if name not in order]
        return [(name, needed[name]) for name in order]

    def rounds(self, name: str, measure: str, repeat: int, count: int) -> NDArray[np.float64]:
        """The times of one arm in one repeat, in milliseconds; not a number where the control has no turn."""
        machine, generator = self._machine, self._generator
        if not machine.interleaved and measure == TRAIN:
            self._level += machine.trend + machine.drift_sd * generator.normal()
        own = machine.repeat_sd * generator.normal() + self._level
        own += self._run.setdefault((name, measure), machine.run_sd * generator.normal())
        wide = np.where(generator.random(count) < machine.outliers, OUTLIER_FACTOR, 1.0)
        logs = own + machine.round_sd * wide * generator.normal(size=count)
        if machine.states:
            logs += self._state(name, measure, repeat, count)
        times_ms = 10 * np.exp(logs) / self._truth.get((name, measure), 1.0)
        times_ms[generator.random(count) < machine.stalls] *= STALL_FACTOR
        if name == files.CONTROL and machine.interleaved:
            times_ms[np.arange(count) // 2 % CONTROL_PAIRS != 0] = np.nan
        return times_ms

    def _state(self, name: str, measure: str, repeat: int, count: int) -> NDArray[np.float64]:
        """In the slow state all arms take a third longer; candidates gain or lose half of `states` in either."""
        if (measure, repeat) not in self._states:
            changes = self._generator.random(count) < 1 / self._machine.state_rounds
            self._states[measure, repeat] = (np.cumsum(changes) + self._generator.integers(2)) % 2 == 1
        slow = self._states[measure, repeat]
        gain = self._machine.states / 2 if name in CANDIDATES else 0.0
        return np.where(slow, 0.3 + gain, -gain)


def _found(rule: RuleOnRounds, rounds: Rounds, schedule: Schedule, seconds: float) -> Found:
    interleaved = rule._target.interleaved
    bridge = f"{files.BRIDGE_PREFIX}onednn_off"
    found = Found({}, {}, {}, schedule.repeats, seconds, {key: item.ended_by for key, item in rule.endings.items()})
    for (name, measure), ending in rule.endings.items():
        arm = rounds[name][measure]
        found.speedups[name, measure] = ratio(
            rounds[BASELINE][measure], arm, ending.confidence, interleaved=interleaved
        )
        if name == "mixed_float16" and measure in rounds.get(bridge, {}):
            of_bridge = rounds[bridge][measure]
            if len(of_bridge.keys() & arm.keys()) > 1:
                found.precision[name, measure] = ratio(of_bridge, arm, ending.confidence, interleaved=interleaved)
    for measure in MEASURES:
        others = tuple(found.speedups[name, measure] for name in CANDIDATES)
        control = ratio(rounds[BASELINE][measure], rounds[files.CONTROL][measure], 0.95, interleaved=interleaved)
        found.control[measure] = replace(control, others=others)
    return found
