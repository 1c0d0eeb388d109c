"""The verdict rules: what each verdict of a report rests on, and how the verdicts share the error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from halfstep.outcomes import Outcome
from halfstep.params import CompareParams
from halfstep.results.comparison import Verdict, VerdictTest
from halfstep.results.profile import THROTTLED, Profile
from halfstep.stats.classes import RecallChange
from halfstep.stats.multiple import holm
from halfstep.stats.quality import QualityChange
from halfstep.stats.speedup import CONFIDENCE, Speedup
from halfstep.text import TRAIN, inference_measure

CONTROL_ERROR = 0.01  # how often the control may differ from 1 by chance, over all measures of a report together
MAX_THROTTLED = 0.1  # of the rounds of a measure; a GPU that cools down after throttling is not as it was before

Key = tuple[str, str]  # a candidate and a measure


@dataclass(frozen=True)
class Parts:
    """What one verdict rests on.

    Attributes:
        speedup: of the measure.
        precision: the factor of it that the precision brings; None where no other setting differs.
        quality: for training that of two trainings, for inference that of the same weights.
        margin: largest loss of quality that counts as the same, in units of the score.
        lacks_precision: whether other settings differ, and that factor is not known: then nothing is adopted.
        bound: speed-up that no precision can exceed, because a step waits for input; None if there is no bound.
        classes: the change of recall of each class, which `compare.class_margin` judges.
    """

    speedup: Speedup
    precision: Speedup | None
    quality: QualityChange
    margin: float
    lacks_precision: bool = False
    bound: float | None = None
    classes: tuple[RecallChange, ...] = ()

    @property
    def ratios(self) -> tuple[Speedup, ...]:
        """The ratios that must be worth having."""
        return (self.speedup,) if self.precision is None else (self.speedup, self.precision)

    def p_value(self, params: CompareParams) -> float:
        """One-sided p-value that one of the parts does not hold, so that `adopt` is wrong: the largest of theirs."""
        if self.lacks_precision:
            return 1.0
        p_slow = (ratio.p_below(params.min_speedup) for ratio in self.ratios)
        margin = params.class_margin  # all classes must hold it, so that none pays for the others
        p_lost = () if margin is None else (item.change.p_loss(margin) for item in self.classes)
        return max(self.quality.p_loss(self.margin), *p_slow, *p_lost)

    def _class_outcomes(self, params: CompareParams) -> set[Outcome | None]:
        return {class_outcome(item, params) for item in self.classes}

    def is_shown(self, params: CompareParams) -> bool:
        """Whether the 95 % intervals of all parts show them."""
        is_fast = all(ratio.side(params.min_speedup) == "above" for ratio in self.ratios)
        is_kept = self._class_outcomes(params) <= {"shown", None}
        return is_fast and is_kept and self.quality.outcome(self.margin) == "shown"

    def is_refuted(self, params: CompareParams) -> bool:
        """Whether the 95 % interval of one of the parts refutes it, or that of the wait for input."""
        too_slow = any(ratio.side(params.min_speedup) == "below" for ratio in self.ratios)
        too_slow = too_slow or is_bounded(self.speedup, self.bound, params)
        return too_slow or "refuted" in self._class_outcomes(params) or self.quality.outcome(self.margin) == "refuted"


def class_outcome(item: RecallChange, params: CompareParams) -> Outcome | None:
    """Whether a loss of more than `compare.class_margin` is excluded, shown, or neither; None without a margin."""
    if params.class_margin is None:
        return None
    if item.change.p_loss(params.class_margin) <= (1 - CONFIDENCE) / 2:
        return "shown"
    return "refuted" if item.high < -params.class_margin else "not established"


def is_bounded(speedup: Speedup, bound: float | None, params: CompareParams) -> bool:
    """Whether a step waits for input so long that no precision brings `min_speedup`, and the timing shows none."""
    return bound is not None and bound < params.min_speedup and speedup.side(params.min_speedup) != "above"


def run_tests(parts: Mapping[Key, Parts], params: CompareParams) -> dict[Key, VerdictTest]:
    """The tests of all verdicts of a report, which share the 5 % by Holm's method."""
    p_values = {key: part.p_value(params) for key, part in parts.items()}
    return {key: VerdictTest(p=p_values[key], p_adjusted=adjusted) for key, adjusted in holm(p_values).items()}


def decide(parts: Parts, p_adjusted: float, params: CompareParams, *, void: bool = False) -> Verdict:
    """One verdict.

    `adopt` if the adjusted p-value is at most 5 %, and the 95 % intervals say so too, which matters where one verdict
    has the 5 % for itself: that of the quality excludes the margin, and the low ends of the ratios are at least
    `min_speedup`. `reject` if a part is refuted. Otherwise, and for a void measure, `inconclusive`.
    """
    if void:
        return "inconclusive"
    if p_adjusted <= 1 - CONFIDENCE and parts.is_shown(params):
        return "adopt"
    return "reject" if parts.is_refuted(params) else "inconclusive"


def decide_speed(
    speedup: Speedup,
    precision: Speedup | None,
    params: CompareParams,
    *,
    void: bool = False,
    lacks_precision: bool = False,
) -> Literal["faster", "slower", "inconclusive"]:
    """One verdict on speed only, by the plain 95 % intervals, looks paid.

    `faster` if the low end of the speed-up reaches `min_speedup`, and so does that of the precision's factor where
    there is one; `slower` if the high end of the speed-up is below 1. Otherwise, and for a void measure,
    `inconclusive`. That includes a speed-up that is shown to be below `min_speedup` and not below 1, and one whose
    precision is shown to bring less: `slower` would be false of both, and the sentence on the candidate says what is
    known. `lacks_precision` as of `Parts`.

    Each word is wrong in at most 2.5 % of the measurements. Unlike `adopt`, the verdicts of a report do not share that
    error: of six, at least one `faster` is wrong in up to 15 % of the reports.
    """
    if void:
        return "inconclusive"
    if not lacks_precision and all(
        ratio.side(params.min_speedup) == "above" for ratio in (speedup, precision) if ratio is not None
    ):
        return "faster"
    return "slower" if speedup.side(1.0) == "below" else "inconclusive"


def verdicts(
    parts: Mapping[Key, Parts], tests: Mapping[Key, VerdictTest], void: Collection[str], params: CompareParams
) -> dict[Key, Verdict]:
    """All verdicts of a report; `void` are the measures that decide nothing."""
    return {key: decide(parts[key], test.p_adjusted, params, void=key[1] in void) for key, test in tests.items()}


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
    calls = profile.calls
    tables = {TRAIN: profile.rounds} | {
        inference_measure(size): calls[calls["batch_size"] == size] for size in inference_batch_sizes
    }
    shares = {measure: _throttled_share(table) for measure, table in tables.items() if THROTTLED in table}
    return {measure: share for measure, share in shares.items() if share is not None}


def _throttled_share(table: pd.DataFrame) -> float | None:
    """Share of the steady rounds in which the GPU was throttled, if it is too large, or if one of them counts."""
    counted, throttled = table["counted"].astype(bool), table[THROTTLED].eq(True)
    steady = table["round"] >= table.loc[counted, "round"].min()
    share = float(throttled[steady].groupby([table["process"], table["round"]]).any().mean())
    return share if share > MAX_THROTTLED or (counted & throttled).any() else None
