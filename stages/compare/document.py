"""The comparison as numbers: comparison.json, metrics.json, and the metrics and tags of the `compare` run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from stages.compare.comparison import LARGEST_BATCH, PEAK_MEMORY, STARTUP, TRAIN, Candidate, Comparison, Factors
from stages.compare.explain.layer_diff import gained, lost
from stages.compare.gate import gate_state
from stages.compare.report.next_steps import next_steps, quality_sample_size
from stages.compare.report.tables import metric_values, train_times_s
from stages.compare.report.text import notes
from stages.compare.report.verdicts import verdict_sentence
from stages.compare.training_curves import time_to_score
from stages.files import CONTROL
from stages.results.artifact import Record
from stages.results.comparison import (
    CandidateResult,
    ComparisonResult,
    ControlResult,
    FactorsResult,
    OpChangeResult,
    QualityResult,
    RatioResult,
    ReconciliationResult,
    SameWeights,
    SpeedupResult,
    StateResult,
    TimeToAccuracyResult,
    VerdictTestResult,
)
from stages.results.study import Study, VariantResult
from stages.stats.quality import QualityChange
from stages.stats.speedup import CONFIDENCE

_Record = TypeVar("_Record", bound=Record)


def comparison_result(comparison: Comparison) -> ComparisonResult:
    """The content of `comparison.json`."""
    return ComparisonResult(
        baseline=comparison.study.baseline.variant,
        environment=comparison.study.environment,
        control={
            measure: _record(
                ControlResult,
                ratio,
                differs=measure in comparison.differing,
                throttled=comparison.throttled.get(measure),
            )
            for measure, ratio in comparison.control.items()
        },
        noise_floor={measure: ratio.noise_floor for measure, ratio in comparison.control.items()},
        min_speedup=comparison.params.min_speedup,
        speed_only=comparison.speed_only or None,
        gate=gate_state(comparison),
        time_to_accuracy=_time_to_accuracy(comparison),
        baseline_reasons=comparison.baseline_reasons or None,
        train_time_s=train_times_s(comparison.study.variants) or None,
        startup_s=metric_values(comparison.study.variants, STARTUP) or None,
        notes=notes(comparison) or None,
        candidates={item.variant: _candidate(item, comparison) for item in comparison.candidates},
    )


def dvc_metrics(comparison: Comparison, result: ComparisonResult) -> dict[str, dict[str, float]]:
    """The content of `metrics.json`: numbers by variant, so that each line of `dvc metrics diff` begins with it.

    The noise floor is under `_control`, which is not a valid name of a variant. What does not apply is absent.
    """
    name = comparison.study.score_name
    numbers = {
        item.variant: _own_metrics(item, name) | _seconds(result, item.variant) for item in comparison.study.variants
    }
    for name, candidate in result.candidates.items():
        numbers[name] |= candidate_metrics(candidate)
    numbers[CONTROL] = {f"noise_floor_{measure}": floor for measure, floor in result.noise_floor.items()}
    return {name: found for name, found in numbers.items() if found}


def tracking_metrics(result: ComparisonResult) -> dict[str, float]:
    """Metrics of the `compare` run in MLflow."""
    metrics = {f"noise_floor/{measure}": floor for measure, floor in result.noise_floor.items()}
    for name in (result.baseline, *result.candidates):
        metrics |= {f"{name}/{key}": value for key, value in _seconds(result, name).items()}
    for name, candidate in result.candidates.items():
        metrics |= {f"{name}/{key}": value for key, value in candidate_metrics(candidate).items()}
    return metrics


def tracking_tags(result: ComparisonResult) -> dict[str, str]:
    """Tags of the `compare` run: the verdict on each candidate and measure, whether speed only, and the gate's state.

    What does not apply is absent.
    """
    verdicts = {
        f"{verdict_key(measure)}.{name}": verdict
        for name, candidate in result.candidates.items()
        for measure, verdict in candidate.verdicts.items()
    }
    speed_only = {"speed_only": "true"} if result.speed_only else {}
    return verdicts | speed_only | ({"gate": result.gate} if result.gate else {})


def candidate_metrics(candidate: CandidateResult) -> dict[str, float]:
    """Speed-ups, their factors and quality of a candidate with the ends of their intervals, and memory saved; flat."""
    flat: dict[str, float] = {}
    for measure, speedup in (candidate.speedup or {}).items():
        flat |= _with_ends(f"speedup_{measure}", speedup.ratio, speedup)
    for measure, factors in (candidate.factors or {}).items():
        for name, factor in (("precision", factors.precision), ("settings", factors.settings)):
            flat |= _with_ends(f"speedup_{measure}_{name}", factor.ratio, factor)
    for name, quality in (("", candidate.quality), ("_same_weights", candidate.quality_same_weights)):
        if quality is not None:
            flat |= _with_ends(f"{quality.name}{name}_delta", quality.delta, quality)
    if (peak := candidate.peak_memory_mib) is not None:
        flat["memory_saved_mib"] = peak.baseline - peak.candidate
    return flat


def _with_ends(name: str, value: float, interval: RatioResult | QualityResult) -> dict[str, float]:
    return {name: value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def verdict_key(measure: str) -> str:
    """The key of a measure's verdict in comparison.json, and the beginning of its tag in MLflow."""
    return "verdict" if measure == TRAIN else f"verdict_{measure}"


