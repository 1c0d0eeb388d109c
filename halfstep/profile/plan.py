"""How long turns are, and how much to measure in a repeat, from costs that are measured first.

In a repeat, a process of every arm is started, and runs rounds. A number in `profile` overrides the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from halfstep.params.schema import ProfileParams

TURN_MS = 36.0  # of training; a turn is at least one step
WAITING_STEPS = 4  # of a turn at least, where steps may wait for input: two workers give two batches at a time
ALONE_TURN_MS, ALONE_STEPS, ALONE_LEAD_IN = 1000.0, 4, 1  # where one arm is measured at a time
INFERENCE_TURN_MS, MAX_CALLS = 24.0, 1000
STEADY_CALLS, STEADY_MS = 16, 300.0  # a turn has at least so many calls, or so much time, once the latency is steady
INPUT_SHARE = 0.05  # of a step; if batches take less, it is not worth measuring what they cost
BUFFER_SHARE = 0.25  # of a step; if batches take more, steps may wait for them, and what start-up buffered is used up
INFERENCE_SHARE = 1 / 3  # of the timing
LEAST_TIMING_S = 15.0  # of all repeats together; at least as long as their starts
LEAST_INFERENCE_S = 3.0  # the same of a session that measures inference alone
# Turns on the input pipeline and on a cached batch, to see how long a step waits: of each arm so long at most, two
# rounds of a repeat at least, and more of them if all take less than so many seconds.
INPUT_TURN_MS, INPUT_S, MOST_INPUT_ROUNDS = 50.0, 1.0, 6
# TensorFlow takes each operation for a long one, for which another thread is asked, until it has run some 90 times, and
# then leaves the small ones out of traces: steps of 4 ms take about 3 % less from then on. So all arms of a repeat have
# run as many steps, and as many rounds count.
SEEN_STEPS = 100
TRACE_MS = 1500.0
MIN_TRACE_STEPS, MAX_TRACE_STEPS = 2, 8
DROPPED_STEPS = 2  # of a trace, at its ends
LEADING_STEPS = 1  # of a turn of a short trace, dropped
PLAIN_MS = 1000.0
# Short traces of all arms: steps of each that count, in some turns as long as those of the timing, or shorter ones; a
# share of the stage for all of them or these seconds, a share of the timing at most; and traces in a repeat at most.
ACCOUNT_MS, MAX_ACCOUNT_STEPS, LEAST_ACCOUNT_STEPS = 400.0, 8, 4
ACCOUNT_WINDOWS, FEWEST_ACCOUNT_WINDOWS = 4, 2  # by turns it is known how much a repeat varies
ACCOUNT_SHARE, LEAST_ACCOUNT_S, ACCOUNT_SHARE_OF_TIMING, MOST_ACCOUNT_TRACES = 0.1, 4.0, 0.5, 6
READING_S = 0.1  # to start a trace, to stop it and to read it
# The stage takes a quarter longer than the trainings, within these limits.
TRAININGS_SHARE, MIN_STAGE_S, MAX_STAGE_S = 1.25, 33.0, 240.0
# Repeats: where there is time for them, where there is not, and where `FEWER_REPEATS` starts would take more than this
# share of the stage. Of arms that are measured one at a time, each order needs its reverse: never three.
USUAL_REPEATS, FEWER_REPEATS, FEWEST_REPEATS, MAX_REPEATS = 5, 4, 3, 12
STARTS_SHARE = 0.5
MIN_ROUNDS, MIN_INFERENCE_ROUNDS = 8, 4  # in a repeat, and
FEWEST_ROUNDS, FEWEST_INFERENCE_ROUNDS = 4, 2  # where the fewest repeats would take longer than the stage may
ROUND_SD, REPEAT_SD = 0.1, 0.014  # of a ratio, before anything was measured
END_S = 3.0  # reading the traces, and evaluating the baseline's weights


@dataclass(frozen=True)
class Costs:
    """What was measured before the plan.

    Attributes:
        start_s: seconds to start one process of every arm, without imports.
        step_time_ms: time of a training step by arm; empty where inference alone is measured.
        batch_size: examples of a step by arm.
        input_time_ms: time of the input pipeline for one batch, in all of its threads together.
        latency_ms: time of a call by batch size and arm; without arms that are not measured at it.
        cold_calls: calls by batch size until the latency is steady, most of all arms.
        buffered_batches: batches that the input pipeline had prepared in advance.
        settling_steps: steps of a turn that wait less for their input than the others.
        trainings_s: seconds that all compared trainings took together; 0 if nothing was trained.
        arms: number of arms without bridging ones; more than have been measured where one is measured at a time.
        spent_s: seconds of the stage that are over.
    """

    start_s: float
    step_time_ms: Mapping[str, float]
    batch_size: Mapping[str, int]
    input_time_ms: float
    latency_ms: Mapping[int, Mapping[str, float]]
    cold_calls: Mapping[int, int]
    buffered_batches: int
    trainings_s: float
    arms: int
    settling_steps: int = 0
    spent_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The timing protocol.

    Attributes:
        interleaved: whether the arms take turns, or one is measured at a time.
        steps_by_batch: training steps in a turn, by examples of a step: turns take about the same time.
        lead_in_steps: untimed steps before each turn.
        drained_batches: batches that are used up before the first turn of a process; 0 if the input is fast.
        calls: inference calls in a turn by batch size.
        trace_steps: training steps in the trace.
        account_steps: training steps that count in a turn of a short trace.
        account_windows: turns of each arm in a short trace.
        account_traces: short traces of each arm in the fewest repeats together.
        account_s: seconds of all arms' short traces in a repeat, on average.
        input_rounds: rounds of a repeat that show what the input pipeline costs; 0 where it is fast.
        input_s: seconds of them in a repeat, for all arms.
        start_s: seconds to start one process of every arm.
        round_s, inference_round_s: seconds of a round of all arms; the first is 0 where inference alone is measured.
        stage_s: seconds that the stage may take, unless the fewest repeats take longer.
        end_s: seconds after the last repeat.
        fewest_repeats: before the time decides.
    """

    interleaved: bool
    steps_by_batch: Mapping[int, int]
    calls: Mapping[int, int]
    start_s: float
    inference_round_s: float
    stage_s: float
    fewest_repeats: int
    lead_in_steps: int = 0
    drained_batches: int = 0
    trace_steps: int = 0
    account_steps: int = 0
    account_windows: int = 1
    account_traces: int = 1
    account_s: float = 0.0
    input_rounds: int = 0
    input_s: float = 0.0
    round_s: float = 0.0
    end_s: float = 0.0

    @property
    def trains(self) -> bool:
        """Whether training is measured, and not inference alone."""
        return self.round_s > 0

    def steps_of(self, batch_size: int) -> int:
        """Training steps in a turn; of a batch that was not planned, as many examples as of the planned ones."""
        if batch_size not in self.steps_by_batch:
            nearest = min(self.steps_by_batch, key=lambda size: abs(size - batch_size))
            return max(1, round(self.steps_by_batch[nearest] * nearest / batch_size))
        return self.steps_by_batch[batch_size]

    def input_steps(self, batch_size: int, step_time_ms: float) -> int:
        """Steps of a turn on the pipeline or on a cached batch, of an arm whose step takes so long."""
        return min(self.steps_of(batch_size), _input_steps(step_time_ms))

    def account_traces_in(self, repeat: int) -> int:
        """Short traces of each arm in a repeat, counted from 0: the same number in each, or one more or less."""
        place, repeats = repeat % self.fewest_repeats, self.fewest_repeats
        return self.account_traces * (place + 1) // repeats - self.account_traces * place // repeats

    @property
    def account_trace_s(self) -> float:
        """Seconds of a short trace of all arms."""
        return self.account_s * self.fewest_repeats / self.account_traces

    @property
    def shortest_repeat_s(self) -> float:
        """Seconds of the shortest repeat worth starting, its start and what is measured beside it included."""
        return self.start_s + self.least_timing_s + self.beside_s

    @property
    def beside_s(self) -> float:
        """Seconds of a repeat for its short traces, and for steps on a cached batch."""
        return self.account_s + self.input_s

    @property
    def least_timing_s(self) -> float:
        """Seconds of timing in it: of the fewest repeats together `LEAST_TIMING_S`, and as long as their starts."""
        least_s = LEAST_TIMING_S if self.trains else LEAST_INFERENCE_S
        return max(self._least_rounds_s, least_s / self.fewest_repeats, self.start_s if self.trains else 0.0)

    @property
    def _least_rounds_s(self) -> float:
        usual_s = MIN_ROUNDS * self.round_s + MIN_INFERENCE_ROUNDS * self.inference_round_s
        if self.fewest_repeats * (self.start_s + self.beside_s + usual_s) + self.end_s <= self.stage_s:
            return usual_s
        return FEWEST_ROUNDS * self.round_s + FEWEST_INFERENCE_ROUNDS * self.inference_round_s


