"""How long a training step waits for its input, which no precision shortens.

The evidence is how much longer a step on the input pipeline takes than one on a cached batch, in turns of one process
that follow each other. The wait is 1 - 1 / r of the step, where r is the ratio of both times. The interval is that of r
as of a speed-up: by the pairs of turns or by the repeats, whichever is wider.
"""

from __future__ import annotations

import pandas as pd

from halfstep.results.comparison import Waiting
from halfstep.stats.speedup import train_speedup

MIN_ROUNDS = 4


def waiting(rounds: pd.DataFrame) -> Waiting | None:
    """The wait by the rows of `InputRound`; None if it is not known."""
    found = measured_wait(rounds)
    return found if found is not None and not found.is_impossible else None


def measured_wait(rounds: pd.DataFrame) -> Waiting | None:
    """As `waiting`, also where it is impossible; None with too few rounds, or with those of a single repeat."""
    if not len(rounds):
        return None
    of_pipeline, of_cache = (rounds[rounds["batches"] == batches] for batches in ("pipeline", "cached"))
    shared = {*zip(of_pipeline["process"], of_pipeline["round"], strict=True)}
    shared &= {*zip(of_cache["process"], of_cache["round"], strict=True)}
    if len(shared) < MIN_ROUNDS or len({repeat for repeat, _ in shared}) < 2:
        return None
    slower = train_speedup(of_pipeline.assign(counted=True), of_cache.assign(counted=True))
    return Waiting(
        step_ms=slower.baseline_time_ms,
        cached_ms=slower.candidate_time_ms,
        low=1 - 1 / slower.low,
        high=1 - 1 / slower.high,
        rounds=slower.rounds,
    )
