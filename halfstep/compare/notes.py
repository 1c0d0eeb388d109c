"""What limits a judging, in sentences; and the settings in which a candidate differs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from halfstep.compare.case import Judging
from halfstep.compare.explain.waiting import measured_wait
from halfstep.compare.ratio_text import interval_text
from halfstep.results.profile import Profile, largest_move
from halfstep.stats.sample_size import MOST_OCCASIONS
from halfstep.stats.speedup import RUN_SD, Error, final_confidence, occasion_confidence, smallest_above
from halfstep.words.text import (
    TRAIN,
    batch_size_of,
    inference_measure,
    joined,
    measure_label,
    measure_text,
    percent_text,
)

_GRAPHS_FLAG = "--xla_enable_command_buffers_during_profiling"  # of TensorFlow 2.21
CONTROL_NAME = "the second copy of the baseline"


def void_texts(judging: Judging) -> list[str]:
    """Which measures are void, a sentence for each cause."""
    baseline, sizes = judging.study.baseline.variant, judging.study.inference_batch_sizes
    order = [TRAIN, *map(inference_measure, sizes)]
    causes = {
        "The GPU was throttled in too many rounds of": judging.throttled,
        f"The two copies of {baseline} differ by more than noise in": judging.differing,
    }
    void_by_cause = {
        cause: joined([measure_text(measure) for measure in order if measure in measures])
        for cause, measures in causes.items()
    }
    return [f"{cause} {void}, which therefore decides nothing." for cause, void in void_by_cause.items() if void]


def notes(judging: Judging) -> tuple[str, ...]:
    """What limits a judging: void measures, latencies that still fell, what is missing or impossible, assumptions."""
    return (
        *void_texts(judging),
        *_untrained_texts(judging),
        *_control_texts(judging),
        *_occasion_texts(judging),
        *_run_texts(judging),
        *_unsteady_texts(judging),
        *_waiting_texts(judging),
        *_missing_texts(judging),
        *_independence_texts(judging),
        *_training_texts(judging),
        *_traced_texts(judging),
    )


def _untrained_texts(judging: Judging) -> Iterator[str]:
    if names := [case.variant for case in judging.cases if not case.is_trained]:
        yield f"{joined(names)} {'was' if len(names) == 1 else 'were'} timed, and not trained."


def _traced_texts(judging: Judging) -> Iterator[str]:
    """Where a traced step may run otherwise than a plain one, on a GPU (docs/traces.md)."""
    flags = judging.study.environment.get("settings", {}).get("XLA_FLAGS", "")
    for profile in (item.profile for item in judging.study.variants if item.profile is not None):
        in_force = profile.summary.in_force
        is_traced = profile.on_gpu and in_force.xla and not profile.account.empty
        if is_traced and _GRAPHS_FLAG not in f"{flags} {in_force.env}":
            yield "XLA launches no CUDA graphs while traced."
            return


def _training_texts(judging: Judging) -> Iterator[str]:
    """What the settings of a variant change in what is trained, beside its speed."""
    profiles = {item.variant: item.profile for item in judging.study.variants if item.profile is not None}
    for name, profile in profiles.items():
        summary = profile.summary
        if summary.entry.batch_size and summary.entry.learning_rate is None and summary.in_force.learning_rate:
            yield (
                f"{name} trains on batches of {profile.batch_size:,} with a largest learning rate of "
                f"{summary.in_force.learning_rate:g}, in proportion to its batch, with the warm-up of the schedule."
            )
        if summary.in_force.cache_input:
            yield f"{name} keeps the batches of the first epoch: in later ones, shuffling and augmentation repeat."


def _independence_texts(judging: Judging) -> Iterator[str]:
    study = judging.study
    if study.task.script is not None and not study.speed_only:
        yield (
            f"The intervals of {study.score_name} assume that the test examples are independent. Overlapping windows "
            "of one series are not: their intervals are too narrow."
        )


def _unsteady_texts(judging: Judging) -> Iterator[str]:
    """A line on each measure whose latency still fell in a turn, where that moves a speed-up."""
    baseline = judging.baseline
    if baseline is None:
        return
    for measure in baseline.summary.protocol.unsteady:
        ratios = {
            item.variant: (_latency_ratio(measure, baseline, profile), _latency_ratio(measure, baseline, profile, 0.5))
            for item in judging.cases
            if (profile := item.profile) is not None and measure in item.speedups
        }
        if (name := largest_move(ratios)) is not None:
            whole, late = ratios[name]
            yield (
                f"{measure_text(measure).capitalize()} was still getting faster when each measurement ended: read its "
                f"latency as an upper limit. In the later half of the calls, {name} is {late:.2f}× as fast, not "
                f"{whole:.2f}×."
            )


def _latency_ratio(measure: str, before: Profile, after: Profile, skipped: float = 0.0) -> float:
    """Time of one arm / time of another over the counted calls, without this share of the first ones of a turn."""
    means_ms = []
    for profile in (before, after):
        calls = profile.calls[(profile.calls["batch_size"] == batch_size_of(measure)) & profile.calls["counted"]]
        first = calls["call"].min() + skipped * (calls["call"].max() + 1 - calls["call"].min())
        means_ms.append(float(calls["latency_ms"][calls["call"] >= first].mean()))
    return means_ms[0] / means_ms[1]


def _control_texts(judging: Judging) -> Iterator[str]:
    """Gains that the control does not check: they are no larger than what the baseline's two copies may differ by."""
    unchecked: dict[str, list[str]] = {}
    for case in judging.cases:
        for measure, verdict in case.verdicts.items():
            control = judging.control.get(measure)
            if verdict in ("adopt", "faster") and control is not None and case.speedups[measure].ratio <= control.high:
                unchecked.setdefault(measure, []).append(case.variant)
    for measure, names in unchecked.items():
        yield (
            f"The control does not check the gain of {joined(names)} in {measure_text(measure)}: the two copies of "
            f"{judging.study.baseline.variant} may differ by as much there "
            f"({interval_text(judging.control[measure])}). The verdict rests on its own interval."
        )


