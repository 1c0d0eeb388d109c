"""Numbers and verdicts as text, the same in the terminal and in the reports."""

from __future__ import annotations

from collections.abc import Sequence

from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.params import CompareParams
from stages.stats.quality import QualityChange
from stages.stats.sample_size import required_speedup
from stages.stats.speedup import Speedup

SYNTHETIC_NOTE = "Measured on synthetic images: this run measures speed only, and its accuracy has no meaning."


def ratio_text(speedup: Speedup) -> str:
    """The ratio with its interval, such as `1.60× (1.57 to 1.63)`."""
    return f"{speedup.ratio:.2f}× ({speedup.low:.2f} to {speedup.high:.2f})"


def points_text(change: QualityChange) -> str:
    """The change of accuracy in percentage points with its interval, such as `−0.25 (−1.20 to +0.70)`."""
    return f"{signed_points(change.delta)} ({signed_points(change.low)} to {signed_points(change.high)})"


def signed_points(fraction: float) -> str:
    """A fraction in percentage points with a true minus sign."""
    rounded = round(100 * fraction, 2)
    return f"{abs(rounded):.2f}" if rounded == 0 else f"{'+' if rounded > 0 else '−'}{abs(rounded):.2f}"


def margin_text(params: CompareParams) -> str:
    """The declared margin of quality, such as `1 percentage point`."""
    points = 100 * params.quality_margin
    return f"{points:g} percentage point{'' if points == 1 else 's'}"


def joined(items: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def measure_label(measure: str) -> str:
    """`train` and `inference_b<n>` as text."""
    return "training" if measure == TRAIN else f"inference, batch {measure.removeprefix('inference_b')}"


def verdict_sentence(candidate: Candidate, comparison: Comparison) -> str:
    """One sentence on a candidate without statistical terms: about training, then about inference."""
    if candidate.quality is None:
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
        return f"Do not use {name}: {_refuted(candidate.quality, speedup, params, it)}{inference}."
    return f"{name} is undecided: {_open_question(candidate, comparison, margin)}{inference}."


def quality_sentence(variant: str, change: QualityChange, params: CompareParams) -> str:
    """What is known of a variant's accuracy, in one sentence."""
    margin = margin_text(params)
    meaning = {
        "shown": f"a loss of more than {margin} is excluded",
        "refuted": f"a loss of more than {margin} is shown",
        "not established": f"a loss of more than {margin} is neither excluded nor shown",
    }[change.outcome(params.quality_margin)]
    return f"{variant} changes accuracy by {points_text(change)} points: {meaning}{_mcnemar(change)}."


def _mcnemar(change: QualityChange) -> str:
    if change.mcnemar_p is None:
        return ""
    return (
        f"; only the candidate classifies {change.gained} images correctly, only the baseline {change.lost} "
        f"(McNemar's exact test: p = {change.mcnemar_p:.2g})"
    )


def seeds_note(change: QualityChange) -> str:
    """What an answer on accuracy applies to, by the number of seeds."""
    if change.seeds == 1:
        return "One seed: the answer applies to these two trainings. Other seeds may give another."
    if change.seeds == 2:
        return "Two seeds: the answer applies to these trainings on other test images, not to other seeds."
    return (
        f"{change.seeds} seeds: the answer applies to other test images and to other seeds; the wider interval counts."
    )


def same_weights_sentence(candidate: Candidate, comparison: Comparison) -> str | None:
    """Whether the arithmetic or the training changes the accuracy; None if it was not measured."""
    profile, change = candidate.result.profile, candidate.quality
    if profile is None or profile.summary.same_weights is None or change is None:
        return None
    same, baseline = profile.summary.same_weights, comparison.study.baseline.variant
    before, after = (float(by_seed[0].mean()) for by_seed in (change.baseline_correct, change.candidate_correct))
    return (
        f"The weights of {candidate.variant}, seed {candidate.result.trainings[0].seed}, evaluated in the precision of "
        f"{baseline}, give the same class for {100 * same.agreement:.2f} % of {same.images:,.0f} test images, and "
        f"probabilities that differ by at most {same.max_probability_difference:.2g}. Of the change of "
        f"{signed_points(after - before)} points, {signed_points(after - same.accuracy)} come from the arithmetic and "
        f"{signed_points(same.accuracy - before)} from the training."
    )


def _inference_clause(candidate: Candidate) -> str:
    """The verdicts on inference, after a semicolon; empty if only training was measured."""
    sizes_by_verdict: dict[str, list[str]] = {}
    for measure, verdict in candidate.verdicts.items():
        if measure != TRAIN:
            sizes_by_verdict.setdefault(verdict, []).append(measure.removeprefix("inference_b"))
    if not sizes_by_verdict:
        return ""
    if set(sizes_by_verdict) == {candidate.verdict}:
        same = {"adopt": "use it for inference too", "reject": "do not use it for inference either"}
        return f"; {same.get(candidate.verdict, 'inference is undecided too')}"
    wording = {"adopt": "use it", "reject": "do not use it", "inconclusive": "it is undecided"}
    parts = [
        f"{text} at batch size {joined(sizes_by_verdict[key])}"
        for key, text in wording.items()
        if key in sizes_by_verdict
    ]
    return f"; for inference, {joined(parts)}"


def _refuted(quality: QualityChange, speedup: Speedup, params: CompareParams, it: str) -> str:
    found = []
    if speedup.high < 1:
        found.append(f"{it} takes {1 / speedup.ratio:.1f} times as long, at {ratio_text(speedup)} the speed")
    elif speedup.high < params.min_speedup:
        found.append(f"{it} runs at {ratio_text(speedup)} the speed, below the required {params.min_speedup:g}×")
    if quality.outcome(params.quality_margin) == "refuted":
        lost = f"{abs(100 * quality.delta):.2f} percentage points of accuracy"
        found.append(f"it loses {lost}, more than {margin_text(params)}")
    return " and ".join(found)


def _open_question(candidate: Candidate, comparison: Comparison, margin: str) -> str:
    quality, speedup, params = candidate.quality, candidate.speedups[TRAIN], comparison.params
    threshold = required_speedup(comparison.control[TRAIN].noise_floor, params.min_speedup)
    found = []
    if speedup.low < threshold:
        found.append(f"its speed of {ratio_text(speedup)} is not clearly above {threshold:.2f}×")
    if quality is not None and quality.outcome(params.quality_margin) == "not established":
        found.append(
            f"its accuracy changes by {points_text(quality)} percentage points, which does not exclude a loss of more "
            f"than {margin}"
        )
    return " and ".join(found)
