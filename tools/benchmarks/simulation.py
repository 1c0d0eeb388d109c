"""Simulated measurements: the rule and the schedule of `profile` decide about times that are drawn at random.

The clock is simulated, too: a repeat takes its start and its rounds, as on a real machine. Rounds before the steady
state do not count, as in `profile`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from halfstep.params.schema import CompareParams, ProfileParams, Variant
from halfstep.profile import schedule as schedule_module
from halfstep.profile.plan import Costs, make_plan
from halfstep.profile.records import ArmRecord, ArmSettings, Calibration, Measurement
from halfstep.profile.schedule import Schedule
from halfstep.profile.steady_state import first_steady
from halfstep.profile.stopping_rule import Key, StoppingRule, Target
from halfstep.results.profile import InForce
from halfstep.stats.speedup import COMPILATIONS, ProcessTimes, Speedup, times_alone, times_of_rounds
from halfstep.system import files
from halfstep.words.text import TRAIN, inference_measure
from tests.profile.fake_worker import CONFIGURATION

BASELINE, CANDIDATES = "float32", ("mixed_float16", "mixed_bfloat16")
SIZES = (1, 32)
MEASURES = (TRAIN, *map(inference_measure, SIZES))
ARMS = (BASELINE, *CANDIDATES, files.CONTROL)
MIN_SPEEDUP = CompareParams().min_speedup
OUTLIER_FACTOR, STALL_FACTOR = 5.0, 3.0  # of the spread of a turn, and of its time
SLOW_STATE = 0.3  # added to the logarithm of all times in the slow one of two states
WARM_UP_ROUNDS = 4.0  # after which a warm-up has fallen to 1 / e
BURST_S, BURST_FACTOR = 1.5, 2.0  # mean length of a burst of other load, and what it does to a time
START_JITTER = 0.05  # standard deviation of the logarithm of the time that a start takes
LONGEST_S = 2000.0  # of a measurement

Rounds = dict[str, dict[str, dict[int, NDArray[np.float64]]]]  # of each arm and measure: time of each round by repeat


@dataclass(frozen=True)
class Machine:
    """How times vary; standard deviations are those of the logarithm of one arm's time.

    Attributes:
        repeat_sd: between the repeats of an arm.
        round_sd: between the rounds of a repeat.
        outliers: share of the turns that vary five times as much.
        stalls: share of the turns that take three times as long.
        slow_processes: share of the processes that are slower than the others, and by how much.
        slow_baseline: whether the baseline and the control have slow processes, too.
        autocorrelation: of successive rounds of an arm.
        common_sd, common_autocorrelation: of what all arms share in a round.
        states: by how much a candidate is faster in one of two states, between which the machine changes.
        state_s: mean seconds in a state.
        warm_up: what the first round of training takes longer: of the baseline and the control, and of candidates.
        process_drift: by how much the time of a process changes from its first round to its last.
        burst_pause_s: mean seconds between two bursts of other load, which all arms feel; 0 without any.
        run_sd: between whole measurements of an arm.
        tuner_sd: between compilations of an arm, which its repeats share in turn.
        drift_sd: from one repeat to the next, or from one arm to the next where one is measured at a time.
        trend: what is added to the logarithm of the time in each of them.
        interleaved: whether the arms take turns.
        optimism: so many times as long as it was planned to take takes a round of arms that are measured one at a time.
        throttled: share of the rounds of an arm that do not count.
        start_s: seconds to start a repeat.
        round_s, inference_round_s: seconds of a round.
        trainings_s: what the trainings took.
        max_seconds: as in `profile`.
        steps: 2 where the speed is measured before the trainings, and goes on after them.
    """

    repeat_sd: float = 0.0
    round_sd: float = 0.10
    outliers: float = 0.0
    stalls: float = 0.0
    slow_processes: tuple[float, float] = (0.0, 0.0)
    slow_baseline: bool = True
    autocorrelation: float = 0.0
    common_sd: float = 0.0
    common_autocorrelation: float = 0.0
    states: float = 0.0
    state_s: float = 8.0
    warm_up: tuple[float, float] = (0.0, 0.0)
    process_drift: float = 0.0
    burst_pause_s: float = 0.0
    run_sd: float = 0.0
    tuner_sd: float = 0.0
    drift_sd: float = 0.0
    trend: float = 0.0
    interleaved: bool = True
    optimism: float = 1.0
    throttled: float = 0.0
    start_s: float = 4.0
    round_s: float = 0.25
    inference_round_s: float = 0.15
    trainings_s: float = 45.0
    max_seconds: float | None = None
    steps: int = 1

    @property
    def bias(self) -> float:
        """Mean time of a candidate / mean time of the baseline, if nothing is planted."""
        share, slower = self.slow_processes
        time_ratio = 1.0 if self.slow_baseline else 1 + share * slower
        slow, fast = (math.exp(SLOW_STATE + self.states / 2), math.exp(-self.states / 2))
        return time_ratio * (slow + fast) / (math.exp(SLOW_STATE) + 1) if self.states else time_ratio


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
        self, rounds: Rounds, measurement: Measurement, target: Target, sizes: tuple[int, ...] = SIZES
    ) -> None:
        super().__init__(measurement, BASELINE, sizes, target)
        self.rounds = rounds

    def _times(self) -> dict[str, Any]:
        return {name: {} for name in self._records} | steady(self.rounds)

    def _shared(self, measure: str, before: Any, after: Any) -> int:
        return len(before.get(measure, {}).keys() & after.get(measure, {}).keys())

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
    times = (_paired(*arms) if interleaved else _alone(*arms) for arms in repeats)
    numbers = sorted(before.keys() & after.keys())
    by_process = tuple(replace(item, repeat=number) for item, number in zip(times, numbers, strict=True))
    return Speedup(by_process, confidence, interleaved)


def _paired(before: NDArray[np.float64], after: NDArray[np.float64]) -> ProcessTimes:
    count = min(len(before), len(after))
    both = np.stack([before[:count], after[:count]], axis=1)
    numbers = np.flatnonzero(np.isfinite(both).all(axis=1))
    return times_of_rounds(numbers, both[numbers], len(numbers))


def _alone(before: NDArray[np.float64], after: NDArray[np.float64]) -> ProcessTimes:
    counted = (arm[np.isfinite(arm)] for arm in (before, after))
    return times_alone(*(np.stack([np.ones_like(arm), arm], axis=1) for arm in counted))


def steady(rounds: Rounds) -> Rounds:
    """The rounds, where those of training before the steady state, which begins at one round for all, are no number."""
    arms, curves = [measures[TRAIN] for measures in rounds.values() if measures.get(TRAIN)], []
    for repeat in set().union(*arms):
        logs = np.log([arm[repeat] for arm in arms if repeat in arm])
        deviations = logs - np.nanmedian(logs, axis=1, keepdims=True)
        curves.append(np.nansum(deviations, axis=0) / np.maximum(1, np.isfinite(deviations).sum(axis=0)))
    start = first_steady(curves) if curves else 0
    if not start:
        return rounds
    steady_rounds = {name: dict(measures) for name, measures in rounds.items()}
    for measures in steady_rounds.values():
        if TRAIN in measures:
            measures[TRAIN] = {
                repeat: np.where(np.arange(len(times_ms)) < start, np.nan, times_ms)
                for repeat, times_ms in measures[TRAIN].items()
            }
    return steady_rounds


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
    profile = ProfileParams(target_precision=target_precision, max_seconds=machine.max_seconds)
    truth = _speeds(dict(speeds or {}), dict(bridges or {}))
    records = {name: record_of(name, truth, has_bridge=bool(bridges)) for name in ARMS}
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
    measurement = Measurement({}, plan, records=records)
    draws = _Draws(machine, generator, truth)
    for step in range(machine.steps):
        if step:
            measurement.reopen()
        rule, schedule = RuleOnRounds(rounds, measurement, target), Schedule(measurement, profile, spent_s=8.0)
        while rule.has_open and schedule.out_of() is None:
            takes_control = schedule.takes_control(0.08 * clock.now_s, clock.now_s)
            needed = rule.needed(with_control=takes_control) if rounds else _all(records, rule)
            for name, measure, began_s in _began(schedule, clock, draws, needed):
                times = draws.rounds(name, measure, measurement.repeats, began_s)
                rounds.setdefault(name, {}).setdefault(measure, {})[measurement.repeats] = times
            clock.now_s += plan.account_s
            measurement.repeats += 1
            out_of = schedule.out_of()
            rule.look(out_of, schedule.narrowing(out_of))
            if out_of is not None and rule.has_open:
                schedule.go_on()
            schedule.learn(rule.speedups().values())
    return _found(rule, rounds, measurement.repeats, clock.now_s)


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
    calibration = Calibration(5.0 / truth.get((name, TRAIN), 1.0), 0.0, 0, None, latency_ms, dict.fromkeys(SIZES, 0))
    return ArmRecord(entry, settings, calibration)


def _all(records: Mapping[str, ArmRecord], rule: StoppingRule) -> dict[str, set[str]]:
    return {name: set(MEASURES) for name in records} | rule.needed(with_control=True)


def _began(
    schedule: Schedule, clock: Any, draws: _Draws, needed: Mapping[str, set[str]]
) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """Each arm and measure of a repeat, with the second in which each of its rounds began; the clock goes on."""
    machine, order = draws.machine, draws.order(needed)
    if not machine.interleaved:
        counts = schedule.fixed_rounds()
        share = machine.optimism / len(ARMS)
        rounds_s = schedule.plan.round_s * share, schedule.plan.inference_round_s * share
        for name, measures in order:
            clock.now_s += draws.start_s() / len(ARMS)
            training, inference = (
                _run(schedule.rounds_until(0.0, count), clock, round_s)
                for count, round_s in zip(counts, rounds_s, strict=True)
            )
            yield from ((name, measure, training if measure == TRAIN else inference) for measure in sorted(measures))
        return
    clock.now_s += machine.start_s
    wanted = set.union(*needed.values())
    training_s, inference_s = schedule.seconds(training=TRAIN in wanted, inference=wanted != {TRAIN})
    began_s = {TRAIN: _run(schedule.rounds_until(training_s), clock, machine.round_s)} if TRAIN in wanted else {}
    if wanted != {TRAIN}:
        inference = _run(schedule.rounds_until(inference_s), clock, machine.inference_round_s)
        began_s |= dict.fromkeys(MEASURES[1:], inference)
    yield from ((name, measure, began_s[measure]) for name, measures in order for measure in sorted(measures))


def _run(numbers: Iterator[int], clock: Any, round_s: float) -> NDArray[np.float64]:
    """The second in which each of these rounds begins."""
    began_s = []
    for _ in numbers:
        began_s.append(clock.now_s)
        clock.now_s += round_s
    return np.array(began_s)


class _Draws:
    """Draws the order of the arms, and the times of rounds."""

    def __init__(self, machine: Machine, generator: Generator, truth: Mapping[Key, float]) -> None:
        self.machine, self._generator, self._truth = machine, generator, truth
        self._run: dict[Key, float] = {}
        self._compiled: dict[tuple[str, str, int], float] = {}
        self._level, self._order = 0.0, list[str]()
        self._common: dict[tuple[str, int], NDArray[np.float64]] = {}
        self._states = self._spells(machine.state_s, machine.state_s) if machine.states else None
        self._bursts = self._spells(machine.burst_pause_s, BURST_S) if machine.burst_pause_s else None

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

    def start_s(self) -> float:
        """Seconds that the start of all arms takes, at the pace of this one."""
        return self.machine.start_s * math.exp(START_JITTER * self._generator.normal())

    def rounds(self, name: str, measure: str, repeat: int, began_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """The times of one arm in one repeat, in milliseconds; not a number where a round does not count.

        Args:
            name: of the arm.
            measure: what is timed.
            repeat: number of the repeat.
            began_s: the second of the measurement in which each round began, `(rounds,)`.
        """
        machine, generator, count = self.machine, self._generator, len(began_s)
        wide = np.where(generator.random(count) < machine.outliers, OUTLIER_FACTOR, 1.0)
        logs = self._own(name, measure, repeat) + machine.round_sd * wide * self._noise(count, machine.autocorrelation)
        if machine.common_sd:
            if (measure, repeat) not in self._common:
                self._common[measure, repeat] = self._noise(count, machine.common_autocorrelation)
            logs += machine.common_sd * self._common[measure, repeat]
        logs += machine.process_drift * generator.normal() * np.linspace(-0.5, 0.5, count)
        if measure == TRAIN:
            logs += machine.warm_up[name in CANDIDATES] * np.exp(-np.arange(count) / WARM_UP_ROUNDS)
        if self._states is not None:
            gain = machine.states / 2 if name in CANDIDATES else 0.0
            logs += np.where(_inside(self._states, began_s), SLOW_STATE + gain, -gain)
        times_ms = 10 * np.exp(logs) / self._truth.get((name, measure), 1.0)
        times_ms[generator.random(count) < machine.stalls] *= STALL_FACTOR
        if self._bursts is not None:
            times_ms[_inside(self._bursts, began_s)] *= BURST_FACTOR
        throttled = generator.random(count) < machine.throttled
        if not throttled.all():
            times_ms[throttled] = np.nan
        return times_ms

    def _own(self, name: str, measure: str, repeat: int) -> float:
        """What a process adds to the logarithm of its times."""
        machine, generator = self.machine, self._generator
        if not machine.interleaved and measure == TRAIN:
            self._level += machine.trend + machine.drift_sd * generator.normal()
        own = machine.repeat_sd * generator.normal() + self._level
        own += self._run.setdefault((name, measure), machine.run_sd * generator.normal())
        if machine.tuner_sd:
            draw = machine.tuner_sd * generator.normal()
            own += self._compiled.setdefault((name, measure, repeat % COMPILATIONS), draw)
        share, slower = machine.slow_processes
        may_be_slow = machine.slow_baseline or name in CANDIDATES
        return float(own + math.log1p(slower) * (may_be_slow and generator.random() < share))

    def _noise(self, count: int, autocorrelation: float) -> NDArray[np.float64]:
        """Standard normal values, each correlated with the one before."""
        values = self._generator.normal(size=count)
        for number in range(1, count if autocorrelation else 0):
            new = math.sqrt(1 - autocorrelation**2) * values[number]
            values[number] = autocorrelation * values[number - 1] + new
        return values

    def _spells(self, pause_s: float, spell_s: float) -> NDArray[np.float64]:
        """The seconds in which spells of something begin and end, in turn."""
        count = 10 + int(2 * LONGEST_S / (pause_s + spell_s))
        edges = np.cumsum(self._generator.exponential([pause_s, spell_s], (count, 2)))
        if self._generator.random() < spell_s / (pause_s + spell_s):
            edges[0] = 0.0
        return edges


def _inside(spells: NDArray[np.float64], when_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each second is in a spell."""
    return np.searchsorted(spells, when_s, side="right") % 2 == 1


def _found(rule: RuleOnRounds, rounds: Rounds, repeats: int, seconds: float) -> Found:
    interleaved = rule._target.interleaved
    bridge = f"{files.BRIDGE_PREFIX}onednn_off"
    measurement = Found({}, {}, {}, repeats, seconds, {key: item.ended_by for key, item in rule.endings.items()})
    rounds = steady(rounds)
    for (name, measure), ending in rule.endings.items():
        arm = rounds[name][measure]
        measurement.speedups[name, measure] = ratio(
            rounds[BASELINE][measure], arm, ending.confidence, interleaved=interleaved
        )
        if name == "mixed_float16" and measure in rounds.get(bridge, {}):
            of_bridge = rounds[bridge][measure]
            if len(of_bridge.keys() & arm.keys()) > 1:
                measurement.precision[name, measure] = ratio(of_bridge, arm, ending.confidence, interleaved=interleaved)
    for measure in MEASURES:
        others = tuple(measurement.speedups[name, measure] for name in CANDIDATES)
        control = ratio(rounds[BASELINE][measure], rounds[files.CONTROL][measure], 0.95, interleaved=interleaved)
        measurement.control[measure] = replace(control, others=others)
    return measurement
