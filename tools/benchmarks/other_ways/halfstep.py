"""halfstep's own way, on repeats that were recorded: its schedule, its stopping rule, its intervals and its verdict.

Where it is simpler than `profile`: a repeat has no more rounds than were recorded, repeats are drawn without
replacement, nothing but training is measured, the control takes part in every repeat, and the quality counts as shown,
because the candidate runs the baseline's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stages import files
from stages.compare.verdict import Parts, decide, void_measures
from stages.params import CompareParams, ProfileParams
from stages.profile import schedule as schedule_module
from stages.profile.plan import Costs, Plan, make_plan
from stages.profile.schedule import Schedule
from stages.profile.stopping_rule import Target
from stages.stats.proportions import BinaryChange
from stages.stats.speedup import CONFIDENCE
from stages.text import TRAIN
from tools.benchmarks.other_ways.recordings import NO_TURN, Repeat
from tools.benchmarks.other_ways.ways import Answer, Found
from tools.benchmarks.simulation import BASELINE, Rounds, RuleOnRounds, ratio, record_of, steady

CANDIDATE = "mixed_bfloat16"  # its name only
ARMS = (BASELINE, CANDIDATE, files.CONTROL)  # in the order of `Repeat.turn_us`
BATCH_SIZE = 32
PROFILE, PARAMS = ProfileParams(inference_batch_sizes=()), CompareParams()
ANSWERS: Mapping[str, Answer] = {"adopt": "yes", "reject": "no", "inconclusive": "undecided"}
ALL_RIGHT = np.ones((1, 2000), dtype=bool)
SAME_QUALITY, MARGIN = BinaryChange(ALL_RIGHT, ALL_RIGHT), 0.01

Turns = NDArray[np.float64]  # milliseconds, `(3, rounds)`; not a number where an arm has no turn


def judged(repeats: Sequence[Repeat], truth: float, trainings_s: float, generator: Generator) -> Found:
    """Measures as `profile` does, with repeats that are drawn from the recorded ones.

    Args:
        repeats: that were recorded.
        truth: the speed-up to plant: turns of the baseline and of the control take so many times as long.
        trainings_s: seconds of both trainings, from which the schedule takes the time of the stage.
        generator: draws the repeats, and which of two equal arms is the candidate.
    """
    drawn = [repeats[place] for place in generator.permutation(len(repeats))]
    planted = [_planted(repeat, truth, swap=bool(generator.integers(2))) for repeat in drawn]
    import_s = float(np.mean([repeat.import_s for repeat in drawn]))
    clock = SimpleNamespace(now_s=import_s)
    clock.monotonic = lambda: clock.now_s
    plan = _plan(drawn, planted, trainings_s, import_s)
    rounds: Rounds = {name: {TRAIN: {}} for name in ARMS}
    target = Target(PROFILE.target_precision, PARAMS.min_speedup, verdicts=1, has_bridges=False)
    rule = RuleOnRounds(rounds, {name: record_of(name, {}) for name in ARMS}, target, sizes=())
    with mock.patch.object(schedule_module, "time", clock):
        schedule = Schedule(plan, PROFILE, spent_s=import_s)
        for repeat, turns in zip(drawn, planted, strict=True):
            clock.now_s += repeat.start_s + plan.account_s
            count = _rounds(turns, repeat.steps, schedule, clock)
            for name, times_ms in zip(ARMS, turns[:, :count], strict=True):
                rounds[name][TRAIN][schedule.repeats] = times_ms
            schedule.repeats += 1
            rule.look("rounds" if schedule.repeats == len(repeats) else schedule.out_of())
            if not rule.has_open:
                break
            schedule.learn(rule.speedups().values())
    return _found(rule, rounds, clock.now_s + plan.end_s)


def _planted(repeat: Repeat, truth: float, *, swap: bool) -> Turns:
    turns = np.where(repeat.turn_us == NO_TURN, np.nan, 1e-3 * repeat.turn_us)
    if swap:
        turns = turns[[1, 0, 2]]
    return turns * np.array([[truth], [1.0], [truth]])


def _plan(repeats: Sequence[Repeat], planted: Sequence[Turns], trainings_s: float, spent_s: float) -> Plan:
    """The plan of `profile`, which the first repeat's costs decide."""
    step_ms = np.nanmedian(planted[0], axis=1) / repeats[0].steps
    costs = Costs(
        start_s=repeats[0].start_s,
        step_time_ms=dict(zip(ARMS, step_ms.tolist(), strict=True)),
        batch_size=dict.fromkeys(ARMS, BATCH_SIZE),
        input_time_ms=0.0,
        latency_ms={},
        cold_calls={},
        buffered_batches=0,
        trainings_s=trainings_s,
        arms=len(ARMS),
        spent_s=spent_s,
    )
    return make_plan(PROFILE, costs, interleaved=True)


def _rounds(turns: Turns, steps: int, schedule: Schedule, clock: Any) -> int:
    """Number of rounds of a repeat, for which the clock goes on; each turn begins with untimed steps."""
    round_s = 1e-3 * np.nansum(turns, axis=0) * (1 + schedule.plan.lead_in_steps / steps)
    training_s, _ = schedule.seconds(training=True, inference=False)
    count = 0
    for seconds, _ in zip(round_s.tolist(), schedule.rounds_until(training_s), strict=False):
        clock.now_s += seconds
        count += 1
    return count


def _found(rule: RuleOnRounds, rounds: Rounds, seconds: float) -> Found:
    ending = rule.endings[CANDIDATE, TRAIN]
    before, after, control = (steady(rounds)[name][TRAIN] for name in ARMS)
    speedup = ratio(before, after, ending.confidence)
    parts = Parts(speedup, None, SAME_QUALITY, MARGIN)
    of_control = replace(ratio(before, control, CONFIDENCE), others=(speedup,))
    is_void = bool(void_measures({TRAIN: of_control}))
    verdict = decide(parts, parts.p_value(PARAMS), PARAMS, void=is_void)
    return Found(speedup.ratio, ANSWERS[verdict], seconds)
