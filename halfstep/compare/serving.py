"""Judges the trained weights in other formats: is one faster than Keras, with the same score?

The verdicts on formats share 5 % of their own, beside that of the verdicts on precisions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from halfstep import files
from halfstep.compare.judging import (
    Judging,
    controls_of,
    quality_change,
    ratio_of,
    speedup_between,
    times_of,
    with_others,
)
from halfstep.compare.quality_document import quality_of
from halfstep.compare.scale import Scale
from halfstep.compare.study import ServedStudy
from halfstep.compare.text import large_ratio_text
from halfstep.compare.verdict import Parts, decide_speed, run_tests, verdicts, void_measures
from halfstep.formats import FORMATS, KERAS
from halfstep.results.comparison import Latency, Quality, ServedRow, Serving, Verdict, VerdictTest
from halfstep.results.serving import Export, Served
from halfstep.stats.quality import QualityChange
from halfstep.stats.speedup import CONFIDENCE, Speedup, shared_repeats
from halfstep.text import batch_size_of, inference_measure, joined

Key = tuple[str, str]  # a variant, and a format in a precision


def serving_of(judging: Judging) -> Serving | None:
    """The part of `comparison.json` on formats; None without any."""
    served = judging.study.served
    if served is None:
        return None
    info, weights = served.info, _weights(judging)
    measures = tuple(map(inference_measure, info.batch_sizes)) if info.timed else ()
    speedups = {name: _speedups(served, name, measures) for name in info.timed if name != KERAS}
    control = _control(served, measures, list(speedups.values()))
    void = void_measures(control)
    changes = {} if judging.study.speed_only else _changes(served, judging)
    judged = _judged(info, weights, speedups)
    all_verdicts, tests = _verdicts(judging, weights, judged, changes, void)
    rows = [
        _row(of_one, speedups, quality_of(changes.get(key), judging), all_verdicts.get(key), tests.get(key))
        for key, of_one in info.by_row.items()
    ]
    first = next(iter(speedups.values()), {})
    best = _best({row.format: row for row in rows if row.is_good}, measures)
    on_cpu = _on_cpu(served)
    return Serving(
        weights=weights,
        threads=info.threads,
        measures=measures,
        keras_ms={measure: speedup.baseline_time_ms for measure, speedup in first.items()},
        control=controls_of(control, void, {}),
        on_cpu=on_cpu or None,
        rows=tuple(rows),
        warnings=served.times[KERAS].summary.protocol.warnings or None if KERAS in served.times else None,
        best=best,
        sentence=_sentence(rows, best, weights, judged, judging, on_cpu),
    )


def _on_cpu(served: ServedStudy) -> tuple[str, ...]:
    """The formats that predict on the CPU, where Keras predicts on a GPU."""
    if KERAS not in served.times or not served.times[KERAS].on_gpu:
        return ()
    arms = {item.format: item.arm for item in served.info.exports if item.arm in served.times}
    return tuple(name for name, arm in arms.items() if not served.times[arm].on_gpu)


def _weights(judging: Judging) -> str:
    """The variant whose weights are judged in the formats: the first one that is adopted for training."""
    adopted = (item.variant for item in judging.candidates if item.verdict == "adopt")
    return next(adopted, judging.study.baseline.variant)


def _speedups(served: ServedStudy, name: str, measures: Sequence[str]) -> dict[str, Speedup]:
    """By measure, time of Keras / time of another arm."""
    before, after = served.times[KERAS], served.times[name]
    return {
        measure: speedup_between(measure, name, before, after)
        for measure in measures
        if shared_repeats(measure, times_of(before), times_of(after)) > 1
    }


def _control(
    served: ServedStudy, measures: Sequence[str], formats: Sequence[Mapping[str, Speedup]]
) -> dict[str, Speedup]:
    """The ratio of Keras to its second copy, by measure."""
    if files.CONTROL not in served.times:
        return {}
    return with_others(_speedups(served, files.CONTROL, measures), formats)


def _changes(served: ServedStudy, judging: Judging) -> dict[Key, QualityChange]:
    """The change of the score from the baseline's predictions by Keras, by variant and format."""
    seeds = len(judging.study.baseline.trainings)
    return {key: quality_change(judging.study, scores) for key, scores in served.scores.items() if len(scores) == seeds}


def _judged(
    info: Served, weights: str, speedups: Mapping[str, Mapping[str, Speedup]]
) -> dict[str, tuple[str, Speedup]]:
    """By format in float32, the first measure of the weights that are judged, and its speed-up."""
    arms = {
        items[0].format: items[0].arm
        for (variant, _), items in info.by_row.items()
        if variant == weights and items[0].policy is None and items[0].refusal is None
    }
    return {name: next(iter(by_measure.items())) for name, arm in arms.items() if (by_measure := speedups.get(arm))}


