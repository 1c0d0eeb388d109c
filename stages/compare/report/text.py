"""Numbers as text, the same in the terminal and in the reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.results.comparison import RatioResult, Verdict
from stages.stats.speedup import Speedup

SYNTHETIC_NOTE = "Measured on synthetic images: this run measures speed only, and its accuracy has no meaning."
SPEED_ONLY_NOTE = "Speed only: nothing was trained (train.epochs is 0), so the verdicts say nothing about quality."
SAME_TIME = 0.005  # a change of time that rounds to 0 %


def interval_text(speedup: Speedup | RatioResult) -> str:
    """The interval of a ratio, such as `1.57 to 1.63`."""
    return f"{speedup.low:.2f} to {speedup.high:.2f}"


def ratio_text(speedup: Speedup | RatioResult) -> str:
    """The ratio with its interval, such as `1.60× (1.57 to 1.63)`."""
    return f"{speedup.ratio:.2f}× ({interval_text(speedup)})"


def time_text(ratio: float) -> str:
    """What a speed-up means in words, which are always about the time, never about the speed.

    Above 1 it `takes 22 % less time` (1.28×: 1 − 1 / 1.28), below 1 it `takes 5 % longer` (0.95×: 1 / 0.95 − 1), and
    from twice the time on it `takes 4.0 times as long` (0.25×). A change that rounds to 0 % `takes the same time`.

    Args:
        ratio: time of the baseline / time of the candidate.
    """
    change = 1 / ratio - 1
    if abs(change) < SAME_TIME:
        return "takes the same time"
    if change < 0:
        return f"takes {-100 * change:.0f} % less time"
    return f"takes {100 * change:.0f} % longer" if change < 1 else f"takes {1 + change:.1f} times as long"


def speedup_clause(speedup: Speedup) -> str:
    """The words and the ratio, such as `takes 38 % less time (speed-up 1.60×, 1.57 to 1.63)`."""
    return f"{time_text(speedup.ratio)} (speed-up {speedup.ratio:.2f}×, {interval_text(speedup)})"


def time_digits(time_ms: float) -> int:
    """Decimal places that give four digits, so that the quotient of two times has the two that a ratio shows."""
    return min(5, max(0, 3 - math.floor(math.log10(time_ms))))


def time_ms_text(time_ms: float) -> str:
    """A time with four digits, such as `4.953 ms`."""
    return f"{time_ms:,.{time_digits(time_ms)}f} ms"


def signed(value: float, digits: int) -> str:
    """A number with its sign, a true minus sign for negative ones, and none for zero."""
    rounded = round(value, digits)
    sign = "" if rounded == 0 else "+" if rounded > 0 else "−"
    return f"{sign}{abs(rounded):,.{digits}f}"


def joined(items: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def measure_label(measure: str) -> str:
    """`train` and `inference_b<n>` as text."""
    return "training" if measure == TRAIN else f"inference, batch {measure.removeprefix('inference_b')}"


def void_texts(comparison: Comparison) -> list[str]:
    """Which measures are void, a sentence for each cause."""
    baseline = comparison.study.baseline.variant
    causes = {
        "the GPU was throttled in too many rounds of": comparison.throttled,
        f"the two copies of {baseline} differ by more than noise in": comparison.differing,
    }
    found = {
        cause: joined([measure_label(measure) for measure in comparison.control if measure in measures])
        for cause, measures in causes.items()
    }
    return [f"{cause} {void}, which therefore decides nothing." for cause, void in found.items() if void]


def settings_text(candidate: Candidate, comparison: Comparison) -> str:
    """The settings in force beside the policy that differ from the baseline's, such as `` `onednn: false` ``."""
    before, after = comparison.study.baseline.profile, candidate.result.profile
    if before is None or after is None:
        return ""
    device = before.summary.configuration.device
    old, new = (profile.summary.in_force.other_settings(device) for profile in (before, after))
    return joined([f"`{name}: {str(value).lower()}`" for name, value in new.items() if value != old[name]])


def verdict_text(verdict: Verdict, *, speed_only: bool | None) -> str:
    """A verdict as it is shown, such as `adopt`, or `faster, speed only` where nothing was trained."""
    return f"{verdict}, speed only" if speed_only else verdict


def p_text(p: float) -> str:
    """A p-value with two digits; very small ones are cut off."""
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}"
