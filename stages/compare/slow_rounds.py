"""Few rounds that took much longer than the others, and make the interval of a speed-up wide."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from stages.results.profile import Profile
from stages.stats.speedup import Speedup, Times, speedup_of
from stages.text import batch_size_of

SLOW = 1.5  # times the median of the repeat
FEW = 0.1  # of the rounds; more of them are how the machine is
WIDENS = 1.5  # times the width without them


@dataclass(frozen=True)
class SlowRounds:
    """Rounds in which one of two arms was slow.

    Attributes:
        slow, rounds: number of slow rounds, and of all that both arms share.
        factor: time of the slow ones over the median of their repeat, mean.
    """

    slow: int
    rounds: int
    factor: float

    @property
    def text(self) -> str:
        """Such as `one round in 20 took twice as long`."""
        number = "one round" if self.slow == 1 else f"{self.slow} rounds"
        return f"{number} in {self.rounds:,} took {self._times} as long"

    @property
    def _times(self) -> str:
        return "twice" if round(self.factor, 1) == 2 else f"{self.factor:.1f} times"


def widening_rounds(measure: str, baseline: Profile, candidate: Profile, speedup: Speedup) -> SlowRounds | None:
    """The few slow rounds without which the interval of a speed-up would be much narrower; None if there are none."""
    arms = [_turns(profile, measure) for profile in (baseline, candidate)]
    shared = arms[0].index.intersection(arms[1].index)
    relative = pd.concat([turn.loc[shared] / turn.loc[shared].groupby("process").median() for turn in arms], axis=1)
    worst = relative.max(axis=1)
    slow = worst[worst >= SLOW]
    if slow.empty or len(slow) > FEW * len(shared):
        return None
    before, after = (
        Times(_without(profile.rounds, slow), _without(profile.calls, slow), profile.batch_size)
        for profile in (baseline, candidate)
    )
    rest = speedup_of(measure, before, after, speedup.confidence, interleaved=speedup.interleaved, fewest=1)
    if speedup.within_run.half_width < WIDENS * rest.half_width:
        return None
    return SlowRounds(len(slow), len(shared), float(slow.mean()))


def _turns(profile: Profile, measure: str) -> pd.Series[float]:
    """Mean time of a step or call of each counted turn, by process and round."""
    size = batch_size_of(measure)
    if size is None:
        counted = profile.rounds[profile.rounds["counted"].astype(bool)].set_index(["process", "round"])
        return counted["round_time_ms"] / counted["steps"]
    calls = profile.calls[(profile.calls["batch_size"] == size) & profile.calls["counted"].astype(bool)]
    return calls.groupby(["process", "round"])["latency_ms"].mean()


def _without(table: pd.DataFrame, slow: pd.Series[float]) -> pd.DataFrame:
    """The rows of other rounds."""
    return table[~pd.MultiIndex.from_frame(table[["process", "round"]]).isin(slow.index)]