def _own_metrics(variant: VariantResult, score_name: str) -> dict[str, float]:
    """What is known of a variant without a comparison."""
    numbers = {} if variant.mean_test_score is None else {f"test_{score_name}": variant.mean_test_score}
    return numbers | ({"step_time_ms_p50": variant.profile.metrics["step_time_ms/p50"]} if variant.profile else {})


def _seconds(result: ComparisonResult, variant: str) -> dict[str, float]:
    found = result.time_to_accuracy
    if found is None or variant not in found.time_to_accuracy_s:
        return {}
    return {f"time_to_{found.name}_s": found.time_to_accuracy_s[variant]}


def _time_to_accuracy(comparison: Comparison) -> TimeToAccuracyResult | None:
    found = time_to_score(comparison.study.variants, comparison.study.score_name)
    if found is None:
        return None
    return TimeToAccuracyResult(
        name=comparison.study.score_name, val_accuracy=found.target, time_to_accuracy_s=found.means_s
    )


def _candidate(candidate: Candidate, comparison: Comparison) -> CandidateResult:
    operations = {
        side: tuple(_record(OpChangeResult, change) for change in select(candidate.op_changes))
        for side, select in (("gained", gained), ("lost", lost))
    }
    reconciliation = candidate.reconciliation
    return CandidateResult(
        speedup={measure: _speedup(candidate, measure) for measure in candidate.speedups} or None,
        factors={measure: _factors(found) for measure, found in candidate.factors.items()} or None,
        quality=_quality(candidate.quality, [TRAIN], candidate, comparison),
        quality_same_weights=_quality(
            candidate.quality_same_weights, candidate.verdicts.keys() - {TRAIN}, candidate, comparison
        ),
        limit=None if candidate.limit is None else {TRAIN: candidate.limit},
        waiting=candidate.waiting,
        tests={measure: _record(VerdictTestResult, test) for measure, test in candidate.tests.items()} or None,
        sentence=verdict_sentence(candidate, comparison),
        next_steps=next_steps(candidate, comparison) or None,
        reasons=candidate.reasons,
        peak_memory_mib=comparison.before_after(PEAK_MEMORY, candidate),
        max_batch_size=comparison.before_after(LARGEST_BATCH, candidate),
        same_weights=_same_weights(candidate, comparison.study),
        operations={side: changes for side, changes in operations.items() if changes} or None,
        reconciliation=None if reconciliation is None else _record(ReconciliationResult, reconciliation),
        **{verdict_key(measure): verdict for measure, verdict in candidate.verdicts.items()},
    )


def _speedup(candidate: Candidate, measure: str) -> SpeedupResult:
    states = tuple(_record(StateResult, state) for state in candidate.states.get(measure, ()))
    return _record(SpeedupResult, candidate.speedups[measure], confidence=CONFIDENCE, states=states or None)


def _factors(factors: Factors) -> FactorsResult:
    return FactorsResult(
        settings=_record(RatioResult, factors.settings), precision=_record(RatioResult, factors.precision)
    )


def _quality(
    change: QualityChange | None, measures: Iterable[str], candidate: Candidate, comparison: Comparison
) -> QualityResult | None:
    """The quality that the verdicts on `measures` ask for; with a sample size where one of them is open."""
    if change is None:
        return None
    margin = comparison.margin
    is_open = any(candidate.verdicts[measure] == "inconclusive" for measure in measures)
    sample_size = quality_sample_size(change, margin, comparison.alpha) or None if is_open else None
    return _record(
        QualityResult,
        change,
        name=comparison.study.score_name,
        margin=margin,
        unit="fraction" if change.is_fraction else None,
        outcome=change.outcome(margin),
        reason=change.reason(margin),
        sample_size=sample_size,
    )


def _same_weights(candidate: Candidate, study: Study) -> SameWeights | None:
    """The baseline's weights in the candidate's precision against the baseline's predictions, all seeds together.

    None for tasks that are not `images`, whose predictions are not kept.
    """
    quality, profile = candidate.quality_same_weights, candidate.result.profile
    if quality is None or profile is None or not study.task.is_images:
        return None
    trainings = study.baseline.trainings
    before = np.stack([training.probabilities for training in trainings if training.probabilities is not None])
    after = np.stack([profile.same_weights[training.seed] for training in trainings])
    is_finite = np.isfinite(after).all(axis=2)
    return SameWeights(
        images=quality.examples,
        agreement=float(((before.argmax(axis=2) == after.argmax(axis=2)) & is_finite).mean()),
        max_probability_difference=float(np.abs(after - before)[is_finite].max(initial=0.0)),
        accuracy=quality.candidate,
    )


def _record(kind: type[_Record], source: object, **values: Any) -> _Record:
    """A record with these values; the other fields are the attributes of `source` with the same names."""
    fields = {name: getattr(source, name) for name in kind.model_fields if name not in values}
    return kind(**fields, **values)
