"""Prints what the measurement will cost, and how far it is, also without a terminal."""

from __future__ import annotations

import time

from stages.profile.plan import Plan
from stages.profile.stopping_rule import Decision, StoppingRule
from stages.stats.speedup import ALONE, CONFIDENCE, PAIRS, Speedup

INTERVAL_S = 15.0
_AT_ONCE = {None: "", PAIRS: "in pairs, ", ALONE: "one after the other, "}


class Progress:
    """Prints the plan at once, and then a line after each process and every 15 s."""

    def __init__(self, plan: Plan, rule: StoppingRule, arms: int) -> None:
        self._plan, self._rule = plan, rule
        self._started_s = self._printed_s = time.monotonic()
        print(
            f"profile: {arms} arms {_AT_ONCE[plan.at_once]}in turns of {plan.steps_per_round} training steps; at most "
            f"{plan.processes} processes of each, about {duration(plan.stage_s)} in all, {duration(plan.timing_s)} of "
            "it timing",
            flush=True,
        )

    def tick(self) -> None:
        """Prints a line if the last one is old."""
        if time.monotonic() - self._printed_s > INTERVAL_S:
            self._print(f"process {self._rule.processes + 1} of at most {self._plan.processes}")

    def after_process(self, decision: Decision) -> None:
        """Prints the ratios so far."""
        ratios = ", ".join(
            f"{name} {by_measure['train'].ratio:.2f} ± {_half_width(by_measure['train']):.2f}"
            for name, by_measure in decision.speedups.items()
        )
        found = f": speed-up of training so far {ratios}" if ratios else ""
        self._print(f"{self._rule.processes} of at most {self._plan.processes} processes measured{found}")

    def _print(self, what: str) -> None:
        self._printed_s = time.monotonic()
        print(f"profile: {what}; at most {duration(self._left_s())} left", flush=True)

    def _left_s(self) -> float:
        """Seconds until the end of the plan; the plan counts from the start of the first process."""
        return max(0.0, self._plan.stage_s - self._plan.spent_s - (time.monotonic() - self._started_s))


def _half_width(speedup: Speedup) -> float:
    low, high = speedup.interval(CONFIDENCE)
    return (high - low) / 2


def duration(seconds: float) -> str:
    """A duration in words, such as `45 s` or `3 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
