"""How much to measure, from the costs of starting, of a step and of a call, which are measured first.

Processes are independent and rounds are not, so as many processes as the time allows are planned, and each of them runs
rounds for as long as its start took: then at least half of the stage is timing. (Kalibera and Jones, Rigorous
benchmarking in reasonable time, 2013, weigh the variance of each level against its cost; where both variances are
unknown and alike, equal cost is within a factor of two of their optimum.) A number in `profile` overrides the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stages.params import ProfileParams

MIN_PROCESSES = 4  # Student's factor is 12.7 for 2 processes, 4.3 for 3, 3.2 for 4
FIRST_ANSWER_PROCESSES = 3  # without a training, where more would take too long to start
USUAL_PROCESSES, MAX_PROCESSES = 5, 12
ABOUT_HALF = 0.8  # of the time that a process takes to start: with so much timing, about half of the stage is timing
# The stage takes about as long as the trainings, within these limits; without a training it takes the lower one.
MIN_STAGE_S, MAX_STAGE_S = 90.0, 240.0
TURN_MS = 60.0  # of training; a turn is at least one step
INFERENCE_TURN_MS, MAX_CALLS = 30.0, 1000
MIN_ROUNDS, MIN_INFERENCE_ROUNDS = 8, 3
FEWEST_ROUNDS = 3  # where even `MIN_PROCESSES` times `MIN_ROUNDS` exceed `MAX_STAGE_S`
INFERENCE_SHARE = 1 / 3  # of the timing
# Of a step. If batches take less, the buffer is full in a training too: each step uses one batch, and the next one is
# made while it runs. If they take more, steps wait for batches, and the turn must begin with an empty buffer.
BUFFER_SHARE = 0.25
INPUT_SHARE = 0.05  # of a step; if batches take less, it is not worth measuring what they cost
WORTH_STARTING = (
    0.4  # of the time that a process takes to start: less timing is not worth it, however short the trainings
)
BEYOND_STARTUP = 1.2  # what a process costs without timing, over its start: single steps, input rounds, its end
TRACE_MS = 1500.0
MIN_TRACE_STEPS, MAX_TRACE_STEPS = 2, 8
DROPPED_STEPS = 2  # of a trace, at its ends
PLAIN_MS = 1000.0
END_S = 5.0  # reading the traces, and evaluating the baseline's weights


@dataclass(frozen=True)
class Costs:
    """What was measured before the plan.

    Attributes:
        startup_s: seconds to start one process of every arm.
        step_time_ms: time of a training step by arm.
        input_time_ms: time of the input pipeline for one batch, in all of its threads together.
        latency_ms: time of a call by batch size and arm.
        buffered_batches: batches that the input pipeline prepares in advance.
        trainings_s: seconds that all compared trainings took together; 0 if nothing was trained.
        blocks: the arms that live at once, if not all do; `startup_s` is then that of all blocks.
        spent_s: seconds that went by before it was known that not all arms live at once.
    """

    startup_s: float
    step_time_ms: Mapping[str, float]
    input_time_ms: float
    latency_ms: Mapping[int, Mapping[str, float]]
    buffered_batches: int
    trainings_s: float
    blocks: Sequence[Sequence[str]] = ()
    spent_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The timing protocol.

    Attributes:
        processes: how often each arm's process is started, at most.
        timing_s: seconds of timing in all processes.
        training_share: of these seconds.
        steps_per_round: training steps in a turn.
        lead_in_steps: untimed steps before each turn.
        calls: inference calls in a turn by batch size.
        rounds: most rounds in a process; None if the time decides.
        trace_steps: training steps in the trace.
        input_matters: whether it is measured what the input pipeline costs.
        startup_s: seconds to start one process of every arm.
        stage_s: seconds that the stage is expected to take from the start of the first process.
        spent_s: the part of it that is over when the first round begins.
        at_once: how many arms live at once; None for all.
        blocks: number of groups of arms that live at once.
        round_s, inference_round_s: seconds of a round of every block.
    """

    processes: int
    timing_s: float
    training_share: float
    steps_per_round: int
    lead_in_steps: int
    calls: Mapping[int, int]
    rounds: int | None
    trace_steps: int
    input_matters: bool
    startup_s: float
    stage_s: float
    spent_s: float = 0.0
    at_once: int | None = None
    blocks: int = 1
    round_s: float = 0.0
    inference_round_s: float = 0.0


