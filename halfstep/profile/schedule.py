"""Divides the time among the repeats, and says when it is up."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import fmean
from typing import Literal

from halfstep.params.schema import ProfileParams
from halfstep.profile.plan import (
    ACCOUNT_SHARE_OF_TIMING,
    INFERENCE_SHARE,
    MAX_REPEATS,
    REPEAT_SD,
    ROUND_SD,
    best_rounds,
)
from halfstep.profile.records import Measurement
from halfstep.stats.speedup import Speedup

MOST_MORE_S = 120.0  # by which the stage is lengthened
CONTROL_SHARE, FEWEST_WITH_CONTROL = 0.08, 3  # of the stage so far, so that it is a tenth in the end; repeats

OutOf = Literal["max_seconds", "time", "rounds"]


class Schedule:
    """The time of a measurement.

    The number of rounds of a repeat depends on the spread of earlier rounds and repeats, never on a ratio.

    Args:
        measurement: its plan, its repeats and the seconds of timing, to which those of the rounds are added.
        profile: `max_seconds`, `processes` and `rounds` override the plan.
        spent_s: seconds of the stage that went by before the measurement began.

    Attributes:
        plan: the timing protocol.
        round_sd, repeat_sd: standard deviation of a ratio between rounds, and between repeats.
    """

    def __init__(self, measurement: Measurement, profile: ProfileParams, spent_s: float = 0.0) -> None:
        assert measurement.plan is not None, "it is planned"
        self.plan, self._measurement, self._profile = measurement.plan, measurement, profile
        self._began_s = time.monotonic() - spent_s
        self.round_sd, self.repeat_sd = ROUND_SD, REPEAT_SD
        self._more_s = 0.0

    @property
    def _is_given(self) -> bool:
        """Whether the parameters say how many repeats and rounds there are, whatever time they take."""
        return bool(self._profile.processes and self._profile.rounds and not self._profile.max_seconds)

    @property
    def spent_s(self) -> float:
        """Seconds of the stage so far; those of earlier sessions do not count."""
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        """Seconds until measuring should end: of timing with `profile.max_seconds`, else of the stage."""
        if self._profile.max_seconds:
            return self._profile.max_seconds - self._measurement.timing_s
        return self.plan.stage_s + self._more_s - self.spent_s - self.plan.end_s

    @property
    def expected_s(self) -> float:
        """Seconds that the measurement takes if it ends when the time is up, or after the fewest repeats."""
        started_s = self.plan.start_s if self.plan.interleaved and not self._measurement.repeats else 0.0
        return max(self.left_s + self._untimed_left_s, self._fewest_left_s - started_s, self.plan.start_s)

    @property
    def expected_left_s(self) -> float:
        """Seconds until measuring should end, not before the fewest repeats; 0 or less where the time is up."""
        return max(self.left_s + self._untimed_left_s, self._fewest_left_s)

    @property
    def _untimed_left_s(self) -> float:
        """Seconds of starts and short traces still to come, where only the timing is limited; 0 elsewhere."""
        if not self._profile.max_seconds:
            return 0.0
        return max(0, self.plan.fewest_repeats - self._measurement.repeats) * (self.plan.start_s + self.plan.beside_s)

    @property
    def _fewest_left_s(self) -> float:
        """Seconds of the repeats that come whatever time they take; 0 where parameters set their lengths."""
        if self._profile.max_seconds or self._profile.rounds:
            return 0.0
        return max(0, self.plan.fewest_repeats - self._measurement.repeats) * self.plan.shortest_repeat_s

    def out_of(self) -> OutOf | None:
        """What is used up; None if there is time for another repeat.

        Before the fewest repeats, only `profile.processes` ends the measurement.
        """
        if self._measurement.repeats >= (self._profile.processes or MAX_REPEATS):
            return "rounds"
        if self._is_given or self._measurement.repeats < self.plan.fewest_repeats:
            return None
        if self._profile.max_seconds:
            return "max_seconds" if self.left_s <= 0 else None
        return "time" if self.left_s < self.plan.shortest_repeat_s else None

    def narrowing(self, out_of: OutOf | None) -> float | None:
        """What more time would multiply the width of intervals with; None if measuring cannot go on.

        Only the plan's own time is lengthened, once, and not that of inference alone.
        """
        if out_of != "time" or self._more_s or not self.plan.trains:
            return None
        more_s = min(self.plan.stage_s, MOST_MORE_S)
        return math.sqrt(self.plan.stage_s / (self.plan.stage_s + more_s))

    def go_on(self) -> None:
        """Lengthens the stage to twice its plan, by `MOST_MORE_S` at most; at least one repeat fits."""
        more_s = min(self.plan.stage_s, MOST_MORE_S)
        self._more_s = max(more_s, self.plan.shortest_repeat_s - self.left_s)

    @property
    def most_account_s(self) -> float:
        """Seconds of short traces by now at most; any number where the parameters say how much is measured.

        What goes on is about the verdict: then none are added.
        """
        if self._more_s:
            return 0.0
        if self._profile.processes or self._profile.rounds or self._profile.max_seconds:
            return math.inf
        return ACCOUNT_SHARE_OF_TIMING * self._measurement.timing_s

    def takes_control(self, control_s: float, stage_s: float) -> bool:
        """Whether the control takes part in the next repeat.

        It does as long as it costs little; of arms that are measured one at a time, in two of four repeats.

        Args:
            control_s: seconds that it has cost.
            stage_s: seconds of the stage so far, of all sessions.
        """
        if not self.plan.interleaved:
            return self._measurement.repeats // 2 % 2 == 0
        return self._measurement.repeats < FEWEST_WITH_CONTROL or control_s <= CONTROL_SHARE * stage_s

    def learn_start(self, start_s: float) -> None:
        """Takes over what a start of all arms costs where it is less than planned: what was compiled is loaded."""
        self._measurement.plan = self.plan = replace(self.plan, start_s=min(start_s, self.plan.start_s))

    def learn(self, speedups: Iterable[Speedup]) -> None:
        """Takes over how much the rounds and the repeats of these speed-ups vary, on average."""
        deviations = [components for speedup in speedups if (components := speedup.components) is not None]
        if deviations:
            self.round_sd, self.repeat_sd = (fmean(values) for values in zip(*deviations, strict=True))

    def seconds(self, *, training: bool, inference: bool) -> tuple[float, float]:
        """Seconds of timing of the next repeat: of its rounds of training, and of those of inference."""
        if not training:
            return 0.0, self._whole_s() * (INFERENCE_SHARE if self.plan.trains else 1.0)
        share = INFERENCE_SHARE if inference and self.plan.calls else 0.0
        return self._whole_s() * (1 - share), self._whole_s() * share

    def _whole_s(self) -> float:
        """Seconds of timing of the next repeat: the best for its start, as far as time allows."""
        remaining = max(1, (self._profile.processes or self.plan.fewest_repeats) - self._measurement.repeats)
        if self._profile.max_seconds:
            return max(0.0, self.left_s) / remaining
        affordable_s = self.left_s / remaining - self.plan.start_s - self.plan.beside_s
        round_s, share = self.plan.round_s, INFERENCE_SHARE if self.plan.calls else 0.0
        if not self.plan.trains:
            round_s, share = self.plan.inference_round_s, 0.0
        best_s = best_rounds(self.plan.start_s, round_s, self.round_sd, self.repeat_sd) * round_s / (1 - share)
        return max(min(best_s, affordable_s), self.plan.least_timing_s)

    def rounds_until(self, seconds: float, fixed: int | None = None) -> Iterator[int]:
        """Yields round numbers until so many seconds are used, in pairs of an order and its reverse.

        `profile.rounds` is their largest number, and with `profile.processes` their number; `fixed` is their number,
        whatever the time.
        """
        started_s, before_s, number = time.monotonic(), self._measurement.timing_s, 0
        fixed = fixed or (self._profile.rounds if self._is_given else None)
        most = fixed or self._profile.rounds
        try:
            while most is None or number < most:
                if number and number % 2 == 0 and not fixed and time.monotonic() - started_s > seconds:
                    return
                yield number
                number += 1
        finally:
            self._measurement.timing_s = before_s + time.monotonic() - started_s

    def fixed_rounds(self) -> tuple[int, int]:
        """Rounds of training and of inference in the next repeat, where each arm runs them by itself."""
        training_s, inference_s = self.seconds(training=True, inference=True)
        return self._even(training_s, self.plan.round_s), self._even(inference_s, self.plan.inference_round_s)

    def _even(self, seconds: float, round_s: float) -> int:
        """Number of rounds, in pairs, that fit into so much time; at least one pair."""
        return self._profile.rounds or (max(2, 2 * int(seconds / round_s / 2)) if round_s else 0)
