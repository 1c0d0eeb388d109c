"""The verdicts on a candidate, and what is known of its quality, in words without statistical terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halfstep.compare.case import Case, Judging
from halfstep.compare.ratio_text import interval_text, is_measured, ratio_text, step_clause
from halfstep.compare.verdict import class_outcome
from halfstep.params.derived import hidden_precision
from halfstep.results.comparison import ClassRecall
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.quality import QualityChange
from halfstep.stats.speedup import Speedup
from halfstep.words.outcomes import Outcome
from halfstep.words.text import TRAIN, joined, percent_text

_SHOWN = 3  # classes
_DO = {
    "adopt": "use it",
    "reject": "do not use it",
    "faster": "faster",
    "slower": "slower",
    "inconclusive": "undecided",
}
_DO_TOO = {"adopt": "Use it for inference too", "reject": "Do not use it for inference either"}
_LOSS = {"shown": "the loss is at most {}", "refuted": "the loss is more than {}"}


def verdict_sentence(case: Case) -> str:
    """One sentence on training and one on inference; others where other settings cause the gain."""
    if not case.speedups:
        return f"{case.variant} could not be compared. " + " ".join(reason.text for reason in case.reasons)
    training = _speed_sentence(case) if case.judging.study.speed_only else _training_sentence(case)
    return " ".join(filter(None, [training, _inference_sentence(case), *_tf32(case), *_settings_sentences(case)]))


def _training_sentence(case: Case) -> str:
    name = f"{case.variant} for training" if len(set(case.verdicts.values())) > 1 else case.variant
    name += _beside_policy(case)
    if case.verdict == "adopt":
        return f"Use {name}: {_clause(case)}, and {_quality_clause(case)}."
    if case.verdict == "reject":
        return f"Do not use {name}: {' and '.join(_refuted(case))}."
    return f"{name} is undecided: {' and '.join(_open(case))}."


def _speed_sentence(case: Case) -> str:
    """It recommends nothing: quality is not known."""
    if case.verdict != "inconclusive":
        clause = f"is {case.verdict}: {_clause(case)}"
    elif TRAIN not in case.void and (missed := list(_refuted(case))):
        clause = f"is not faster as required: {' and '.join(missed)}"
    else:
        clause = f"is undecided: {' and '.join(_open(case))}"
    nothing = case.judging.study.learned_nothing
    return (
        f"Speed only{'' if nothing is None else f', because {nothing}'}: {case.variant}{_beside_policy(case)} {clause}."
    )


def _beside_policy(case: Case) -> str:
    """Clauses on releases, and on precisions beside the policy: of variables, and of layers that refuse 16 bits."""
    summary, clauses = case.candidate.summary, ""
    if releases := summary.in_force.python:
        clauses += f" (in {releases})"
    if hidden := hidden_precision(summary.entry.env):
        shown = ", ".join(f"{name}={value}" for name, value in hidden.items())
        clauses += f" (with {shown}, in fewer bits than its policy says)"
    if refusals := case.judging.study.task.refusals.get(case.variant):
        word = "it refuses" if len(refusals) == 1 else "they refuse"
        clauses += f" (with {joined(refusals)} in float32; {word} {case.compute.name})"
    return clauses


def _clause(case: Case) -> str:
    return step_clause(case.speedups[TRAIN], per_example=case.before.batch_size != case.candidate.batch_size)


def _quality_clause(case: Case) -> str:
    """What an adoption says of the quality: one seed shows two trainings, and not that the variants are the same."""
    change, scale = case.quality, case.judging.scale
    if change is None or change.seeds > 1:
        return f"the {scale.name} is the same within {scale.margin_text}"
    return (
        f"with one seed the {scale.name} changes by {scale.change(change)}{scale.points}, within the margin of "
        f"{scale.margin_number}"
    )


def _inference_sentence(case: Case) -> str:
    """The verdicts on inference; empty if only training was measured."""
    sizes: dict[str, list[str]] = {}
    for measure, verdict in case.verdicts.items():
        if measure != TRAIN:
            sizes.setdefault(verdict, []).append(measure.removeprefix("inference_b"))
    if not sizes:
        return ""
    why = ""
    if case.has_reason("same_weights_missing"):
        why = f", because the weights of {case.judging.study.baseline.variant} were not evaluated in its precision"
    if set(sizes) == {case.verdict}:
        word = "undecided" if case.verdict == "inconclusive" else case.verdict
        return f"{_DO_TOO.get(case.verdict, f'Inference is {word} too')}{why}."
    parts = [f"{text} at batch size {joined(sizes[verdict])}" for verdict, text in _DO.items() if verdict in sizes]
    return f"Inference: {'; '.join(parts)}{why}."


def _refuted(case: Case) -> Iterator[str]:
    """What speaks against training with a candidate."""
    judging, speedup, quality = case.judging, case.speedups[TRAIN], case.quality
    required, precision = f"the {judging.required_text} you asked for", _factor(case)
    if judging.side(speedup) == "below":
        yield f"{_clause(case)}{'' if speedup.side(1.0) == 'below' else f', so it cannot reach {required}'}"
    elif case.waiting is not None and case.is_bounded:
        yield (
            f"{case.waiting.text}, so no precision can bring {required} (speed-up {speedup.ratio:.2f}×, "
            f"{interval_text(speedup)})"
        )
    elif precision is not None and judging.side(precision) == "below":
        yield (
            f"of its speed-up of {ratio_text(speedup)}, the precision itself brings {ratio_text(precision)}, less than "
            f"{required}"
        )
    if quality is not None and quality.outcome(judging.margin) == "refuted":
        scale, seeds = judging.scale, ", with one seed" if quality.seeds == 1 else ""
        yield f"it loses {scale.size(quality.delta)}, more than {scale.margin_text}{seeds}"
    if names := _classes(case, "refuted"):
        yield f"recall of class {names} falls by more than compare.class_margin"


def _open(case: Case) -> Iterator[str]:
    """What is not known about training with a candidate."""
    judging = case.judging
    if (share := judging.throttled.get(TRAIN)) is not None:
        yield f"the GPU was throttled in {percent_text(share)} of the rounds, so its times decide nothing"
        return
    if TRAIN in judging.void:
        yield (
            f"the two copies of {judging.study.baseline.variant} differ by more than noise, "
            f"{ratio_text(judging.control[TRAIN])}, so these times decide nothing"
        )
        return
    named = {"its speed-up": case.speedups[TRAIN], "what the precision itself brings": _factor(case)}
    clauses = [
        f"{name}, {ratio_text(speedup)}, is not clearly above {judging.required_text}"
        for name, speedup in named.items()
        if speedup is not None and judging.side(speedup) != "above"
    ]
    if not case.is_trained:
        clauses.append(f"it was not trained (variants.{case.variant}.trained is false)")
    if case.quality is not None and case.quality.outcome(judging.margin) == "not established":
        scale, reason = judging.scale, case.quality.reason(judging.margin)
        clauses.append(
            f"its {scale.name} changes by {scale.change(case.quality)}{scale.points}, so it may lose more than "
            f"{scale.margin_text}{f', because {reason}' if reason else ''}"
        )
    if names := _classes(case, "not established"):
        clauses.append(f"recall of class {names} may fall by more than compare.class_margin")
    yield from clauses or [
        f"its speed-up of {ratio_text(case.speedups[TRAIN])} and its {judging.study.score_name} would each pass alone, "
        f"but not together with the other verdicts: all {judging.number_of_tests} of this report share an error of 5 %"
    ]


def _factor(case: Case) -> Speedup | None:
    return case.factors[TRAIN].precision if TRAIN in case.factors else None


def _classes(case: Case, outcome: Outcome) -> str:
    """Names of the classes with an outcome of `compare.class_margin`."""
    judging = case.judging
    classes = (item for item in case.classes.get(TRAIN, ()) if class_outcome(item, judging.params) == outcome)
    return joined([f"`{judging.study.class_name(item.number)}`" for item in classes])


def _tf32(case: Case) -> Iterator[str]:
    percents = [one.evidence["baseline_compute_tf32_percent"] for one in case.reasons if one.code == "baseline_is_tf32"]
    if any(percent > 0 for percent in percents):
        name = case.judging.study.baseline.variant
        yield f"{name} uses TF32 on tensor cores here: a variant with tf32: false measures true float32."


def _settings_sentences(case: Case) -> Iterator[str]:
    """Where other settings gain and the precision may not: in which measures, and what to try instead."""
    judging, sentences = case.judging, list[str]()
    for measure, factors in case.factors.items():
        pays = factors.settings.low > 1 and is_measured(factors.settings) and judging.side(factors.settings) != "below"
        if measure not in case.void and pays and judging.side(factors.precision) != "above":
            where = "In training" if measure == TRAIN else f"At batch size {measure.removeprefix('inference_b')}"
            what = "a step" if measure == TRAIN else "inference"
            sentences.append(
                f"{where}, {case.settings_text} alone makes {what} {factors.settings.ratio:.2f}× as fast; "
                f"{_adds(case.speedups[measure], factors.precision, judging)}."
            )
    if sentences:
        yield " ".join([*sentences, f"Try {judging.study.baseline.variant} with {case.settings_text}."])


def _adds(whole: Speedup, precision: Speedup, judging: Judging) -> str:
    """What the precision does beside other settings."""
    if whole.low <= 1:
        return f"with the precision, no gain is clear ({whole.ratio:.2f}×)"
    if judging.side(precision) == "below":
        little = "nothing measurable" if precision.low <= 1 else "too little"
        return f"the precision adds {little} ({precision.ratio:.2f}×)"
    known = f"is not clear ({precision.ratio:.2f}×)" if is_measured(precision) else "was not measured well enough"
    return f"whether the precision adds to it {known}"


def quality_sentence(case: Case, change: QualityChange) -> str:
    """What is known of the score after training."""
    scale = case.judging.scale
    return (
        f"{case.variant} changes {scale.name} by {scale.change(change)}{scale.short_points}: {_meaning(case, change)}."
        f"{_mcnemar(case, change)}"
    )


def same_weights_sentence(case: Case, change: QualityChange) -> str:
    """What computing the baseline's weights in a variant's precision changes."""
    scale, study = case.judging.scale, case.judging.study
    return (
        f"The weights of {study.baseline.variant} in the precision of {case.variant}: {scale.name} changes by "
        f"{scale.change(change)}{scale.short_points} on the same {change.examples:,} test {study.task.examples_word}; "
        f"{_meaning(case, change)}.{_mcnemar(case, change)}"
    )


def _meaning(case: Case, change: QualityChange) -> str:
    margin, reason = case.judging.margin, change.reason(case.judging.margin)
    text = _LOSS.get(change.outcome(margin), "the loss may be more than {}").format(case.judging.scale.margin_text)
    return f"{text}, because {reason}" if reason else text


def _mcnemar(case: Case, change: QualityChange) -> str:
    if not isinstance(change, BinaryChange) or change.mcnemar_p is None:
        return ""
    one = case.judging.study.task.examples_word.removesuffix("s")
    if not change.gained and not change.lost:
        return f" No {one} is right in only one of the two."
    return (
        f" {change.gained:,} {one}{' is' if change.gained == 1 else 's are'} right only in {case.variant}, "
        f"{change.lost:,} only in {case.judging.study.baseline.variant} "
        f"(McNemar's exact test: p = {change.mcnemar_p:.2g})."
    )


def class_sentence(recalls: Sequence[ClassRecall]) -> str | None:
    """The classes that lose recall, such as ``Recall of class `9` falls by 4.1 points (1.2 to 7.0).``; or None."""
    lost = [item for item in recalls if item.is_lost]
    texts = [
        f"`{item.name}` falls by {-100 * item.value:.1f} points ({-100 * item.high:.1f} to {-100 * item.low:.1f})"
        for item in lost[:_SHOWN]
    ]
    more = [f"{len(lost) - _SHOWN} more fall"] if len(lost) > _SHOWN else []
    return f"Recall of class {joined([*texts, *more])}." if lost else None
