"""Numbers and verdicts in words, the same in the terminal and in the report."""

from __future__ import annotations

from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.compare.statistics import AccuracyChange
from stages.params import CompareParams
from stages.speedup import Speedup

SYNTHETIC_NOTE = "Measured on synthetic images: this run tells about speed only; its accuracy means nothing."


def ratio_text(speedup: Speedup) -> str:
    """The ratio with its interval, as `1.60× (1.57 to 1.63)`."""
    return f"{speedup.ratio:.2f}× ({speedup.low:.2f} to {speedup.high:.2f})"


def points_text(change: AccuracyChange) -> str:
    """The change of accuracy in percentage points with its interval, as `−0.25 (−1.20 to +0.70)`."""
    return f"{signed_points(change.delta)} ({signed_points(change.low)} to {signed_points(change.high)})"


def signed_points(fraction: float) -> str:
    """A fraction in percentage points with a true minus sign."""
    rounded = round(100 * fraction, 2)
    return f"{abs(rounded):.2f}" if rounded == 0 else f"{'+' if rounded > 0 else '−'}{abs(rounded):.2f}"


def margin_text(params: CompareParams) -> str:
    """The declared margin of accuracy, as `1 percentage point`."""
    points = 100 * params.accuracy_margin
    return f"{points:g} percentage point{'' if points == 1 else 's'}"


def measure_label(measure: str) -> str:
    """`train` and `inference_b<n>` as people say it."""
    return "training" if measure == TRAIN else f"inference, batch {measure.removeprefix('inference_b')}"


def verdict_sentence(candidate: Candidate, comparison: Comparison) -> str:
    """One sentence on training with a candidate that needs no knowledge of statistics."""
    if candidate.accuracy is None:
        return f"{candidate.variant} could not be compared. " + " ".join(reason.text for reason in candidate.reasons)
    name, params, speedup = candidate.variant, comparison.params, candidate.speedups[TRAIN]
    margin = margin_text(params)
    if candidate.verdict == "adopt":
        return (
            f"Use {name}: training runs at {ratio_text(speedup)} the speed, and its accuracy is the same "
            f"within {margin}."
        )
    if candidate.verdict == "reject":
        return f"Do not use {name}: {_refuted(candidate.accuracy, speedup, params, margin)}."
    return f"{name} is not decided: {_open_question(candidate, comparison, margin)}."


def _refuted(accuracy: AccuracyChange, speedup: Speedup, params: CompareParams, margin: str) -> str:
    found = []
    if speedup.high < 1:
        found.append(f"training takes {1 / speedup.ratio:.1f} times as long, at {ratio_text(speedup)} the speed")
    elif speedup.high < params.min_speedup:
        found.append(f"training runs at {ratio_text(speedup)} the speed, and {params.min_speedup:g}× was asked for")
    if accuracy.high < -params.accuracy_margin:
        found.append(f"it loses {abs(100 * accuracy.delta):.2f} percentage points of accuracy, more than {margin}")
    return " and ".join(found)


def _open_question(candidate: Candidate, comparison: Comparison, margin: str) -> str:
    accuracy, speedup, params = candidate.accuracy, candidate.speedups[TRAIN], comparison.params
    worth_having = max(params.min_speedup, 1 + comparison.noise[TRAIN].noise_floor)
    found = []
    if speedup.low < worth_having:
        found.append(
            f"its speed of {ratio_text(speedup)} is not clearly above {worth_having:.2f}×, which measuring longer may "
            "settle (profile.processes)"
        )
    if accuracy is not None and accuracy.low < -params.accuracy_margin:
        found.append(
            f"its accuracy changes by {points_text(accuracy)} percentage points, which does not exclude a loss of more "
            f"than {margin}, and more test images or train.seeds may"
        )
    return "; ".join(found)
