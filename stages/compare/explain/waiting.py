"""How long a training step waits for its input, which no precision shortens.

The evidence is how much longer a step on the input pipeline takes than one on a cached batch, in rounds of one repeat
in which both take turns. The differences of the rounds give Student's t interval: it is that of one process.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from stages.stats.speedup import t_interval
from stages.text import ms_text, number_text

MIN_ROUNDS = 4


@dataclass(frozen=True)
class Waiting:
    """The wait of a training step.

    Attributes:
        step_ms: mean time of a step on the input pipeline.
        cached_ms: mean time of a step on a cached batch.
        low, high: interval of the wait as a share of the step.
        rounds: rounds with both.
    """

    step_ms: float
    cached_ms: float
    low: float
    high: float
    rounds: int

    @property
    def wait_ms(self) -> float:
        """Time of a step that waits for input."""
        return self.step_ms - self.cached_ms

    @property
    def share(self) -> float:
        """The wait as a share of the step."""
        return self.wait_ms / self.step_ms

    @property
    def bound(self) -> float | None:
        """Speed-up that no precision can exceed, by the lower end of the interval; None if it may wait for nothing."""
        return 1 / self.low if self.low > 0 else None

    @property
    def text(self) -> str:
        """Such as `135 of 137 ms of a training step wait for input`."""
        return f"{number_text(self.wait_ms)} of {ms_text(self.step_ms)} of a training step wait for input"


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
    return Waiting(pipeline_ms, cached_ms, low, min(1.0, high), len(by_round))
