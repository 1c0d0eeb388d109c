"""Prints what the measurement will cost, and how far it is, also without a terminal."""

from __future__ import annotations

import time

from stages.profile.plan import Plan
from stages.profile.schedule import Schedule
from stages.profile.stopping_rule import StoppingRule
from stages.stats.speedup import CONFIDENCE, Speedup
from stages.telling import MEASURES, tell
from stages.text import joined

INTERVAL_S = 15.0


class Progress:
    """Prints the plan at once, then the ratios after each repeat, and a line every 15 s."""

    def __init__(self, plan: Plan, schedule: Schedule, arms: int) -> None:
        self._plan, self._schedule, self._arms = plan, schedule, arms
        self._printed_s = time.monotonic()

    def begin(self) -> None:
        """Prints the plan."""
        tell(MEASURES)
        plan = self._plan
        how = "in turns" if plan.interleaved else "one at a time, in turns"
        steps = joined([f"{count}" for count in sorted(set(plan.steps_by_batch.values()))])
        print(
            f"profile: {self._arms} arms {how} of {steps} training steps; usually "
            f"{plan.fewest_repeats} repeats, each of which takes {duration(plan.start_s)} to start",
            flush=True,
        )

    def tick(self) -> None:
        """Prints a line if the last one is old."""
        if time.monotonic() - self._printed_s > INTERVAL_S:
            self._print(f"repeat {self._schedule.repeats + 1}")

    def after_repeat(self, rule: StoppingRule) -> None:
        """Prints the ratios so far, each with half the width of its 95 % interval, and which measures have ended."""
        found = rule.speedups().items()
        for (candidate, measure), speedup in found:
            ended = rule.endings.get((candidate, measure))
            state = f"ended: {ended.ended_by}" if ended else "goes on"
            print(f"profile:   {candidate} {measure} {speedup.ratio:.2f} ± {_half_width(speedup)}, {state}")
        count = self._schedule.repeats
        self._print(f"{count} {'repeats' if count > 1 else 'repeat, a first answer'} measured")

    def goes_on(self, measures: int) -> None:
        """Says that the planned time is up and that some measures go on."""
        what = "1 measure is" if measures == 1 else f"{measures} measures are"
        print(
            f"profile: {what} undecided: goes on for {duration(self._schedule.left_s)} at most; "
            "`profile.max_seconds` sets the seconds of timing instead",
            flush=True,
        )

    def _print(self, what: str) -> None:
        self._printed_s = time.monotonic()
        left_s = self._schedule.left_s
        left = f"; about {duration(left_s)} left" if left_s > 0 else ""
        print(f"profile: {what}{left}", flush=True)


def _half_width(speedup: Speedup) -> str:
    """`?` where the interval says nothing."""
    low, high = speedup.interval(CONFIDENCE)
    return f"{(high - low) / 2:.2f}" if high < 10 * speedup.ratio else "?"


def duration(seconds: float) -> str:
    """A duration in words, such as `45 s` or `3 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
