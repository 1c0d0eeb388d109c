"""Prints what the measurement will cost, and how far it is, also without a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from halfstep.profile.records import Measurement
from halfstep.profile.schedule import Schedule
from halfstep.profile.stopping_rule import StoppingRule
from halfstep.stats.speedup import CONFIDENCE
from halfstep.system import files
from halfstep.words.text import joined, measure_label

INTERVAL_S = 15.0
_ENDED = {
    "target_precision": "narrow enough",
    "decided": "decided",
    "max_seconds": "time is up",
    "time": "time is up",
    "rounds": "all rounds run",
}


class Progress:
    """Prints the plan at once, then the ratios after each repeat, and a line every 15 s."""

    def __init__(
        self, measurement: Measurement, schedule: Schedule, arms: Sequence[str], baseline: str, stage: str
    ) -> None:
        self._measurement, self._schedule, self._stage = measurement, schedule, stage
        self._arms, self._baseline = arms, baseline
        self._printed_s = self._ends_s = time.monotonic()

    def begin(self) -> None:
        """Prints the plan."""
        self._estimate()
        how = "in turns" if self._schedule.plan.interleaved else "one at a time"
        copies = " (twice, as a control)" if files.CONTROL in self._arms else ""
        others = [name for name in self._arms if files.is_variant(name) and name != self._baseline]
        print(
            f"{self._stage}: timing {joined([f'{self._baseline}{copies}', *others])} {how}; usually "
            f"{self._schedule.plan.fewest_repeats} repeats, about {duration(self._schedule.expected_s)}",
            flush=True,
        )

    def tick(self) -> None:
        """Prints a line if the last one is old."""
        if time.monotonic() - self._printed_s > INTERVAL_S:
            self._print(f"repeat {self._measurement.repeats + 1}")

    def after_repeat(self, rule: StoppingRule, *, goes_on: bool) -> None:
        """Prints the ratios so far, each with half the width of its 95 % interval, and what has ended.

        Args:
            rule: that says both.
            goes_on: whether another repeat follows.
        """
        for (candidate, measure), speedup in rule.speedups().items():
            ended = rule.endings.get((candidate, measure))
            state = f", {_ENDED[ended.ended_by]}" if ended else ""
            low, high = speedup.interval(CONFIDENCE)
            width = f" ± {(high - low) / 2:.2f}" if high < 10 * speedup.ratio else ", not enough data yet"
            print(f"{self._stage}:   {candidate}, {measure_label(measure)}: {speedup.ratio:.2f}×{width}{state}")
        count = self._measurement.repeats
        if goes_on:
            self._estimate()
        else:
            self._ends_s = time.monotonic()
        self._print(f"{count} {'repeats' if count > 1 else 'repeat, a first answer'} measured")

    def goes_on(self, measures: int) -> None:
        """Says that the planned time is up and that some measures go on."""
        self._estimate()
        what = "1 verdict is" if measures == 1 else f"{measures} verdicts are"
        print(
            f"{self._stage}: {what} still open: measuring goes on for {duration(self._schedule.left_s)} at most "
            "(profile.max_seconds sets another time)",
            flush=True,
        )

    def _estimate(self) -> None:
        """Estimates when the measurement ends, which is known by whole repeats only."""
        self._ends_s = time.monotonic() + self._schedule.expected_left_s

    def _print(self, what: str) -> None:
        self._printed_s = time.monotonic()
        left_s = self._ends_s - self._printed_s
        left = f"; about {duration(left_s)} left" if left_s > 0 else ""
        print(f"{self._stage}: {what}{left}", flush=True)


def duration(seconds: float) -> str:
    """A duration in words, such as `45 s` or `3 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