def make_plan(profile: ProfileParams, costs: Costs, *, interleaved: bool) -> Plan:
    """The protocol for these costs; what `profile` sets stays as it is."""
    calls = {
        size: profile.inference_calls_per_round or _calls(min(by_arm.values()), costs.cold_calls[size])
        for size, by_arm in costs.latency_ms.items()
    }
    inference_round_s = 1e-3 * sum(
        calls[size] * costs.arms * sum(by_arm.values()) / len(costs.batch_size)
        for size, by_arm in costs.latency_ms.items()
    )
    if not costs.step_time_ms:
        return _inference_plan(profile, costs, calls, inference_round_s, interleaved=interleaved)
    fastest_ms, slowest_ms = min(costs.step_time_ms.values()), max(costs.step_time_ms.values())
    input_share = costs.input_time_ms / fastest_ms
    waits = input_share > BUFFER_SHARE
    least, turn_ms = (WAITING_STEPS if waits else 1, TURN_MS) if interleaved else (ALONE_STEPS, ALONE_TURN_MS)
    steps_by_batch = _steps_by_batch(costs, least, turn_ms, profile.steps_per_round)
    steps = max(steps_by_batch.values())
    # Shorter turns have no lead-in step on a CPU, which would take up to half of the time: their first step took 6 %
    # longer where it takes 10 ms and 1 % where it takes 70 ms, in all arms alike, so that no ratio moved.
    lead_in = max(int(waits), costs.settling_steps, min(steps // 10, 1)) if interleaved else ALONE_LEAD_IN
    trace_steps = profile.trace_steps or max(MIN_TRACE_STEPS, min(MAX_TRACE_STEPS, int(TRACE_MS / slowest_ms)))
    end_s = END_S + 1e-3 * sum(traced_and_plain_steps(trace_steps, ms) * ms for ms in costs.step_time_ms.values())
    turns_ms = [
        (steps_by_batch[costs.batch_size[name]] + lead_in) * step_ms for name, step_ms in costs.step_time_ms.items()
    ]
    round_s = 1e-3 * costs.arms * fmean(turns_ms)
    start_s = costs.start_s * costs.arms / len(costs.step_time_ms)
    allowed_s = max(MIN_STAGE_S, min(MAX_STAGE_S, TRAININGS_SHARE * costs.trainings_s))
    least_s = start_s + MIN_ROUNDS * round_s + MIN_INFERENCE_ROUNDS * inference_round_s
    usual_fits = MIN_STAGE_S < allowed_s >= costs.spent_s + USUAL_REPEATS * least_s + end_s
    fewest = FEWER_REPEATS
    if interleaved and usual_fits:
        fewest = USUAL_REPEATS
    elif interleaved and FEWER_REPEATS * start_s > STARTS_SHARE * allowed_s:
        fewest = FEWEST_REPEATS
    fewest = profile.processes or fewest
    stretch = max(steps_by_batch.values()) if interleaved else 1
    counted_steps, windows, account_traces, account_trace_s = _account(costs, lead_in, stretch, allowed_s, fewest)
    drained = costs.buffered_batches if waits else 0
    input_rounds, input_s = _input(costs, steps_by_batch, lead_in, drained) if input_share > INPUT_SHARE else (0, 0.0)
    return Plan(
        interleaved=interleaved,
        steps_by_batch=steps_by_batch,
        lead_in_steps=lead_in,
        drained_batches=drained,
        calls=calls,
        trace_steps=trace_steps,
        account_steps=counted_steps,
        account_windows=windows,
        account_traces=account_traces,
        account_s=account_traces * account_trace_s / fewest,
        input_rounds=input_rounds,
        input_s=input_s,
        start_s=start_s,
        round_s=round_s,
        inference_round_s=inference_round_s,
        stage_s=allowed_s,
        end_s=end_s,
        fewest_repeats=fewest,
    )


def _inference_plan(
    profile: ProfileParams, costs: Costs, calls: dict[int, int], round_s: float, *, interleaved: bool
) -> Plan:
    """The protocol of a session in which nothing is trained: `FEWER_REPEATS` short repeats."""
    start_s = costs.start_s * costs.arms / len(costs.batch_size)
    fewest = profile.processes or FEWER_REPEATS
    least_s = max(FEWEST_INFERENCE_ROUNDS * round_s, LEAST_INFERENCE_S / fewest)
    return Plan(
        interleaved=interleaved,
        steps_by_batch=dict.fromkeys(costs.batch_size.values(), 1),
        calls=calls,
        start_s=start_s,
        inference_round_s=round_s,
        stage_s=costs.spent_s + fewest * (start_s + least_s),
        fewest_repeats=fewest,
    )


def _steps_by_batch(costs: Costs, least: int, turn_ms: float, given: int | None) -> dict[int, int]:
    """Steps of a turn by examples of a step: turns of the fastest arms of each batch take about the same time."""
    fastest_ms: dict[int, float] = {}
    for name, size in costs.batch_size.items():
        fastest_ms[size] = min(costs.step_time_ms[name], fastest_ms.get(size, math.inf))
    if given:
        return dict.fromkeys(fastest_ms, given)
    steps = {size: max(least, math.ceil(turn_ms / step_ms)) for size, step_ms in fastest_ms.items()}
    longest_ms = max(steps[size] * step_ms for size, step_ms in fastest_ms.items())
    return {size: max(steps[size], round(longest_ms / step_ms)) for size, step_ms in fastest_ms.items()}


def _input_steps(step_time_ms: float) -> int:
    return max(WAITING_STEPS, math.ceil(INPUT_TURN_MS / step_time_ms))


def _input(costs: Costs, steps_by_batch: Mapping[int, int], lead_in: int, drained: int) -> tuple[int, float]:
    """Rounds of a repeat on the pipeline and on a cached batch, and their seconds; the control has none."""
    pairs_ms = [
        (4 * min(steps_by_batch[costs.batch_size[name]], _input_steps(step_ms)) + 2 * (lead_in + 1) + drained) * step_ms
        for name, step_ms in costs.step_time_ms.items()
    ]
    pair_s = 1e-3 * max(1, costs.arms - 1) * fmean(pairs_ms)
    pairs = max(1, min(MOST_INPUT_ROUNDS // 2, int(INPUT_S / pair_s)))
    return 2 * pairs, pairs * pair_s


def _account(costs: Costs, lead_in: int, stretch: int, stage_s: float, repeats: int) -> tuple[int, int, int, float]:
    """Steps that count in a turn of a short trace, turns in it, traces in so many repeats, and seconds of one.

    Each repeat has at least one; where there is little time its turns are shorter, and then fewer. What is dropped of a
    turn is its first step, which takes the place of one that leads in.
    """
    step_ms, budget_s = fmean(costs.step_time_ms.values()), max(LEAST_ACCOUNT_S, ACCOUNT_SHARE * stage_s)
    in_a_step_s = 1e-3 * costs.arms * step_ms
    fitting = (budget_s / repeats - costs.arms * READING_S) / in_a_step_s
    beside = account_lead_in(lead_in) + LEADING_STEPS
    steps = max(
        1, min(max(MAX_ACCOUNT_STEPS // ACCOUNT_WINDOWS, stretch), round(ACCOUNT_MS / ACCOUNT_WINDOWS / step_ms))
    )
    steps = max(min(steps, LEAST_ACCOUNT_STEPS), min(steps, int(fitting / ACCOUNT_WINDOWS) - beside))
    windows = max(FEWEST_ACCOUNT_WINDOWS, min(ACCOUNT_WINDOWS, int(fitting / (steps + beside))))
    trace_s = costs.arms * READING_S + windows * (steps + beside) * in_a_step_s
    return steps, windows, max(repeats, min(MOST_ACCOUNT_TRACES * repeats, int(budget_s / trace_s))), trace_s


def account_lead_in(lead_in: int) -> int:
    """Untraced steps before a turn of a short trace."""
    return max(0, lead_in - 1)


def _calls(latency_ms: float, cold_calls: int) -> int:
    """Calls of a turn: those until the latency is steady, and enough steady ones."""
    steady = max(math.ceil(INFERENCE_TURN_MS / latency_ms), min(STEADY_CALLS, math.ceil(STEADY_MS / latency_ms)))
    return min(MAX_CALLS, cold_calls + steady)


def best_rounds(start_s: float, round_s: float, round_sd: float, repeat_sd: float) -> int:
    """Rounds in a repeat that narrow the interval most for the time.

    Kalibera and Jones, Rigorous benchmarking in reasonable time (2013), section 6.2: the square root of the cost of a
    repeat over that of a round, times the variance of a round over that of a repeat.
    """
    return max(1, round(math.sqrt(start_s / round_s) * round_sd / repeat_sd))


def plain_steps(marked_steps: int, step_time_ms: float) -> int:
    """Untraced steps around a trace, to see what the profiler adds: as many as are traced, for a second."""
    return max(1, min(marked_steps, int(PLAIN_MS / step_time_ms)))


def traced_and_plain_steps(trace_steps: int, step_time_ms: float) -> int:
    """All steps that a trace of one arm takes."""
    marked_steps = trace_steps + DROPPED_STEPS
    return marked_steps + 2 * plain_steps(marked_steps, step_time_ms)