def _occasion_texts(judging: Judging) -> Iterator[str]:
    """On how many occasions the speed-ups rest, and those that do not count for a measure."""
    earlier = judging.study.earlier
    if not earlier.by_word or judging.baseline is None:
        return
    measures = list(dict.fromkeys(measure for item in judging.cases for measure in item.speedups))
    count = [word for word in earlier.by_word if any(word not in earlier.left_out(measure) for measure in measures)]
    if count:
        words, looks = joined([_occasion_name(word) for word in count]), len(count)
        yield (
            f"Speed-ups are means over this measurement, {_occasion_name(judging.baseline.summary.protocol.occasion)}, "
            f"and {words}: their intervals contain what the measurements differ by. All times are of this one. "
            "Each measurement is another look, so the intervals of this one, "
            f"number {looks + 1} of {MOST_OCCASIONS} at most, are of {100 * occasion_confidence(looks):.4g} %."
        )
    for measure in measures:
        if left_out := [_occasion_name(word) for word in earlier.left_out(measure)]:
            yield (
                f"In {measure_text(measure)}, {joined(left_out)} {'is' if len(left_out) == 1 else 'are'} left out: the "
                f"two copies of {judging.study.baseline.variant} differed by more than noise then, or the GPU was "
                "throttled."
            )


def _occasion_name(word: str | None) -> str:
    return "the one without a name" if word is None else f"`{word}`"


def _run_texts(judging: Judging) -> Iterator[str]:
    """The smallest speed-ups that would have been enough in this run, where open, and in one without noise."""
    required, smallest = judging.params.min_speedup, dict[str, float]()
    for candidate in judging.cases:
        for measure, speedup in candidate.speedups.items():
            if candidate.verdicts[measure] == "inconclusive" and measure not in judging.void:
                needed_ratio = required * speedup.ratio / speedup.low if speedup.low else math.inf
                smallest[measure] = min(needed_ratio, smallest.get(measure, math.inf))
    if not smallest:
        return
    ratios = {measure: f"{ratio:.2f}" if ratio < 10 else "over 10" for measure, ratio in smallest.items()}
    enough = joined([f"{ratio}× ({measure_label(measure)})" for measure, ratio in ratios.items()])
    least = smallest_above(required, Error(0.0, math.inf).with_known(2 * RUN_SD**2), final_confidence(0))
    yield (
        f"With the noise of this run, {required:g}× counts as shown from a measured {enough} on; on a silent machine "
        f"from {least:.2f}× on, because whole runs differ by about {percent_text(RUN_SD)}."
    )


def _waiting_texts(judging: Judging) -> Iterator[str]:
    """A line on each variant whose steps waited less than nothing for their input; no cause and no bound rest on it."""
    for item in judging.study.variants:
        wait = measured_wait(item.profile.input_rounds) if item.profile is not None else None
        if wait is not None and wait.is_impossible:
            yield (
                f"How long a training step of {item.variant} waits for its input is not known: on a cached batch it "
                f"took {percent_text(-wait.share)} longer ({-100 * wait.high:.0f} to {percent_text(-wait.low)}) "
                "than on the input pipeline, which is impossible."
            )


def _missing_texts(judging: Judging) -> Iterator[str]:
    """A line on traces that are missing; no reason rests on those."""
    study = judging.study
    profiles = {item.variant: item.profile for item in study.variants} | {CONTROL_NAME: study.control}
    missing = [
        name for name, profile in profiles.items() if profile and not any("profiler/" in key for key in profile.metrics)
    ]
    if missing:
        yield f"{joined(missing)} {'has' if len(missing) == 1 else 'have'} no trace, so no reasons come from one."
