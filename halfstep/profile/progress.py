"""Says what the measurement will cost, and how far it is, also without a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from halfstep.profile.records import Measurement
from halfstep.profile.schedule import Schedule
from halfstep.profile.stopping_rule import StoppingRule
from halfstep.stats.speedup import CONFIDENCE
from halfstep.system import files
from halfstep.system.telling import progress, say
from halfstep.words.text import joined, measure_label

_USEFUL = 3.0  # high / low of an interval
_ENDED = {
    "target_precision": "narrow enough",
    "decided": "decided",
    "max_seconds": "time is up",
    "time": "time is up",
    "rounds": "all rounds run",
}


class Progress:
    """Prints the plan, and then shows how far the measurement is."""

    def __init__(
        self, measurement: Measurement, schedule: Schedule, arms: Sequence[str], baseline: str, stage: str
    ) -> None:
        self._measurement, self._schedule, self._stage = measurement, schedule, stage
        self._arms, self._baseline, self._so_far = arms, baseline, ""
        self._ends_s = time.monotonic()

    def begin(self) -> None:
        """Prints the plan."""
        self._estimate()
        how = "in turns" if self._schedule.plan.interleaved else "one at a time"
        copies = " (twice, as a control)" if files.CONTROL in self._arms else ""
        others = [name for name in self._arms if files.is_variant(name) and name != self._baseline]
        show = say if self._stage == "profile" and copies else progress  # what is short needs no line of its own
        show(
            self._stage,
            f"timing {joined([f'{self._baseline}{copies}', *others])} {how}; usually "
            f"{self._schedule.plan.fewest_repeats} repeats, about {duration(self._schedule.expected_s)}",
        )

    def tick(self) -> None:
        """Shows how far the measurement is."""
        progress(self._stage, f"repeat {self._measurement.repeats + 1}{self._so_far}{self._left}")

    def after_repeat(self, rule: StoppingRule, *, goes_on: bool, beyond_plan: bool) -> None:
        """Says what the ratios are so far, as the intervals that are judged, and what has ended.

        Args:
            rule: that says both.
            goes_on: whether another repeat follows.
            beyond_plan: whether that is because a verdict is open although the planned time is up.
        """
        texts = dict[str, list[str]]()
        for (candidate, measure), speedup in rule.speedups().items():
            ended = rule.endings.get((candidate, measure))
            state = f" ({_ENDED[ended.ended_by]})" if ended and goes_on else ""
            low, high = speedup.interval(CONFIDENCE)
            texts.setdefault(measure_label(measure), []).append(f"{candidate} {range_text(low, high)}{state}")
        count = self._measurement.repeats
        first = next(iter(texts), "")
        self._so_far = f"; {first}: {', '.join(texts[first])}" if texts else ""
        if goes_on:
            self._estimate()
        else:
            self._ends_s = time.monotonic()
        name = f"{count} {'repeats' if count > 1 else 'repeat, a first answer'} measured"
        progress(self._stage, f"{name}{self._so_far}{self._left}")
        if goes_on and beyond_plan:
            open_count = len(rule.open())
            what = "1 verdict is" if open_count == 1 else f"{open_count} verdicts are"
            say(
                self._stage,
                f"{what} still open: measuring goes on for {duration(self._schedule.left_s)} at most "
                "(profile.max_seconds sets another time)",
            )

    def _estimate(self) -> None:
        """Estimates when the measurement ends, which is known by whole repeats only."""
        self._ends_s = time.monotonic() + self._schedule.expected_left_s

    @property
    def _left(self) -> str:
        left_s = self._ends_s - time.monotonic()
        return f"; about {duration(left_s)} left" if left_s > 0 else ""


def range_text(low: float, high: float) -> str:
    """An interval of a ratio, such as `0.86 to 0.99×`, if it says anything."""
    return f"{low:.2f} to {high:.2f}×" if high < _USEFUL * low else "not enough data yet"


def duration(seconds: float) -> str:
    """A duration in words, such as `45 s` or `3 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
