"""The rules of the verdicts: what each rests on, and how those of a report share the error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from halfstep.params.schema import CompareParams
from halfstep.results.comparison import Ratio, Verdict, VerdictTest
from halfstep.results.profile import THROTTLED, Profile
from halfstep.stats.classes import RecallChange
from halfstep.stats.multiple import holm
from halfstep.stats.quality import QualityChange
from halfstep.stats.speedup import CONFIDENCE, Speedup
from halfstep.words.outcomes import Outcome, Side
from halfstep.words.text import TRAIN, inference_measure

CONTROL_ERROR = 0.01  # how often the control may differ from 1 by chance, over all measures of a report together
MAX_THROTTLED = 0.1  # of the rounds of a measure; a GPU that cools down after throttling is not as it was before
_Key = TypeVar("_Key", bound=tuple[str, str])  # a candidate and a measure


@dataclass(frozen=True)
class Claim:
    """What one verdict rests on; all parts must hold.

    Attributes:
        speedup: of the measure.
        precision: the factor of it that the precision brings; None where no other setting differs.
        quality: for training that of two trainings, for inference that of the same weights; None for speed only, and
            for training where the candidate was not trained.
        margin: largest loss of quality that counts as the same, in units of the score.
        lacks_precision: whether other settings differ, and that factor is not known: then nothing is adopted.
        bound: speed-up that no precision can exceed, because a step waits for input; None if there is no bound.
        classes: the change of recall of each class, which `compare.class_margin` judges.
        is_trained: whether the candidate was trained where the baseline was; else it is not adopted.
    """

    speedup: Speedup
    precision: Speedup | None = None
    quality: QualityChange | None = None
    margin: float = 0.0
    lacks_precision: bool = False
    bound: float | None = None
    classes: tuple[RecallChange, ...] = ()
    is_trained: bool = True

    @property
    def ratios(self) -> tuple[Speedup, ...]:
        """Those that must be worth having."""
        return (self.speedup,) if self.precision is None else (self.speedup, self.precision)

    def p_value(self, params: CompareParams) -> float:
        """One-sided p-value that a part does not hold, so that `adopt` is wrong: the largest of theirs."""
        if self.lacks_precision or self.quality is None:
            return 1.0
        margin = params.class_margin  # all classes must hold it, so that none pays for the others
        p_lost = () if margin is None else (item.change.p_loss(margin) for item in self.classes)
        p_slow = (ratio.p_below(params.min_speedup) for ratio in self.ratios)
        return max(self.quality.p_loss(self.margin), *p_slow, *p_lost)

    def verdict(self, p_adjusted: float, params: CompareParams) -> Verdict:
        """With quality: `adopt` if the adjusted p-value is at most 5 % and the 95 % intervals show all parts too, which
        matters where one verdict has the 5 % for itself. `reject` if the interval of one part refutes it.

        On speed only, by the plain 95 % intervals, looks paid: `faster` if those of all ratios reach `min_speedup`;
        `slower` if that of the speed-up ends below 1. A speed-up that is shown to be between the two is neither. Each
        word is wrong in at most 2.5 % of the measurements; unlike `adopt`, they share no error: of six, at least one
        `faster` is wrong in up to 15 % of the reports.
        """
        sides = [side(ratio, params) for ratio in self.ratios]
        is_fast = set(sides) == {"above"}
        if self.quality is None and self.is_trained:
            if is_fast and not self.lacks_precision:
                return "faster"
            return "slower" if self.speedup.side(1.0) == "below" else "inconclusive"
        outcomes = {class_outcome(item, params) for item in self.classes} - {None}
        if self.quality is not None:
            outcomes.add(self.quality.outcome(self.margin))
        if p_adjusted <= 1 - CONFIDENCE and is_fast and outcomes == {"shown"}:
            return "adopt"
        is_refuted = "below" in sides or "refuted" in outcomes or is_bounded(self.speedup, self.bound, params)
        return "reject" if is_refuted else "inconclusive"


def judge(
    claims: Mapping[_Key, Claim], void: Collection[str], params: CompareParams
) -> dict[_Key, tuple[Verdict, VerdictTest | None]]:
    """All verdicts of a report, with the tests that share the 5 % by Holm's method; none on speed only.

    Args:
        claims: by candidate and measure.
        void: measures that decide nothing: their verdict is `inconclusive`.
        params: section `compare`.
    """
    p_values = {key: claim.p_value(params) for key, claim in claims.items() if claim.quality is not None}
    tests = {key: VerdictTest(p=p_values[key], p_adjusted=adjusted) for key, adjusted in holm(p_values).items()}
    return {
        key: (
            "inconclusive" if key[1] in void else claim.verdict(tests[key].p_adjusted if key in tests else 1.0, params),
            tests.get(key),
        )
        for key, claim in claims.items()
    }


def class_outcome(item: RecallChange, params: CompareParams) -> Outcome | None:
    """Whether a loss of more than `compare.class_margin` is excluded, shown, or neither; None without a margin."""
    if params.class_margin is None:
        return None
    if item.change.p_loss(params.class_margin) <= (1 - CONFIDENCE) / 2:
        return "shown"
    return "refuted" if item.high < -params.class_margin else "not established"


def side(ratio: Speedup | Ratio, params: CompareParams) -> Side:
    """On which side of `compare.min_speedup` an interval lies."""
    return ratio.side(params.min_speedup)


def is_bounded(speedup: Speedup, bound: float | None, params: CompareParams) -> bool:
    """Whether a step waits for input so long that no precision brings `min_speedup`, and the timing shows none."""
    return bound is not None and bound < params.min_speedup and side(speedup, params) != "above"


def void_measures(control: Mapping[str, Speedup]) -> frozenset[str]:
    """Measures at which the control, which runs the baseline's code, differs from 1: they decide nothing.

    The measures of a report share the error of 1 % (Bonferroni).
    """
    intervals = {measure: ratio.interval(1 - CONTROL_ERROR / len(control)) for measure, ratio in control.items()}
    return frozenset(measure for measure, (low, high) in intervals.items() if not low <= 1 <= high)


def throttled_measures(profile: Profile, inference_batch_sizes: Iterable[int]) -> dict[str, float]:
    """Measures that decide nothing because the GPU was throttled in too many rounds, with the share of these rounds.

    Too many are more than `MAX_THROTTLED` of those in the steady state, or all of one process. A round is one of all
    arms, so any of them may be asked.
    """
    return dict(_throttled(profile, inference_batch_sizes))


def _throttled(profile: Profile, inference_batch_sizes: Iterable[int]) -> Iterator[tuple[str, float]]:
    calls = profile.calls
    tables = {inference_measure(size): calls[calls["batch_size"] == size] for size in inference_batch_sizes}
    for measure, table in ({TRAIN: profile.rounds} | tables).items():
        if THROTTLED not in table:
            continue
        counted, throttled = table["counted"].astype(bool), table[THROTTLED].eq(True)
        steady: pd.Series[bool] = table["round"] >= table.loc[counted, "round"].min()
        share = float(throttled[steady].groupby([table["process"], table["round"]]).any().mean())
        if share > MAX_THROTTLED or (counted & throttled).any():
            yield measure, share
