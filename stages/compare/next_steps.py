"""What would settle an inconclusive verdict, and at what cost, in sentences that name the parameter to change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from scipy import stats

from stages.compare.judging import JudgedCandidate, Judging
from stages.compare.text import ratio_text
from stages.compare.verdict import is_bounded
from stages.stats.proportions import BinaryChange
from stages.stats.quality import QualityChange
from stages.stats.sample_size import (
    ADOPT_ERROR,
    examples_needed,
    occasions_needed,
    processes_needed,
    seeds_needed,
    too_few_examples,
)
from stages.stats.speedup import CONFIDENCE, Speedup
from stages.text import TRAIN, joined, measure_text, timed_label

MOST_PROCESSES = 50  # that profile.processes allows
MOST_OCCASIONS = 10  # that anyone measures
ESTIMATE = "with 80 % probability, by the spread so far"


def next_steps(candidate: JudgedCandidate, judging: Judging) -> tuple[str, ...]:
    """A sentence for each open question of a candidate; none if every verdict is decided."""
    measures = [measure for measure, verdict in candidate.verdicts.items() if verdict == "inconclusive"]
    if not candidate.speedups:
        return tuple(reason.advice for reason in candidate.reasons if reason.code == "arm_failed")
    void = [measure for measure in measures if measure in judging.void]
    others = [measure for measure in measures if measure not in judging.void]
    return (
        *_measure_again(void, judging),
        *_evaluate_again(candidate, judging),
        *_speed(candidate, others, judging),
        *_quality(candidate, others, judging),
    )


def quality_sample_size(
    change: QualityChange, margin: float, alpha: float = ADOPT_ERROR
) -> dict[Literal["examples", "seeds"], int]:
    """Test examples and seeds, either of which alone would settle the quality; absent if it alone would not."""
    found: dict[Literal["examples", "seeds"], int | None] = {
        "examples": examples_needed(change, margin, alpha),
        "seeds": seeds_needed(change, margin, alpha),
    }
    return {name: number for name, number in found.items() if number is not None}


def _measure_again(void: list[str], judging: Judging) -> Iterator[str]:
    if throttled := [measure_text(measure) for measure in void if measure in judging.throttled]:
        yield (
            f"The GPU was throttled in too many rounds of {joined(throttled)}: look at its cooling and power supply, "
            "then measure again with `dvc repro -f -s profile`."
        )
    if differing := [measure_text(measure) for measure in void if measure in judging.differing]:
        yield (
            f"The two copies of {judging.study.baseline.variant} differ by more than noise in {joined(differing)}: "
            "measure again with `dvc repro -f -s profile`, with no other program running."
        )


def _evaluate_again(candidate: JudgedCandidate, judging: Judging) -> Iterator[str]:
    if any(reason.code == "same_weights_missing" for reason in candidate.reasons):
        yield (
            f"The weights of {judging.study.baseline.variant} were not evaluated in the precision of "
            f"{candidate.variant}: measure again with `dvc repro -f -s profile`. The warnings of the report have the "
            "cause."
        )


def _speed(candidate: JudgedCandidate, measures: list[str], judging: Judging) -> Iterator[str]:
    """What each open ratio costs, and how to measure as long as the costliest of those that can be settled."""
    found = [item for measure in measures for item in _open_ratios(candidate, measure, judging)]
    repeats, occasions = dict[str, int](), dict[str, int]()
    for label, speedup in found:
        if (number := _repeats(speedup, judging)) is not None:
            repeats[label] = number
        elif (number := _occasions(speedup, judging)) is not None:
            occasions[label] = number
    for label, speedup in found:
        if label in repeats:
            yield _cost(label, speedup, judging)
    if repeats:
        longest = max(repeats, key=repeats.__getitem__)
        yield _how(repeats[longest], dict(found)[longest], judging)
    for label, speedup in found:
        if label in occasions:
            yield _another_occasion(label, speedup, occasions[label], judging)
    rest = [item for item in found if item[0] not in repeats | occasions]
    too_close = [f"{label}, {ratio_text(speedup)}" for label, speedup in rest]
    if too_close:
        yield _too_close(too_close, judging)


def _repeats(speedup: Speedup, judging: Judging) -> int | None:
    """Repeats that settle a ratio; None if there is no such number, or where half of them in several occasions do.

    Where this run by itself decides, `profile` would end it as early as before, whatever is asked for.
    """
    required, alpha, within = judging.params.min_speedup, judging.alpha, speedup.within_run
    if speedup.earlier or within.high < required or within.p_below(required) <= alpha:
        return None
    number = processes_needed(speedup, required, alpha)
    others = _occasions(speedup, judging)
    if number is None or number > MOST_PROCESSES or (others and number > 2 * others * speedup.processes):
        return None
    return number


def _occasions(speedup: Speedup, judging: Judging) -> int | None:
    """Occasions that settle a ratio, those so far included; None if there is no such number."""
    number = occasions_needed(speedup, judging.params.min_speedup, judging.alpha)
    return None if number is None or number > MOST_OCCASIONS else max(number, speedup.occasions + 1)


def _open_ratios(candidate: JudgedCandidate, measure: str, judging: Judging) -> Iterator[tuple[str, Speedup]]:
    """The speed-up and the factor of the precision, where it is open on which side of the required ratio they are."""
    required, label = judging.params.min_speedup, timed_label(measure)
    precision, bound = candidate.precision(measure), candidate.waiting.bound if candidate.waiting else None
    if measure == TRAIN and is_bounded(candidate.speedups[measure], bound, judging.params):
        return
    named = {label: candidate.speedups[measure], f"{label}, factor of the precision": precision}
    for name, speedup in named.items():
        if speedup is not None and speedup.high >= required and speedup.p_below(required) > judging.alpha:
            yield name, speedup


def _cost(label: str, speedup: Speedup, judging: Judging) -> str:
    """What it costs in repeats to settle a ratio if it is the one seen, and if it is on the other side."""
    costs = _costs(speedup, judging)
    return _sentence(
        f"{label}, {ratio_text(speedup)}, is {_where(speedup, judging)} with {speedup.processes} repeats: {costs} "
        f"({ESTIMATE})."
    )


def _another_occasion(label: str, speedup: Speedup, number: int, judging: Judging) -> str:
    """How to measure on another occasion, and how many there would be in all."""
    runs = "one run" if speedup.occasions == 1 else f"{speedup.occasions} occasions"
    return _sentence(
        f"{label}, {ratio_text(speedup)}, is {_where(speedup, judging)} after {runs}, and more repeats do not show "
        f"what whole runs differ by. Only another occasion could settle it, about {number} in all if it is "
        f"{ratio_text(speedup)}: set profile.occasion to another word and run `dvc repro`, which keeps this one and "
        "judges by all."
    )


def _where(speedup: Speedup, judging: Judging) -> str:
    required = judging.params.min_speedup
    if speedup.low >= required:
        return f"above {required:g}× by itself, but not shown together with the other verdicts,"
    return f"on no clear side of {required:g}×"


def _costs(speedup: Speedup, judging: Judging) -> str:
    """What it takes if the ratio is the one seen, and if it is an end of the interval on the other side.

    Such as `if it is 1.03×, reject takes about 40 repeats, about 25 min`.
    """
    required = judging.params.min_speedup
    costs = []
    for true_ratio in (speedup.ratio, speedup.low, speedup.high):
        is_other_side = (true_ratio >= required) != (speedup.ratio >= required)
        number = processes_needed(speedup, required, judging.alpha, true_ratio=true_ratio)
        if number is None or not (is_other_side or true_ratio == speedup.ratio):
            continue
        settled = "adopt" if true_ratio > required else "reject"
        if judging.speed_only:
            settled = "`faster`" if true_ratio > required else f"showing that it is below {required:g}×"
        minutes = judging.minutes(number)
        time = "" if minutes is None else f", {_minutes_text(minutes)}"
        costs.append(f"if it is {true_ratio:.2f}×, {settled} takes about {number} repeats{time}")
    return "; ".join(costs)


def _minutes_text(minutes: float) -> str:
    return f"about {max(1, math.ceil(minutes))} min" if minutes < 100 else f"about {minutes / 60:.1f} hours"


def _too_close(found: list[str], judging: Judging) -> str:
    return _sentence(
        f"{'; '.join(found)}: so close to {judging.params.min_speedup:g}× that more than {MOST_PROCESSES} repeats "
        f"or {MOST_OCCASIONS} occasions would be needed. Treat it as not worth having, or declare another "
        "compare.min_speedup."
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _how(processes: int, speedup: Speedup, judging: Judging) -> str:
    """Which parameters to change to measure so many processes."""
    profile = judging.study.baseline.profile
    assert profile is not None, "there are speed-ups"
    protocol, factor = profile.summary.protocol, processes / speedup.processes
    changes = [
        f"profile.processes to {max(processes, speedup.processes)}",
        f"profile.max_seconds to about {_rounded_up(protocol.timing_seconds * max(factor, 1.0))}",
    ]
    half_width = _half_width(speedup, processes)
    if half_width < protocol.target_precision:  # it would end too early
        changes.append(f"profile.target_precision to {_rounded_down(half_width):g}")
    return f"To measure that long, set {joined(changes)}."


def _half_width(speedup: Speedup, processes: int) -> float:
    """What the half-width within a run becomes with so many repeats, if the spread stays as it is."""
    grown, within = processes / speedup.processes, speedup.within_run
    degrees = (within.error.degrees, within.error.degrees * grown)
    now, then = (stats.t.ppf((1 + CONFIDENCE) / 2, number) for number in degrees)
    return float(within.half_width * then / now / math.sqrt(grown))


def _rounded_down(value: float) -> float:
    """To one digit."""
    step = 10.0 ** math.floor(math.log10(value))
    return math.floor(value / step) * step


def _rounded_up(value: float) -> int:
    """To two digits."""
    step = 10 ** max(math.floor(math.log10(value)) - 1, 0)
    return math.ceil(value / step) * step


def _quality(candidate: JudgedCandidate, measures: list[str], judging: Judging) -> Iterator[str]:
    """What settles the quality, where the speed does not point to `reject` by itself."""
    required = judging.params.min_speedup
    open_measures = [
        measure
        for measure in measures
        if min(item.ratio for item in (candidate.speedups[measure], candidate.precision(measure)) if item) >= required
    ]
    changes: dict[str, QualityChange] = {}
    if TRAIN in open_measures and candidate.quality is not None:
        changes[""] = candidate.quality
    if set(open_measures) - {TRAIN} and candidate.quality_same_weights is not None:
        of_weights = f" of the weights of {judging.study.baseline.variant} in {candidate.variant}, for inference"
        changes[of_weights] = candidate.quality_same_weights
    found = [text for whose, change in changes.items() for text in _quality_sentences(whose, change, judging)]
    yield from dict.fromkeys(found)  # a test set that is too small is too small for both


def _quality_sentences(whose: str, change: QualityChange, judging: Judging) -> Iterator[str]:
    scale, margin, alpha = judging.scale, judging.margin, judging.alpha
    found = f"does not settle whether the loss is larger than {scale.margin_text}"
    if change.outcome(margin) == "shown":
        found = f"excludes a loss of {scale.margin_text} by itself, but not together with the other verdicts"
    if change.p_loss(margin) <= alpha or change.outcome(margin) == "refuted":
        return
    if (impossible := too_few_of(change, judging)) is not None:
        yield f"{impossible}."
        return
    sizes, examples = quality_sample_size(change, margin, alpha), judging.study.task.examples_word
    ways = []
    if "examples" in sizes:
        ways.append(f"about {sizes['examples']:,} test {examples} instead of {change.examples:,}")
    if "seeds" in sizes:
        ways.append(f"about {sizes['seeds']} train.seeds instead of {change.seeds}")
    score = f"The change of {scale.name}{whose}, {scale.signed(change.delta)}{scale.short_points}"
    text = f"{score} ({scale.interval(change)}), {found}"
    reason = change.reason(margin)
    if ways:
        yield f"{text}: {' or '.join(ways)} would ({ESTIMATE})."
    elif reason:
        yield f"{text}, because {reason}: use more test {examples}."
    else:
        what = f"more train.seeds and more test {examples} together, or a larger compare.quality_margin,"
        yield f"{text}: {what} would ({ESTIMATE})."


def too_few_of(change: QualityChange, judging: Judging) -> str | None:
    """A line if the test set can never show the margin of a 0/1 score, with one number for the report; else None."""
    if not isinstance(change, BinaryChange):
        return None
    margin, verdicts = judging.margin, judging.number_of_tests
    changes = [item for each in judging.candidates for item in (each.quality, each.quality_same_weights)]
    planned = [examples_needed(item, margin, judging.alpha) or 0 for item in changes if item is not None]
    return too_few_examples(change.examples, judging.study.score_name, margin, change.seeds, verdicts, max(planned))
