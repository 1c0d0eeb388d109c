"""Decides when each measure of each candidate ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import pandas as pd

from halfstep.params.measures import measures_of
from halfstep.profile.differences import bridge_of
from halfstep.profile.records import ArmRecord, Looks, Measurement
from halfstep.profile.schedule import OutOf
from halfstep.results.profile import EndedBy, Ending, InferenceCall, Round
from halfstep.stats.speedup import (
    CONFIDENCE,
    INTERIM_CONFIDENCE,
    LOOKS,
    Speedup,
    Times,
    final_confidence,
    shared_repeats,
    speedup_of,
)
from halfstep.system import files
from halfstep.words.text import batch_size_of

DECIDED_WIDTH = 0.04  # half-width, as a share of the ratio, of an interval that may end a decided measure
HOPELESS = 0.95  # of `min_speedup`: an interval below it ends a measure at any width
# Without training, a measure ends after two repeats, or later at any width, if its interval is beyond so many times
# `min_speedup`, and its upper end at most so many times the lower one.
CERTAIN_REPEATS, CERTAIN, CERTAIN_WIDTH = 2, 2.0, 1.5
MIN_CALIBRATED = 0.85  # of `min_speedup`: calibrations that show less leave out the bridging arm of the first repeat

Key = tuple[str, str]  # a candidate and a measure


@dataclass(frozen=True)
class Target:
    """What ends a measure before its time is up.

    Attributes:
        precision: half-width of the interval, as a ratio.
        min_speedup: smallest speed-up worth having.
        verdicts: number of verdicts of the report, which share the error.
        interleaved: whether the arms take turns.
        trains: whether training is measured; without it arms differ in nothing that a bridging arm would separate.
    """

    precision: float
    min_speedup: float
    verdicts: int
    interleaved: bool = True
    trains: bool = True


class StoppingRule:
    """When each measure of each candidate ends: at its precision, decided, or when the time is up.

    Decided concerns the speed alone: an interval below `min_speedup`, or one that would be adopted at the strictest
    level of Holm's method; both must be narrow, but for one that is far below. They are asked at few interim looks,
    which are paid for. When the time is up, a measure that is undecided goes on if more time is likely to settle it;
    from then on its interval need not be narrow.
    Quality plays no part.

    Args:
        measurement: its records, to which the runner adds the rounds, and the looks and endings of its measures.
        baseline: name of the baseline's arm.
        sizes: batch sizes of inference.
        target: what ends a measure.
    """

    def __init__(self, measurement: Measurement, baseline: str, sizes: tuple[int, ...], target: Target) -> None:
        self._measurement, self._records = measurement, measurement.records
        self._baseline, self._target, self._sizes = baseline, target, sizes
        self._gone_on: set[Key] = set()  # although their time was up

    @property
    def endings(self) -> dict[Key, Ending]:
        """Why and when each measure ended, by candidate and measure."""
        by_candidate = self._measurement.endings.items()
        return {
            (candidate, measure): ending for candidate, of_one in by_candidate for measure, ending in of_one.items()
        }

    def _looks(self, key: Key) -> Looks:
        candidate, measure = key
        return self._measurement.looks.setdefault(candidate, {}).setdefault(measure, Looks())

    @property
    def candidates(self) -> list[str]:
        """The variants beside the baseline; the control if there are none."""
        names = [name for name in self._records if name != self._baseline and files.is_variant(name)]
        return names or [name for name in self._records if name == files.CONTROL]

    @property
    def has_open(self) -> bool:
        """Whether a measure goes on."""
        return bool(self.open())

    def open(self) -> list[Key]:
        """The candidates and measures that go on; none without a baseline."""
        if self._baseline not in self._records:
            return []
        return [key for key in self._keys if self._looks(key).ending is None]

    @property
    def _keys(self) -> list[Key]:
        """Every candidate with each of its measures."""
        before = self._records[self._baseline].entry
        return [
            (name, measure)
            for name in self.candidates
            for measure in measures_of(self._records[name].entry, before, self._sizes, trains=self._target.trains)
        ]

    def needed(self, *, with_control: bool) -> dict[str, set[str]]:
        """The measures of the next repeat by arm; a bridging arm's are those where its candidate may be adopted."""
        measures_by_arm: dict[str, set[str]] = {name: set() for name in self._records}
        times, is_open = self._times(), self.open()
        for candidate, measure in is_open:
            bridge = self._bridge(candidate, measure)
            wanted = [bridge] if bridge and self._may_be_adopted(times, (candidate, measure)) else []
            for arm in (self._baseline, candidate, *wanted):
                measures_by_arm.setdefault(arm, set()).add(measure)
        if files.CONTROL in measures_by_arm and with_control:
            measures_by_arm[files.CONTROL] |= {measure for _, measure in is_open}
        return {name: measures for name, measures in measures_by_arm.items() if measures}

    def look(self, out_of: OutOf | None, narrowing: float | None = None) -> None:
        """Ends the measures that have what they need, or all of them if time or rounds are used up.

        Args:
            out_of: what is used up.
            narrowing: what the width of an interval will be multiplied with if the measure goes on although its time is
                up; None if it must not.
        """
        times = self._times()
        for key in self.open():
            (candidate, measure), looks = key, self._looks(key)
            repeats = self._shared(measure, times[self._baseline], times[candidate])
            if out_of is not None:
                confidence = final_confidence(looks.interim, looks.last)
                speedups = self._factors(times, key, confidence)
                looks.last += 1
                if narrowing is None or self._is_decided(speedups) or not self._can_be_settled(speedups, narrowing):
                    self._end(looks, "target_precision" if self._is_narrow(speedups) else out_of, repeats, confidence)
                else:
                    self._gone_on.add(key)
            elif repeats in LOOKS or (repeats == CERTAIN_REPEATS and not self._target.trains):
                looks.interim += 1
                speedups = self._factors(times, key, INTERIM_CONFIDENCE)
                if reason := self._interim_reason(speedups, at_any_width=key in self._gone_on):
                    self._end(looks, reason, repeats, INTERIM_CONFIDENCE)

    def speedups(self, confidence: float = CONFIDENCE) -> dict[Key, Speedup]:
        """The speed-ups so far, of one repeat or more."""
        times = self._times()
        if self._baseline not in times:
            return {}
        return {
            (name, measure): self._speedup(measure, times[self._baseline], times[name], confidence)
            for name, measure in self._keys
            if self._shared(measure, times[self._baseline], times[name])
        }

    @staticmethod
    def _end(looks: Looks, reason: EndedBy, repeats: int, confidence: float) -> None:
        taken = looks.interim + looks.last
        looks.ending = Ending(
            ended_by=reason, confidence=confidence, looks=taken, repeats=repeats, last_looks=looks.last
        )

    def _is_narrow(self, speedups: list[Speedup]) -> bool:
        return bool(speedups) and all(item.half_width < self._target.precision for item in speedups)

    def _interim_reason(self, speedups: list[Speedup], *, at_any_width: bool) -> EndedBy | None:
        if self._is_narrow(speedups):
            return "target_precision"
        if any(item.high < HOPELESS * self._target.min_speedup for item in speedups):
            return "decided"
        at_any_width = at_any_width or self._is_certain(speedups)
        if not at_any_width and any(item.half_width > DECIDED_WIDTH * item.ratio for item in speedups):
            return None
        return "decided" if self._is_decided(speedups) else None

    def _is_certain(self, speedups: list[Speedup]) -> bool:
        """Whether more repeats would change nothing, without training."""
        least = CERTAIN * self._target.min_speedup
        return not self._target.trains and all(
            item.low > least and item.high <= CERTAIN_WIDTH * item.low for item in speedups
        )

    def _is_decided(self, speedups: list[Speedup]) -> bool:
        """Whether the speed is below `min_speedup`, or above it as an `adopt` asks within one run."""
        level = min((1 - CONFIDENCE) / 2, (1 - CONFIDENCE) / self._target.verdicts)
        is_slow = any(item.side(self._target.min_speedup) == "below" for item in speedups)
        return is_slow or (bool(speedups) and all(item.p_below(self._target.min_speedup) <= level for item in speedups))

    def _can_be_settled(self, speedups: list[Speedup], narrowing: float) -> bool:
        """Whether the same speed-up with a narrower interval would be decided; True where it is not known."""
        distances = [math.log(item.ratio / self._target.min_speedup) for item in speedups]
        halves = [narrowing * math.log(item.high / item.ratio) for item in speedups]
        both = list(zip(distances, halves, strict=True))
        return any(distance < -half for distance, half in both) or all(distance > half for distance, half in both)

    def _factors(self, times: Mapping[str, Times], key: Key, confidence: float) -> list[Speedup]:
        """The speed-up, and the factor of the precision where other settings differ and it may matter.

        Nothing where that factor is not known.
        """
        candidate, measure = key
        speedup = self._speedup(measure, times[self._baseline], times[candidate], confidence)
        bridge = self._bridge(candidate, measure)
        if bridge is None or speedup.side(self._target.min_speedup) == "below":
            return [speedup]
        if bridge not in times or self._shared(measure, times[bridge], times[candidate]) < 2:
            return []
        return [speedup, self._speedup(measure, times[bridge], times[candidate], confidence)]

    def _shared(self, measure: str, before: Times, after: Times) -> int:
        return shared_repeats(measure, before, after)

    def _speedup(self, measure: str, before: Times, after: Times, confidence: float) -> Speedup:
        return speedup_of(measure, before, after, confidence, interleaved=self._target.interleaved, fewest=1)

    def _bridge(self, candidate: str, measure: str) -> str | None:
        if candidate == files.CONTROL or not self._target.trains:
            return None
        return bridge_of(self._records[candidate].settings, self._records[self._baseline].settings, measure)

    def _may_be_adopted(self, times: Mapping[str, Times], key: Key) -> bool:
        """Whether the interval, or before the first repeat the calibration, leaves `min_speedup` possible."""
        candidate, measure = key
        before, after = times[self._baseline], times[candidate]
        if self._shared(measure, before, after):
            return self._speedup(measure, before, after, CONFIDENCE).side(self._target.min_speedup) != "below"
        calibrated = self._calibrated_ratio(candidate, measure)
        return calibrated is None or calibrated >= MIN_CALIBRATED * self._target.min_speedup

    def _calibrated_ratio(self, candidate: str, measure: str) -> float | None:
        before, after = (self._records[name].calibration for name in (self._baseline, candidate))
        if before is None or after is None:
            return None
        size = batch_size_of(measure)
        if size is None and before.step_time_ms and after.step_time_ms:
            sizes = [self._records[name].settings.in_force.batch_size for name in (self._baseline, candidate)]
            return (before.step_time_ms / sizes[0]) / (after.step_time_ms / sizes[1])
        return None if size is None else before.latency_ms[size] / after.latency_ms[size]

    def _times(self) -> dict[str, Times]:
        return {name: tables(record) for name, record in self._records.items()}


def tables(record: ArmRecord) -> Times:
    """The rounds and the calls of an arm as tables."""
    rounds, calls = _table(record.times.rounds, Round), _table(record.times.calls, InferenceCall)
    return Times(rounds, calls, record.settings.in_force.batch_size)


def _table(rows: Sequence[Round | InferenceCall], kind: type[Round | InferenceCall]) -> pd.DataFrame:
    """Made anew after each repeat of up to 100,000 rows, so without `asdict`, which takes microseconds a row."""
    return pd.DataFrame([vars(row) for row in rows], columns=[field.name for field in fields(kind)])