def make_plan(profile: ProfileParams, costs: Costs) -> Plan:
    """The protocol for these costs; what `profile` sets stays as it is."""
    steps = profile.steps_per_round or math.ceil(TURN_MS / min(costs.step_time_ms.values()))
    slowest_ms = max(costs.step_time_ms.values())
    input_share = costs.input_time_ms / min(costs.step_time_ms.values())
    lead_in = costs.buffered_batches if input_share > BUFFER_SHARE else min(steps // 10, 1)
    calls = {
        size: profile.inference_calls_per_round or min(MAX_CALLS, math.ceil(INFERENCE_TURN_MS / min(by_arm.values())))
        for size, by_arm in costs.latency_ms.items()
    }
    trace_steps = profile.trace_steps or max(MIN_TRACE_STEPS, min(MAX_TRACE_STEPS, int(TRACE_MS / slowest_ms)))
    end_s = END_S + 1e-3 * sum(traced_and_plain_steps(trace_steps, ms) * ms for ms in costs.step_time_ms.values())
    turns = [name for block in costs.blocks for name in block] or list(costs.step_time_ms)
    round_s = 1e-3 * (steps + lead_in) * sum(costs.step_time_ms[name] for name in turns)
    inference_round_s = 1e-3 * sum(
        calls[size] * sum(by_arm[name] for name in turns) for size, by_arm in costs.latency_ms.items()
    )
    processes, timing_s = _budget(profile, costs, end_s + costs.spent_s, round_s, inference_round_s)
    return Plan(
        processes=processes,
        timing_s=timing_s,
        training_share=1 - INFERENCE_SHARE if calls else 1.0,
        steps_per_round=steps,
        lead_in_steps=lead_in,
        calls=calls,
        rounds=profile.rounds,
        trace_steps=trace_steps,
        input_matters=input_share > INPUT_SHARE,
        startup_s=costs.startup_s,
        stage_s=costs.spent_s + processes * costs.startup_s + timing_s + end_s,
        spent_s=costs.spent_s if costs.blocks else costs.startup_s,
        at_once=len(costs.blocks[0]) if costs.blocks else None,
        blocks=len(costs.blocks) or 1,
        round_s=round_s,
        inference_round_s=inference_round_s,
    )


def plain_steps(marked_steps: int, step_time_ms: float) -> int:
    """Untraced steps before and after a trace, to see what the profiler costs: as many as are traced, for a second."""
    return max(1, min(marked_steps, int(PLAIN_MS / step_time_ms)))


def traced_and_plain_steps(trace_steps: int, step_time_ms: float) -> int:
    """All steps that a trace of one arm takes."""
    marked_steps = trace_steps + DROPPED_STEPS
    return marked_steps + 2 * plain_steps(marked_steps, step_time_ms)


def _budget(
    profile: ProfileParams, costs: Costs, end_s: float, round_s: float, inference_round_s: float
) -> tuple[int, float]:
    """Number of processes, and seconds of timing in all of them."""
    fewest = profile.processes or _fewest(costs, end_s)
    proportionate_s = MAX_STAGE_S if profile.max_seconds else max(MIN_STAGE_S, min(MAX_STAGE_S, costs.trainings_s))
    allowed_s = proportionate_s - end_s
    wanted_s = MIN_ROUNDS * round_s + MIN_INFERENCE_ROUNDS * inference_round_s
    half_s = BEYOND_STARTUP * costs.startup_s + end_s / fewest  # then half of the stage is timing
    is_first_answer = not costs.trainings_s and fewest == FIRST_ANSWER_PROCESSES
    worth_s = 0.0 if is_first_answer else WORTH_STARTING * costs.startup_s
    affordable_s = max(allowed_s / fewest - costs.startup_s, worth_s)
    most_s = 0.0 if is_first_answer else (MAX_STAGE_S - end_s) / fewest - costs.startup_s
    seconds = max(min(half_s, affordable_s), min(wanted_s, most_s), FEWEST_ROUNDS * round_s + inference_round_s)
    affordable = profile.max_seconds / seconds if profile.max_seconds else allowed_s / (costs.startup_s + seconds)
    processes = profile.processes or max(fewest, min(MAX_PROCESSES, int(affordable)))
    return processes, profile.max_seconds or processes * seconds


def _fewest(costs: Costs, end_s: float) -> int:
    """The fewest processes: as many as start fast enough for about half of the longest stage to be timing."""
    if (MAX_STAGE_S - end_s) / USUAL_PROCESSES - costs.startup_s > ABOUT_HALF * costs.startup_s:
        return USUAL_PROCESSES
    starts_s = MIN_PROCESSES * costs.startup_s + end_s
    return FIRST_ANSWER_PROCESSES if not costs.trainings_s and starts_s > MIN_STAGE_S else MIN_PROCESSES
