"""Numbers as text, the same in the terminal and in the reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stages.compare.comparison import TRAIN, Candidate, Comparison, inference_measure, is_traced
from stages.compare.explain.evidence import measure_text
from stages.results.comparison import RatioResult, Verdict
from stages.stats.speedup import Speedup

SYNTHETIC_NOTE = "Measured on synthetic images: this run measures speed only, and its accuracy has no meaning."
SPEED_ONLY_NOTE = "Speed only: nothing was trained (train.epochs is 0), so the verdicts say nothing about quality."
CONTROL_NAME = "the control"
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


def step_clause(speedup: Speedup) -> str:
    """What a speed-up of training is about, such as `a training step takes 4 % longer (speed-up 0.96×, 0.94 to 0.98)`.

    A whole training also validates, ends epochs and starts; its time is a row of its own.
    """
    return f"a training step {time_text(speedup.ratio)} (speed-up {speedup.ratio:.2f}×, {interval_text(speedup)})"


def signed(value: float, digits: int) -> str:
    """A number with its sign, a true minus sign for negative ones, and none for zero."""
    rounded = round(value, digits)
    sign = "" if rounded == 0 else "+" if rounded > 0 else "−"
    return f"{sign}{abs(rounded):,.{digits}f}"


def joined(items: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`; empty without items."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def measure_label(measure: str) -> str:
    """What a verdict or a reason is about: `train` and `inference_b<n>` as text."""
    return "training" if measure == TRAIN else f"inference, batch {measure.removeprefix('inference_b')}"


def timed_label(measure: str) -> str:
    """What was timed for a measure; of a training, its steps."""
    return "training step" if measure == TRAIN else measure_label(measure)


def void_texts(comparison: Comparison) -> list[str]:
    """Which measures are void, a sentence for each cause."""
    baseline, sizes = comparison.study.baseline.variant, comparison.study.inference_batch_sizes
    order = [TRAIN, *map(inference_measure, sizes)]
    causes = {
        "The GPU was throttled in too many rounds of": comparison.throttled,
        f"The two copies of {baseline} differ by more than noise in": comparison.differing,
    }
    found = {
        cause: joined([measure_text(measure) for measure in order if measure in measures])
        for cause, measures in causes.items()
    }
    return [f"{cause} {void}, which therefore decides nothing." for cause, void in found.items() if void]


def notes(comparison: Comparison) -> tuple[str, ...]:
    """What limits a comparison: void measures, latencies that still fell, and what could not be measured."""
    return (*void_texts(comparison), *_unsteady_texts(comparison), *_missing_texts(comparison))


def _unsteady_texts(comparison: Comparison) -> Iterator[str]:
    if unsteady := joined([measure_text(measure) for measure in unsteady_measures(comparison)]):
        yield f"The latency of {unsteady} is not steady: it still fell at the end of a turn."


def unsteady_measures(comparison: Comparison) -> tuple[str, ...]:
    """Measures of inference whose latency still fell at the end of a turn."""
    profile = comparison.study.baseline.profile
    return () if profile is None else profile.summary.protocol.unsteady


def _missing_texts(comparison: Comparison) -> Iterator[str]:
    """A line on traces that are missing; no reason rests on those."""
    study = comparison.study
    profiles = {item.variant: item.profile for item in study.variants} | {CONTROL_NAME: study.control}
    missing = [name for name, profile in profiles.items() if profile is not None and not is_traced(profile)]
    if missing:
        yield f"There is no trace of {joined(missing)}, so no reasons come from one."


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
