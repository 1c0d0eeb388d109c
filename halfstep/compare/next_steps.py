"""What would settle an inconclusive verdict, and at what cost, in sentences that name the parameter to change."""

from __future__ import annotations

import math
from collections.abc import Iterator

from halfstep.compare.judging import JudgedCandidate, Judging
from halfstep.compare.text import ratio_text
from halfstep.compare.verdict import is_bounded
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.quality import QualityChange
from halfstep.stats.sample_size import examples_needed, occasions_needed, times_as_long, too_few_examples
from halfstep.stats.speedup import Speedup
from halfstep.text import LONGER, MEASURE_AGAIN, TRAIN, capitalized, end_text, joined, measure_text, timed_label

MOST_PROCESSES = 50  # that profile.processes allows
MOST_TIMES = MOST_OCCASIONS = 10  # as long, or as often, as anyone measures
_FEW_REPEATS = 2  # whose intervals reach 28 standard errors to each side (t distribution, 97.7 %)
MOST_EXAMPLES = 100  # times as many as there are


def next_steps(candidate: JudgedCandidate, judging: Judging) -> tuple[str, ...]:
    """A sentence for each open question of a candidate; none if every verdict is decided."""
    measures = [measure for measure, verdict in candidate.verdicts.items() if verdict == "inconclusive"]
    if not candidate.speedups:
        return tuple(reason.advice for reason in candidate.reasons if reason.code == "arm_failed")
    void = [measure for measure in measures if measure in judging.void]
    others = [measure for measure in measures if measure not in judging.void]
    return (
        *_stop_others(measures, judging),
        *_measure_again(void, judging),
        *_evaluate_again(candidate, judging),
        *_speed(candidate, others, judging),
        *_quality(candidate, others, judging),
    )


def _stop_others(measures: list[str], judging: Judging) -> Iterator[str]:
    """That other programs disturbed the timing, which comes before all other advice."""
    profile = judging.study.baseline.profile
    if measures and profile is not None and (busy := profile.summary.protocol.busy) is not None:
        yield f"{busy}."


def _measure_again(void: list[str], judging: Judging) -> Iterator[str]:
    if throttled := [measure_text(measure) for measure in void if measure in judging.throttled]:
        yield (
            f"The GPU was throttled in too many rounds of {joined(throttled)}: look at its cooling and power supply, "
            f"then measure again: `{MEASURE_AGAIN}`."
        )
    if differing := [measure_text(measure) for measure in void if measure in judging.differing]:
        yield (
            f"The two copies of {judging.study.baseline.variant} differ by more than noise in {joined(differing)}: "
            f"stop other programs, then measure again: `{MEASURE_AGAIN}`."
        )


def _evaluate_again(candidate: JudgedCandidate, judging: Judging) -> Iterator[str]:
    if any(reason.code == "same_weights_missing" for reason in candidate.reasons):
        yield (
            f"The weights of {judging.study.baseline.variant} were not evaluated in the precision of "
            f"{candidate.variant}: measure again: `{MEASURE_AGAIN}`. The warnings of the report have the cause."
        )


def _speed(candidate: JudgedCandidate, measures: list[str], judging: Judging) -> Iterator[str]:
    """What would settle each open ratio, and how to measure as long as the one that takes longest."""
    longest, too_close = 0, []
    for label, speedup in [item for measure in measures for item in _open_ratios(candidate, measure, judging)]:
        if (times := _times(speedup, judging)) is not None:
            yield _longer(label, speedup, times, judging)
            longest = max(longest, times)
        elif (number := _occasions(speedup, judging)) is not None:
            yield _another_occasion(label, speedup, number, judging)
        else:
            too_close.append(f"{label}, {ratio_text(speedup)}")
    if longest:
        yield _how(longest, judging)
    if too_close:
        yield _too_close(too_close, judging)


def _times(speedup: Speedup, judging: Judging) -> int | None:
    """How many times as long a run settles a ratio; None where none does, or where half of that in occasions does.

    Where this run by itself decides, `profile` would end it as early as before, whatever is asked for.
    """
    required, within = judging.params.min_speedup, speedup.within_run
    if speedup.earlier or within.side(required) == "below" or within.p_below(required) <= judging.alpha:
        return None
    needed, others = times_as_long(speedup, required), _occasions(speedup, judging)
    if needed is None or needed > MOST_TIMES or (others and needed > 2 * others):
        return None
    return max(2, math.ceil(needed))


def _occasions(speedup: Speedup, judging: Judging) -> int | None:
    """Occasions that settle a ratio, those so far included; None if there is no such number."""
    needed = occasions_needed(speedup, judging.params.min_speedup)
    return None if needed is None or needed > MOST_OCCASIONS else max(math.ceil(needed), speedup.occasions + 1)


def _open_ratios(candidate: JudgedCandidate, measure: str, judging: Judging) -> Iterator[tuple[str, Speedup]]:
    """The speed-up and the factor of the precision, where it is open on which side of the required ratio they are."""
    required, label = judging.params.min_speedup, timed_label(measure)
    precision, bound = candidate.precision(measure), candidate.waiting.bound if candidate.waiting else None
    if measure == TRAIN and is_bounded(candidate.speedups[measure], bound, judging.params):
        return
    named = {label: candidate.speedups[measure], f"{label}, what the precision itself brings": precision}
    for name, speedup in named.items():
        if speedup is not None and speedup.side(required) != "below" and speedup.p_below(required) > judging.alpha:
            yield name, speedup


