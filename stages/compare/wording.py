"""Numbers and verdicts in words, the same in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Sequence

from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.compare.statistics import AccuracyChange
from stages.compare.verdict import worth_having
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


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def measure_label(measure: str) -> str:
    """`train` and `inference_b<n>` as people say it."""
    return "training" if measure == TRAIN else f"inference, batch {measure.removeprefix('inference_b')}"


def verdict_sentence(candidate: Candidate, comparison: Comparison) -> str:
    """One sentence on a candidate that needs no knowledge of statistics: on training, then on inference."""
    if candidate.accuracy is None:
        return f"{candidate.variant} could not be compared. " + " ".join(reason.text for reason in candidate.reasons)
    name, params, speedup = candidate.variant, comparison.params, candidate.speedups[TRAIN]
    margin, inference = margin_text(params), _inference_clause(candidate)
    differing = len(set(candidate.verdicts.values())) > 1
    name, it = (f"{name} for training", "it") if differing else (name, "training")
    if candidate.verdict == "adopt":
        return (
            f"Use {name}: {it} runs at {ratio_text(speedup)} the speed, and its accuracy is the same "
            f"within {margin}{inference}."
        )
    if candidate.verdict == "reject":
        return f"Do not use {name}: {_refuted(candidate.accuracy, speedup, params, it)}{inference}."
    return f"{name} is not decided: {_open_question(candidate, comparison, margin)}{inference}."


def accuracy_sentence(candidate: Candidate, comparison: Comparison) -> str:
    """What is known of a candidate's accuracy, in one sentence; empty where it could not be compared."""
    change = candidate.accuracy
    if change is None:
        return ""
    outcome = change.outcome(comparison.params.accuracy_margin)
    seen = f"{candidate.variant} changes accuracy by {points_text(change)} points: "
    meaning = {
        "shown": f"no loss of more than {margin_text(comparison.params)} is shown",
        "refuted": f"a loss of more than {margin_text(comparison.params)} is shown, so the same accuracy is refuted",
        "not established": "whether it is the same is not established",
    }
    return f"{seen}{meaning[outcome]}{_mcnemar(change)}."


def _mcnemar(change: AccuracyChange) -> str:
    if change.mcnemar_p is None:
        return ""
    return (
        f"; {change.gained} images only it gets right and {change.lost} only the baseline "
        f"(McNemar's exact test: p = {change.mcnemar_p:.2g})"
    )


def seeds_note(change: AccuracyChange) -> str:
    """How far an answer on accuracy reaches, by the number of seeds."""
    if change.seeds == 1:
        return "One seed: this is about these two trainings, not about the recipe; other seeds may tell otherwise."
    if change.seeds == 2:
        return "Two seeds: this is about these trainings on other test images; from three seeds on it is about others."
    return f"{change.seeds} seeds: this holds for other test images and for other seeds, the wider interval counting."


def same_weights_sentence(candidate: Candidate, comparison: Comparison) -> str | None:
    """Whether it is the arithmetic or the training that changes the accuracy; None where it was not measured."""
    profile, change = candidate.arm.profile, candidate.accuracy
    if profile is None or profile.same_weights is None or change is None:
        return None
    same, baseline = profile.same_weights, comparison.study.baseline.variant
    before, after = (float(arm[0].mean()) for arm in (change.baseline_correct, change.candidate_correct))
    return (
        f"The weights that {candidate.variant} trained with seed {candidate.arm.trainings[0].seed}, computed with in "
        f"the precision of {baseline}, give the same class for {100 * same['agreement']:.2f} % of "
        f"{same['images']:,.0f} test images, and probabilities that differ by "
        f"{same['max_probability_difference']:.2g} at most: of the {signed_points(after - before)} points of accuracy, "
        f"{signed_points(after - same['accuracy'])} come from the arithmetic and "
        f"{signed_points(same['accuracy'] - before)} from having been trained differently."
    )


def _inference_clause(candidate: Candidate) -> str:
    """What holds for inference, from a semicolon on; empty where only training was measured."""
    sizes_by_verdict: dict[str, list[str]] = {}
    for measure, verdict in candidate.verdicts.items():
        if measure != TRAIN:
            sizes_by_verdict.setdefault(verdict, []).append(measure.removeprefix("inference_b"))
    if not sizes_by_verdict:
        return ""
    if set(sizes_by_verdict) == {candidate.verdict}:
        same = {"adopt": "use it for inference too", "reject": "do not use it for inference either"}
        return f"; {same.get(candidate.verdict, 'inference is not decided either')}"
    wording = {"adopt": "use it", "reject": "do not use it", "inconclusive": "it is not decided"}
    parts = [
        f"{text} at batch size {listed(sizes_by_verdict[key])}"
        for key, text in wording.items()
        if key in sizes_by_verdict
    ]
    return f"; for inference, {listed(parts)}"


def _refuted(accuracy: AccuracyChange, speedup: Speedup, params: CompareParams, it: str) -> str:
    found = []
    if speedup.high < 1:
        found.append(f"{it} takes {1 / speedup.ratio:.1f} times as long, at {ratio_text(speedup)} the speed")
    elif speedup.high < params.min_speedup:
        found.append(f"{it} runs at {ratio_text(speedup)} the speed, and {params.min_speedup:g}× was asked for")
    if accuracy.outcome(params.accuracy_margin) == "refuted":
        lost = f"{abs(100 * accuracy.delta):.2f} percentage points of accuracy"
        found.append(f"it loses {lost}, more than {margin_text(params)}")
    return " and ".join(found)


def _open_question(candidate: Candidate, comparison: Comparison, margin: str) -> str:
    accuracy, speedup, params = candidate.accuracy, candidate.speedups[TRAIN], comparison.params
    threshold = worth_having(comparison.noise[TRAIN].noise_floor, params)
    found = []
    if speedup.low < threshold:
        found.append(f"its speed of {ratio_text(speedup)} is not clearly above {threshold:.2f}×")
    if accuracy is not None and accuracy.outcome(params.accuracy_margin) == "not established":
        found.append(
            f"its accuracy changes by {points_text(accuracy)} percentage points, which does not exclude a loss of more "
            f"than {margin}"
        )
    return " and ".join(found)