def _verdicts(
    judging: Judging,
    weights: str,
    judged: Mapping[str, tuple[str, Speedup]],
    changes: Mapping[Key, QualityChange],
    void: Collection[str],
) -> tuple[dict[Key, Verdict], dict[Key, VerdictTest]]:
    """The verdict on each format at the first batch size, for the weights that are judged, and its test."""
    if judging.study.speed_only:
        return {
            (weights, name): decide_speed(speedup, None, judging.params, void=measure in void)
            for name, (measure, speedup) in judged.items()
        }, {}
    parts = {
        (name, measure): Parts(speedup, None, changes[weights, name], judging.margin)
        for name, (measure, speedup) in judged.items()
        if (weights, name) in changes
    }
    tests = run_tests(parts, judging.params)
    all_verdicts = verdicts(parts, tests, void, judging.params)
    return (
        {(weights, name): verdict for (name, _), verdict in all_verdicts.items()},
        {(weights, name): test for (name, _), test in tests.items()},
    )


def _row(
    exports: Sequence[Export],
    speedups: Mapping[str, Mapping[str, Speedup]],
    quality: Quality | None,
    verdict: Verdict | None,
    test: VerdictTest | None,
) -> ServedRow:
    """What is known of one variant in one format; `exports` are of its seeds."""
    first = exports[0]
    refusal = next((item.refusal for item in exports if item.refusal is not None), None)
    if refusal is not None:
        return ServedRow(variant=first.variant, format=first.format, policy=first.policy, refusal=refusal)
    by_measure = speedups.get(first.arm, {})
    latency = {
        measure: Latency(**ratio_of(item), time_ms=item.candidate_time_ms) for measure, item in by_measure.items()
    }
    values = first.model_dump(exclude={"seed"}) | {
        "file": None if first.file is None else (files.SERVE / first.file).as_posix(),
        "difference": max((item.difference for item in exports if item.difference is not None), default=None),
    }
    return ServedRow(**values, latency=latency or None, quality=quality, verdict=verdict, test=test)


def _sentence(
    rows: Sequence[ServedRow],
    best: str | None,
    weights: str,
    judged: Mapping[str, tuple[str, Speedup]],
    judging: Judging,
    on_cpu: Collection[str],
) -> str:
    """What to serve with, in a sentence or two."""
    mine = {row.format: row for row in rows if row.variant == weights and row.policy is None}
    if not judged:
        reasons = [row.refusal for row in mine.values() if row.refusal is not None]
        return f"For inference, keep Keras: {'; '.join(reasons) or 'no other format was timed'}."
    measure, speedup = judged[best or next(iter(judged))]
    if best is None:
        return f"For inference, keep Keras: {_why_none(list(mine.values()), measure, judging)}."
    # the best was picked, so its interval covers the pick
    low, high = speedup.interval(1 - (1 - max(CONFIDENCE, speedup.confidence)) / len(judged))
    places = (" on the CPU", " on the GPU") if best in on_cpu else ("", "")
    text = (
        f"For inference, serve the weights of {weights} with {FORMATS[best].label}{places[0]}: "
        f"{large_ratio_text(speedup.ratio, low, high)} as fast as Keras{places[1]} at batch size "
        f"{batch_size_of(measure)}"
    )
    quality = mine[best].quality
    if quality is None:
        return f"{text}. Nothing is known of its {judging.study.score_name}."
    text += f", and its {quality.name} is the same within {Scale.of(quality).margin_text}"
    others = [row.quality for row in rows if row.name == best and row.variant != weights]
    if others and all(item is not None and item.outcome == "shown" for item in others):
        text += "; the precision of the training does not matter for it"
    return f"{text}."


def _best(good: Mapping[str, ServedRow], measures: Sequence[str]) -> str | None:
    """The fastest format, or one that cannot be told apart from it and comes before it in the table of formats."""
    if not good:
        return None
    times = {name: row.timed[measures[0]] for name, row in good.items()}
    fastest = max(latency.ratio for latency in times.values())
    return next(name for name in FORMATS if name in times and times[name].high >= fastest)


def _why_none(rows: Sequence[ServedRow], measure: str, judging: Judging) -> str:
    """Why no format is good: none is fast enough, or those that are lose too much, or it is not decided."""
    required = f"{judging.params.min_speedup:g}×"
    sides = {row.format: row.timed[measure].side(judging.params.min_speedup) for row in rows if measure in row.timed}
    fast = [row for row in rows if sides.get(row.format) == "above"]
    losing = [row for row in fast if row.quality is not None and row.quality.outcome == "refuted"]
    if losing:
        names = joined([FORMATS[row.format].label for row in losing])
        return f"{names} {'loses' if len(losing) == 1 else 'lose'} more {judging.study.score_name} than the margin"
    if fast:
        names = joined([FORMATS[row.format].label for row in fast])
        return f"of {names} it is not shown that the {judging.study.score_name} stays within the margin"
    if set(sides.values()) == {"below"}:
        return f"no format is {required} as fast"
    return f"no format is shown to be {required} as fast"
