"""What would settle an inconclusive verdict, and at what cost: sentences that name the parameter to change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from halfstep.compare.case import Case, Judging
from halfstep.compare.ratio_text import ratio_text
from halfstep.results.comparison import OpenQuestion
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.quality import QualityChange
from halfstep.stats.sample_size import (
    MOST_OCCASIONS,
    examples_needed,
    occasions_needed,
    times_as_long,
    too_few_examples,
)
from halfstep.stats.speedup import Speedup
from halfstep.words.text import LONGER, MEASURE_AGAIN, TRAIN, capitalized, end_text, joined, measure_text, timed_label

MOST_PROCESSES = 50  # that profile.processes allows
MOST_TIMES = 10  # as long as anyone measures
_FEW_REPEATS = 2  # whose intervals reach 28 standard errors to each side (t distribution, 97.7 %)
MOST_EXAMPLES = 100  # times as many as there are


@dataclass(frozen=True)
class NextStep:
    """A sentence on an open verdict; with the question itself where it is worth the time that would settle it."""

    sentence: str
    question: OpenQuestion | None = None


def next_steps(case: Case) -> Iterator[NextStep]:
    """What would settle each open verdict of a candidate; nothing if every verdict is decided."""
    if not case.speedups:
        yield from (NextStep(reason.advice) for reason in case.reasons if reason.code == "arm_failed")
        return
    measures = [measure for measure, verdict in case.verdicts.items() if verdict == "inconclusive"]
    if measures and (busy := case.before.summary.protocol.busy) is not None:
        yield NextStep(f"{busy}.", OpenQuestion(text="all of it: other programs ran", again="profile"))
    open_measures = [measure for measure in measures if measure not in case.void]
    yield from _disturbed([measure for measure in measures if measure in case.void], case)
    yield from _speed(open_measures, case)
    yield from {step.sentence: step for step in _quality(open_measures, case)}.values()  # once for both trainings


def _disturbed(void: Sequence[str], case: Case) -> Iterator[NextStep]:
    baseline, again = case.judging.study.baseline.variant, f"measure again: `{MEASURE_AGAIN}`."
    if throttled := [measure_text(measure) for measure in void if measure in case.throttled]:
        yield NextStep(
            f"The GPU was throttled in too many rounds of {joined(throttled)}: look at its cooling and power supply, "
            f"then {again}",
            OpenQuestion(text=f"{joined(throttled)}: the GPU was throttled", again="profile"),
        )
    if differing := [measure_text(measure) for measure in void if measure in case.judging.differing]:
        yield NextStep(
            f"The two copies of {baseline} differ by more than noise in {joined(differing)}: stop other programs, then "
            f"{again}",
            OpenQuestion(text=f"{joined(differing)}: the control differs", again="profile"),
        )
    if case.has_reason("same_weights_missing"):
        yield NextStep(
            f"The weights of {baseline} were not evaluated in the precision of {case.variant}: {again} The warnings of "
            "the report have the cause."
        )


def _speed(measures: Sequence[str], case: Case) -> Iterator[NextStep]:
    """What would settle each open ratio, and how to measure as long as the one that takes longest."""
    longest, too_close, judging = 0, list[str](), case.judging
    protocol, takes_longest = case.before.summary.protocol, ""
    open_whats = dict[Literal["training", "inference"], None]()
    for measure, label, speedup in [(at, *item) for at in measures for item in _open_ratios(at, case)]:
        number = occasions_needed(speedup, judging.params.min_speedup)
        if (times := _times(speedup, number, judging)) is not None:
            minutes = judging.minutes(speedup.processes * times)
            takes = "" if minutes is None else f" ({_minutes_text(minutes)})"
            yield _step(
                f"{label}: {_so_far(speedup, judging)}. Measuring about {times} times as long{takes} would probably "
                "settle it."
            )
            open_whats[_what(measure)] = None
            if times > longest:
                longest, takes_longest = times, takes
        elif number is not None:
            runs = "one run" if speedup.occasions == 1 else f"{speedup.occasions} runs"
            yield _step(
                f"{label}: {_so_far(speedup, judging)} after {runs}. A longer run cannot settle it, because whole runs "
                f"differ; about {number} runs in all could. Set profile.occasion to another word and run `dvc repro`: "
                "the runs so far are kept, and the verdict is on all of them.",
                OpenQuestion(
                    text=f"{_what(measure)} of {case.short_name} ({number - speedup.occasions} more runs)",
                    of=_what(measure),
                    settings={"profile.occasion": _next_word(protocol.occasion)},
                ),
            )
        else:
            too_close.append(f"{label}, {ratio_text(speedup)}")
    if longest:
        values = {
            "profile.processes": min(longest * protocol.processes, MOST_PROCESSES),
            "profile.max_seconds": _rounded(protocol.timing_seconds * longest, math.ceil, 2),
            "profile.target_precision": _rounded(protocol.target_precision / math.sqrt(longest), math.floor, 1),
        }
        about = {"profile.max_seconds": "about "}
        changes = [f"{name} to {about.get(name, '')}{value:g}" for name, value in values.items()]
        whole = {name: int(value) if value == int(value) else value for name, value in values.items()}
        text = f"{joined(list(open_whats))} of {case.short_name}{takes_longest}"
        of = next(iter(open_whats)) if len(open_whats) == 1 else None
        yield NextStep(f"{LONGER} set {joined(changes)}.", OpenQuestion(text=text, settings=whole, of=of))
    if too_close and protocol.processes <= _FEW_REPEATS:
        yield _step(
            f"{'; '.join(too_close)}: so few repeats cannot tell noise from a gain. Leave profile.processes empty, or "
            "set it to 4 or more, and run `dvc repro`.",
            OpenQuestion(text=f"{case.short_name}: too few repeats", settings={"profile.processes": None}),
        )
    elif too_close:
        yield _step(
            f"{'; '.join(too_close)}: too close to {judging.required_text} to decide here, even by {MOST_OCCASIONS} "
            "runs. Treat it as no gain, or set another compare.min_speedup."
        )


def _step(text: str, question: OpenQuestion | None = None) -> NextStep:
    return NextStep(capitalized(text), question)


def _what(measure: str) -> Literal["training", "inference"]:
    return "training" if measure == TRAIN else "inference"


def _next_word(occasion: str | None) -> str:
    """A word for another occasion: the next number, or the first."""
    number = int(occasion) if occasion is not None and occasion.isdecimal() else 1
    return str(number + 1)


def _times(speedup: Speedup, occasions: int | None, judging: Judging) -> int | None:
    """How many times as long a run settles a ratio; None where none does, or where half of that in occasions does.

    Where this run by itself decides, `profile` would end it as early as before, whatever is asked for.
    """
    required, within = judging.params.min_speedup, speedup.within_run
    if speedup.earlier or judging.side(within) == "below" or within.p_below(required) <= judging.alpha:
        return None
    needed = times_as_long(speedup, required)
    if needed is None or needed > MOST_TIMES or (occasions and needed > 2 * occasions):
        return None
    return max(2, math.ceil(needed))


def _open_ratios(measure: str, case: Case) -> Iterator[tuple[str, Speedup]]:
    """The speed-up and the factor of the precision, where it is open on which side of the required ratio they are."""
    judging, label, speedup = case.judging, timed_label(measure), case.speedups[measure]
    if measure == TRAIN and case.is_bounded:
        return
    precision = case.factors[measure].precision if measure in case.factors else None
    for name, ratio in ((label, speedup), (f"{label}, what the precision itself brings", precision)):
        if ratio is not None and judging.side(ratio) != "below" and ratio.p_below(case.min_speedup) > judging.alpha:
            yield name, ratio


def _so_far(speedup: Speedup, judging: Judging) -> str:
    if judging.side(speedup) == "above":
        return f"{ratio_text(speedup)} is above {judging.required_text} alone, but not together with the other verdicts"
    return f"{speedup.ratio:.2f}×, anywhere from {end_text(speedup.low)}× to {end_text(speedup.high)}×"


def _minutes_text(minutes: float) -> str:
    return f"about {max(1, math.ceil(minutes))} min" if minutes < 100 else f"about {minutes / 60:.1f} hours"


def _rounded(value: float, direction: Callable[[float], int], digits: int) -> float:
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    step = step if digits == 1 else max(step, 1)
    return direction(value / step) * step


def _quality(measures: Sequence[str], case: Case) -> Iterator[NextStep]:
    """What settles the quality, where the speed does not point to `reject` by itself."""
    factors = case.factors
    fast = [
        measure
        for measure in measures
        if min(case.speedups[measure].ratio, *(f.precision.ratio for f in [factors.get(measure)] if f), math.inf)
        >= case.min_speedup
    ]
    if TRAIN in fast and case.quality is not None:
        yield from _quality_steps("", case.quality, case)
    if set(fast) - {TRAIN} and case.same_weights is not None:
        whose = f" with the weights of {case.judging.study.baseline.variant} in {case.variant}, for inference,"
        yield from _quality_steps(whose, case.same_weights, case)


def _quality_steps(whose: str, change: QualityChange, case: Case) -> Iterator[NextStep]:
    judging = case.judging
    scale, margin = judging.scale, judging.margin
    if change.p_loss(margin) <= judging.alpha or change.outcome(margin) == "refuted":
        return
    if (impossible := too_few_of(change, judging)) is not None:
        yield NextStep(f"{impossible}.")
        return
    conclusion = f"the loss may be more than {scale.margin_text}"
    if change.outcome(margin) == "shown":
        conclusion = f"alone this shows a loss of at most {scale.margin_text}, but not together with the other verdicts"
    examples, needed, reason = judging.study.task.examples_word, examples_needed(change, margin), change.reason(margin)
    score = f"{capitalized(scale.name)}{whose} changes by {scale.signed(change.delta)}{scale.short_points}"
    text = f"{score} ({scale.interval(change)}): {conclusion}"
    times = math.inf if needed is None else needed / change.examples
    if times <= MOST_EXAMPLES:
        more = f"{needed:,} test {examples} instead of {change.examples:,}"
        if change.seeds > 1 and needed != change.fewest_examples:
            more += f", with {math.ceil(times)} times as many train.seeds,"
        question = OpenQuestion(text=f"{scale.name} of {case.short_name} ({needed:,} test {examples})")
        yield NextStep(f"{text}. About {more} would settle it.", question)
    elif reason:
        question = OpenQuestion(text=f"{scale.name} of {case.short_name} (more test {examples})")
        yield NextStep(f"{text}, because {reason}. Use more test {examples}.", question)
    else:
        advice = "It is too close to the margin to decide: raise compare.quality_margin if you can accept that."
        yield NextStep(f"{text}. {advice}")


def too_few_of(change: QualityChange, judging: Judging) -> str | None:
    """A line if the test set can never show the margin of a 0/1 score, with one number for the report; else None."""
    if not isinstance(change, BinaryChange):
        return None
    margin, verdicts = judging.margin, judging.number_of_tests
    planned = max((examples_needed(item, margin) or 0 for item in judging.changes), default=0)
    return too_few_examples(change.examples, judging.study.score_name, margin, change.seeds, verdicts, planned)
