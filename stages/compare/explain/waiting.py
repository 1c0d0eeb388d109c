"""How long a training step waits for its input, which no precision shortens.

The evidence is how much longer a step on the input pipeline takes than one on a cached batch, in rounds of one process.
The differences of the rounds give Student's t interval.
"""

from __future__ import annotations

import pandas as pd

from stages.results.comparison import Waiting
from stages.stats.speedup import t_interval

MIN_ROUNDS = 4


def waiting(rounds: pd.DataFrame) -> Waiting | None:
    """The wait by the rows of `InputRound`; None with too few rounds."""
    if rounds.empty:
        return None
    step_ms = (rounds["round_time_ms"] / rounds["steps"]).groupby(
        [rounds["process"], rounds["round"], rounds["batches"]]
    )
    by_round = step_ms.mean().unstack()
    if not {"pipeline", "cached"} <= set(by_round):
        return None
    by_round = by_round.dropna()
    if len(by_round) < MIN_ROUNDS:
        return None
    pipeline_ms, cached_ms = float(by_round["pipeline"].mean()), float(by_round["cached"].mean())
    low, high = t_interval((by_round["pipeline"] - by_round["cached"]).to_numpy() / pipeline_ms)
    return Waiting(step_ms=pipeline_ms, cached_ms=cached_ms, low=low, high=min(1.0, high), rounds=len(by_round))