def _longer(label: str, speedup: Speedup, times: int, judging: Judging) -> str:
    """Such as `Training step: 1.03×, anywhere from 0.99 to 1.07. Measuring about 3 times as long … would …`."""
    minutes = judging.minutes(speedup.processes * times)
    takes = "" if minutes is None else f" ({_minutes_text(minutes)})"
    return capitalized(
        f"{label}: {_so_far(speedup, judging)}. Measuring about {times} times as long{takes} would probably settle it."
    )


def _another_occasion(label: str, speedup: Speedup, number: int, judging: Judging) -> str:
    """How to measure on another occasion, and how many there would be in all."""
    runs = "one run" if speedup.occasions == 1 else f"{speedup.occasions} runs"
    return capitalized(
        f"{label}: {_so_far(speedup, judging)} after {runs}. A longer run cannot settle it, because whole runs differ; "
        f"about {number} runs in all could. Set profile.occasion to another word and run `dvc repro`: the runs so far "
        "are kept, and the verdict is on all of them."
    )


def _so_far(speedup: Speedup, judging: Judging) -> str:
    required = judging.params.min_speedup
    if speedup.side(required) == "above":
        return f"{ratio_text(speedup)} is above {required:g}× alone, but not together with the other verdicts"
    return f"{speedup.ratio:.2f}×, anywhere from {end_text(speedup.low)}× to {end_text(speedup.high)}×"


def _minutes_text(minutes: float) -> str:
    return f"about {max(1, math.ceil(minutes))} min" if minutes < 100 else f"about {minutes / 60:.1f} hours"


def _too_close(texts: list[str], judging: Judging) -> str:
    profile = judging.study.baseline.profile
    if profile is not None and profile.summary.protocol.processes <= _FEW_REPEATS:
        return capitalized(
            f"{'; '.join(texts)}: so few repeats cannot tell noise from a gain. Leave profile.processes empty, or "
            "set it to 4 or more, and run `dvc repro`."
        )
    return capitalized(
        f"{'; '.join(texts)}: too close to {judging.params.min_speedup:g}× to decide here, even by {MOST_OCCASIONS} "
        "runs. Treat it as no gain, or set another compare.min_speedup."
    )


def _how(times: int, judging: Judging) -> str:
    """Which parameters to change to measure so many times as long."""
    profile = judging.study.baseline.profile
    assert profile is not None, "there are speed-ups"
    protocol = profile.summary.protocol
    changes = [
        f"profile.processes to {min(times * protocol.processes, MOST_PROCESSES)}",
        f"profile.max_seconds to about {_rounded_up(protocol.timing_seconds * times)}",
        f"profile.target_precision to {_rounded_down(protocol.target_precision / math.sqrt(times)):g}",
    ]
    return f"{LONGER} set {joined(changes)}."


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
        of_weights = f" with the weights of {judging.study.baseline.variant} in {candidate.variant}, for inference,"
        changes[of_weights] = candidate.quality_same_weights
    sentences = [text for whose, change in changes.items() for text in _quality_sentences(whose, change, judging)]
    yield from dict.fromkeys(sentences)  # a test set that is too small is too small for both


def _quality_sentences(whose: str, change: QualityChange, judging: Judging) -> Iterator[str]:
    scale, margin, alpha = judging.scale, judging.margin, judging.alpha
    conclusion = f"the loss may be more than {scale.margin_text}"
    if change.outcome(margin) == "shown":
        conclusion = f"alone this shows a loss of at most {scale.margin_text}, but not together with the other verdicts"
    if change.p_loss(margin) <= alpha or change.outcome(margin) == "refuted":
        return
    if (impossible := too_few_of(change, judging)) is not None:
        yield f"{impossible}."
        return
    examples, needed = judging.study.task.examples_word, examples_needed(change, margin)
    score = f"{capitalized(scale.name)}{whose} changes by {scale.signed(change.delta)}{scale.short_points}"
    text = f"{score} ({scale.interval(change)}): {conclusion}"
    reason = change.reason(margin)
    times = None if needed is None else needed / change.examples
    if times is not None and times <= MOST_EXAMPLES:
        more = f"{needed:,} test {examples} instead of {change.examples:,}"
        if change.seeds > 1 and needed != change.fewest_examples:
            more += f", with {math.ceil(times)} times as many train.seeds,"
        yield f"{text}. About {more} would settle it."
    elif reason:
        yield f"{text}, because {reason}. Use more test {examples}."
    else:
        yield f"{text}. It is too close to the margin to decide: raise compare.quality_margin if you can accept that."


def too_few_of(change: QualityChange, judging: Judging) -> str | None:
    """A line if the test set can never show the margin of a 0/1 score, with one number for the report; else None."""
    if not isinstance(change, BinaryChange):
        return None
    margin, verdicts = judging.margin, judging.number_of_tests
    changes = [item for each in judging.candidates for item in (each.quality, each.quality_same_weights)]
    planned = [examples_needed(item, margin) or 0 for item in changes if item is not None]
    return too_few_examples(change.examples, judging.study.score_name, margin, change.seeds, verdicts, max(planned))
