"""The comparison as numbers: comparison.json, metrics.json, and the metrics and tags of the `compare` run."""

from __future__ import annotations

from typing import Any, TypeVar

from stages.compare.comparison import LARGEST_BATCH, PEAK_MEMORY, TRAIN, Candidate, Comparison
from stages.compare.explain.layer_diff import gained, lost
from stages.compare.gate import gate_state
from stages.compare.report.next_steps import next_steps, quality_sample_size
from stages.compare.report.text import verdict_sentence
from stages.compare.training_curves import time_to_accuracy
from stages.files import CONTROL
from stages.results.artifact import Record
from stages.results.comparison import (
    CandidateResult,
    ComparisonResult,
    ControlResult,
    OpChangeResult,
    QualityResult,
    SpeedupResult,
    TimeToAccuracyResult,
)
from stages.results.study import VariantResult
from stages.stats.quality import QualityChange
from stages.stats.speedup import CONFIDENCE

SCORE = "accuracy"

_Record = TypeVar("_Record", bound=Record)


def comparison_result(comparison: Comparison) -> ComparisonResult:
    """The content of `comparison.json`."""
    return ComparisonResult(
        baseline=comparison.study.baseline.variant,
        environment=comparison.study.environment,
        control={measure: _record(ControlResult, ratio) for measure, ratio in comparison.control.items()},
        noise_floor={measure: ratio.noise_floor for measure, ratio in comparison.control.items()},
        min_speedup=comparison.params.min_speedup,
        gate=gate_state(comparison),
        time_to_accuracy=_time_to_accuracy(comparison),
        baseline_reasons=comparison.baseline_reasons or None,
        candidates={item.variant: _candidate(item, comparison) for item in comparison.candidates},
    )


def dvc_metrics(comparison: Comparison, result: ComparisonResult) -> dict[str, dict[str, float]]:
    """The content of `metrics.json`: numbers by variant, so that each line of `dvc metrics diff` begins with it.

    The noise floor is under `_control`, which is not a valid name of a variant. What does not apply is absent.
    """
    numbers = {item.variant: _own_metrics(item) | _seconds(result, item.variant) for item in comparison.study.variants}
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
    """Tags of the `compare` run: the verdict on each candidate and measure, and the state of the gate if it is set."""
    verdicts = {
        f"{verdict_key(measure)}.{name}": verdict
        for name, candidate in result.candidates.items()
        for measure, verdict in candidate.verdicts.items()
    }
    return verdicts | ({"gate": result.gate} if result.gate else {})


def candidate_metrics(candidate: CandidateResult) -> dict[str, float]:
    """Speed-ups and quality of one candidate with the ends of their intervals, and memory saved; flat."""
    flat: dict[str, float] = {}
    for measure, speedup in (candidate.speedup or {}).items():
        name = f"speedup_{measure}"
        flat |= {name: speedup.ratio, f"{name}_low": speedup.low, f"{name}_high": speedup.high}
    if (quality := candidate.quality) is not None:
        name = f"{quality.name}_delta"
        flat |= {name: quality.delta, f"{name}_low": quality.low, f"{name}_high": quality.high}
    if (peak := candidate.peak_memory_mib) is not None:
        flat["memory_saved_mib"] = peak.baseline - peak.candidate
    return flat


def verdict_key(measure: str) -> str:
    """The key of a measure's verdict in comparison.json, and the beginning of its tag in MLflow."""
    return "verdict" if measure == TRAIN else f"verdict_{measure}"


def _own_metrics(variant: VariantResult) -> dict[str, float]:
    """What is known of a variant without a comparison."""
    numbers = {} if variant.mean_test_accuracy is None else {"test_accuracy": variant.mean_test_accuracy}
    return numbers | ({"step_time_ms_p50": variant.profile.metrics["step_time_ms/p50"]} if variant.profile else {})


def _seconds(result: ComparisonResult, variant: str) -> dict[str, float]:
    seconds = result.time_to_accuracy.time_to_accuracy_s if result.time_to_accuracy else {}
    return {"time_to_accuracy_s": seconds[variant]} if variant in seconds else {}


def _time_to_accuracy(comparison: Comparison) -> TimeToAccuracyResult | None:
    found = time_to_accuracy(comparison.study.variants)
    if found is None:
        return None
    return TimeToAccuracyResult(val_accuracy=found.target, time_to_accuracy_s=found.means_s)


def _candidate(candidate: Candidate, comparison: Comparison) -> CandidateResult:
    profile = candidate.result.profile
    speedups = {
        measure: _record(SpeedupResult, ratio, confidence=CONFIDENCE) for measure, ratio in candidate.speedups.items()
    }
    operations = {
        side: tuple(_record(OpChangeResult, change) for change in select(candidate.op_changes))
        for side, select in (("gained", gained), ("lost", lost))
    }
    return CandidateResult(
        speedup=speedups or None,
        quality=_quality(candidate.quality, comparison.params.quality_margin) if candidate.quality else None,
        limit=None if candidate.limit is None else {TRAIN: candidate.limit},
        sentence=verdict_sentence(candidate, comparison),
        next_steps=next_steps(candidate, comparison) or None,
        reasons=candidate.reasons,
        peak_memory_mib=comparison.before_after(PEAK_MEMORY, candidate),
        max_batch_size=comparison.before_after(LARGEST_BATCH, candidate),
        same_weights=profile.summary.same_weights if profile else None,
        operations={side: changes for side, changes in operations.items() if changes} or None,
        **{verdict_key(measure): verdict for measure, verdict in candidate.verdicts.items()},
    )


def _quality(change: QualityChange, margin: float) -> QualityResult:
    sample_size = quality_sample_size(change, margin) or None
    outcome = change.outcome(margin)
    return _record(QualityResult, change, name=SCORE, margin=margin, outcome=outcome, sample_size=sample_size)


def _record(kind: type[_Record], source: object, **values: Any) -> _Record:
    """A record with these values; the other fields are the attributes of `source` with the same names."""
    fields = {name: getattr(source, name) for name in kind.model_fields if name not in values}
    return kind(**fields, **values)
