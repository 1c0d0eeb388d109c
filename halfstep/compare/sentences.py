"""The verdicts on a candidate in words without statistical terms."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.compare.judging import JudgedCandidate, Judging
from halfstep.compare.notes import settings_text
from halfstep.compare.scale import Scale
from halfstep.compare.text import interval_text, ratio_text, step_clause
from halfstep.compare.verdict import class_outcome, is_bounded
from halfstep.outcomes import Outcome
from halfstep.params.derived import hidden_precision
from halfstep.stats.quality import QualityChange
from halfstep.stats.speedup import Speedup
from halfstep.text import TRAIN, joined, percent_text


def verdict_sentence(candidate: JudgedCandidate, judging: Judging) -> str:
    """One sentence on training with a candidate and one on inference; others where other settings cause the gain."""
    if not candidate.speedups:
        return f"{candidate.variant} could not be compared. " + " ".join(reason.text for reason in candidate.reasons)
    of_training = _speed_sentence if judging.speed_only else _training_sentence
    inference = _inference_sentence(candidate, judging)
    sentences = [of_training(candidate, judging), inference, *_further_sentences(candidate, judging)]
    return " ".join(filter(None, sentences))


def _training_sentence(candidate: JudgedCandidate, judging: Judging) -> str:
    differing = len(set(candidate.verdicts.values())) > 1
    name = f"{candidate.variant} for training" if differing else candidate.variant
    name += _beside_policy(candidate, judging)
    if candidate.verdict == "adopt":
        return f"Use {name}: {_clause(candidate, judging)}, and {_quality_clause(candidate.quality, judging.scale)}."
    if candidate.verdict == "reject":
        return f"Do not use {name}: {' and '.join(_refuted(candidate, judging))}."
    return f"{name} is undecided: {' and '.join(_open(candidate, judging))}."


def _beside_policy(candidate: JudgedCandidate, judging: Judging) -> str:
    """Clauses on releases, and on precisions beside the policy: of variables, and of layers that refuse 16 bits."""
    profile, clauses = candidate.result.profile, ""
    if profile is None:
        return clauses
    if releases := profile.summary.in_force.python:
        clauses += f" (in {releases})"
    if hidden := hidden_precision(profile.summary.entry.env):
        shown = ", ".join(f"{name}={value}" for name, value in hidden.items())
        clauses += f" (with {shown}, in fewer bits than its policy says)"
    if refusals := judging.study.task.refusals.get(candidate.variant):
        word = "it refuses" if len(refusals) == 1 else "they refuse"
        clauses += f" (with {joined(refusals)} in float32; {word} {profile.dtype_policy.compute.name})"
    return clauses


def _clause(candidate: JudgedCandidate, judging: Judging) -> str:
    profiles = judging.study.baseline.profile, candidate.result.profile
    sizes = {profile.batch_size for profile in profiles if profile is not None}
    return step_clause(candidate.speedups[TRAIN], per_example=len(sizes) > 1)


def _quality_clause(change: QualityChange | None, scale: Scale) -> str:
    """What an adoption says of the quality: one seed shows two trainings, and not that the variants are the same."""
    if change is None or change.seeds > 1:
        return f"the {scale.name} is the same within {scale.margin_text}"
    return f"with one seed the {scale.name} changes by {scale.change(change)}{scale.points}, within the margin of " + (
        scale.margin_number
    )


def _speed_sentence(candidate: JudgedCandidate, judging: Judging) -> str:
    """One sentence on a candidate where nothing was trained. It recommends nothing: quality is not known."""
    missed = [] if TRAIN in judging.void else list(_refuted(candidate, judging))
    if candidate.verdict != "inconclusive":
        clause = f"is {candidate.verdict}: {_clause(candidate, judging)}"
    elif missed:
        clause = f"is not faster as required: {' and '.join(missed)}"
    else:
        clause = f"is undecided: {' and '.join(_open(candidate, judging))}"
    learned_nothing = judging.study.learned_nothing
    because = "" if learned_nothing is None else f", because {learned_nothing}"
    return f"Speed only{because}: {candidate.variant}{_beside_policy(candidate, judging)} {clause}."


def _inference_sentence(candidate: JudgedCandidate, judging: Judging) -> str:
    """The verdicts on inference; empty if only training was measured."""
    sizes_by_verdict: dict[str, list[str]] = {}
    for measure, verdict in candidate.verdicts.items():
        if measure != TRAIN:
            sizes_by_verdict.setdefault(verdict, []).append(measure.removeprefix("inference_b"))
    if not sizes_by_verdict:
        return ""
    why = _why_undecided(candidate, judging)
    if set(sizes_by_verdict) == {candidate.verdict}:
        same = {"adopt": "Use it for inference too", "reject": "Do not use it for inference either"}
        word = "undecided" if candidate.verdict == "inconclusive" else candidate.verdict
        return f"{same.get(candidate.verdict, f'Inference is {word} too')}{why}."
    wording = {"adopt": "use it", "reject": "do not use it", "faster": "faster", "slower": "slower"}
    wording["inconclusive"] = "undecided"
    parts = [
        f"{text} at batch size {joined(sizes_by_verdict[key])}"
        for key, text in wording.items()
        if key in sizes_by_verdict
    ]
    return f"Inference: {'; '.join(parts)}{why}."


def _why_undecided(candidate: JudgedCandidate, judging: Judging) -> str:
    """Why no verdict on inference is possible, where that is not the speed."""
    if not any(reason.code == "same_weights_missing" for reason in candidate.reasons):
        return ""
    return f", because the weights of {judging.study.baseline.variant} were not evaluated in its precision"


def _refuted(candidate: JudgedCandidate, judging: Judging) -> Iterator[str]:
    """What speaks against training with a candidate."""
    params, speedup = judging.params, candidate.speedups[TRAIN]
    precision, quality = candidate.precision(TRAIN), candidate.quality
    if speedup.side(params.min_speedup) == "below":
        yield f"{_clause(candidate, judging)}{_below(speedup, params.min_speedup)}"
    elif candidate.waiting is not None and is_bounded(speedup, candidate.waiting.bound, params):
        yield (
            f"{candidate.waiting.text}, so no precision can bring the {params.min_speedup:g}× you asked for "
            f"(speed-up {speedup.ratio:.2f}×, {interval_text(speedup)})"
        )
    elif precision is not None and precision.side(params.min_speedup) == "below":
        yield (
            f"of its speed-up of {ratio_text(speedup)}, the precision itself brings {ratio_text(precision)}, less "
            f"than the {params.min_speedup:g}× you asked for"
        )
    if quality is not None and quality.outcome(judging.margin) == "refuted":
        scale = judging.scale
        seeds = ", with one seed" if quality.seeds == 1 else ""
        yield f"it loses {scale.size(quality.delta)}, more than {scale.margin_text}{seeds}"
    if names := _classes(candidate, judging, "refuted"):
        yield f"recall of class {names} falls by more than compare.class_margin"


def _classes(candidate: JudgedCandidate, judging: Judging, outcome: Outcome) -> str:
    """Names of the classes with an outcome of `compare.class_margin`."""
    classes = (item for item in candidate.classes.get(TRAIN, ()) if class_outcome(item, judging.params) == outcome)
    return joined([f"`{judging.study.class_name(item.number)}`" for item in classes])


def _below(speedup: Speedup, min_speedup: float) -> str:
    """The required speed-up, where it is not plain from the words that it is not reached."""
    return "" if speedup.side(1.0) == "below" else f", so it cannot reach the {min_speedup:g}× you asked for"


def _open(candidate: JudgedCandidate, judging: Judging) -> Iterator[str]:
    """What is not known about training with a candidate."""
    if (share := judging.throttled.get(TRAIN)) is not None:
        yield f"the GPU was throttled in {percent_text(share)} of the rounds, so its times decide nothing"
        return
    if TRAIN in judging.void:
        yield (
            f"the two copies of {judging.study.baseline.variant} differ by more than noise, "
            f"{ratio_text(judging.control[TRAIN])}, so these times decide nothing"
        )
        return
    clauses = [*_open_speeds(candidate, judging), *_open_quality(candidate.quality, judging)]
    if names := _classes(candidate, judging, "not established"):
        clauses.append(f"recall of class {names} may fall by more than compare.class_margin")
    yield from clauses or _open_together(candidate, judging)


def _open_speeds(candidate: JudgedCandidate, judging: Judging) -> Iterator[str]:
    required = judging.params.min_speedup
    named = {"its speed-up": candidate.speedups[TRAIN], "what the precision itself brings": candidate.precision(TRAIN)}
    for name, speedup in named.items():
        if speedup is not None and speedup.side(required) != "above":
            yield f"{name}, {ratio_text(speedup)}, is not clearly above {required:g}×"


def _open_quality(change: QualityChange | None, judging: Judging) -> Iterator[str]:
    if change is not None and change.outcome(judging.margin) == "not established":
        scale, reason = judging.scale, change.reason(judging.margin)
        yield (
            f"its {scale.name} changes by {scale.change(change)}{scale.points}, so it may lose more than "
            f"{scale.margin_text}{f', because {reason}' if reason else ''}"
        )


def _open_together(candidate: JudgedCandidate, judging: Judging) -> Iterator[str]:
    """Where each part is shown by itself, but not with all verdicts of the report together."""
    yield (
        f"its speed-up of {ratio_text(candidate.speedups[TRAIN])} and its {judging.study.score_name} would each pass "
        f"alone, but not together with the other verdicts: all {judging.number_of_tests} of this report share an error "
        "of 5 %"
    )


def _further_sentences(candidate: JudgedCandidate, judging: Judging) -> Iterator[str]:
    """What the speed-ups are over, and where other settings gain."""
    percents = [reason.evidence for reason in candidate.reasons if reason.code == "baseline_is_tf32"]
    if any(evidence["baseline_compute_tf32_percent"] > 0 for evidence in percents):
        yield (
            f"{judging.study.baseline.variant} uses TF32 on tensor cores here: a variant with tf32: false measures "
            "true float32."
        )
    yield from _settings_sentences(candidate, judging)


def _settings_sentences(candidate: JudgedCandidate, judging: Judging) -> Iterator[str]:
    """Where other settings gain and the precision may not: in which measures, and what to try instead."""
    required, baseline = judging.params.min_speedup, judging.study.baseline.variant
    settings, sentences = settings_text(candidate, judging), list[str]()
    for measure, factors in candidate.factors.items():
        pays = factors.settings.low > 1 and factors.settings.side(required) != "below"
        if measure not in judging.void and pays and factors.precision.side(required) != "above":
            adds = _adds(candidate.speedups[measure], factors.precision, required)
            sentences.append(f"{_alone(measure, settings)} {factors.settings.ratio:.2f}× as fast; {adds}.")
    if sentences:
        yield " ".join([*sentences, f"Try {baseline} with {settings}."])


def _adds(whole: Speedup, precision: Speedup, required: float) -> str:
    """What the precision does beside other settings."""
    if whole.low <= 1:
        return f"with the precision, no gain is clear ({whole.ratio:.2f}×)"
    if precision.side(required) == "below":
        little = "nothing measurable" if precision.low <= 1 else "too little"
        return f"the precision adds {little} ({precision.ratio:.2f}×)"
    return f"whether the precision adds to it is not clear ({precision.ratio:.2f}×)"


def _alone(measure: str, settings: str) -> str:
    if measure == TRAIN:
        return f"In training, {settings} alone makes a step"
    return f"At batch size {measure.removeprefix('inference_b')}, {settings} alone makes inference"
