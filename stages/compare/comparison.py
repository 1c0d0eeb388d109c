"""Compares every candidate with the baseline: intervals, verdicts and reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stages.compare.compatibility import check_profiles, check_trainings
from stages.compare.explain import arm_failed, explain, explain_profile
from stages.compare.explain.evidence import Evidence
from stages.compare.explain.layer_diff import OpChange, op_changes
from stages.compare.verdict import decide
from stages.params import CompareParams
from stages.results.comparison import BeforeAfter, Reason, Verdict
from stages.results.profile import Profile
from stages.results.study import Study, VariantResult
from stages.stats.quality import QualityChange
from stages.stats.speedup import Speedup, inference_speedup, train_speedup

TRAIN = "train"
PEAK_MEMORY, LARGEST_BATCH = "memory/peak_mib", "memory/max_batch_size"  # metrics of a profile


@dataclass(frozen=True)
class Candidate:
    """One candidate against the baseline. Measures are named `train` and `inference_b<n>`, in that order.

    If a training failed there is nothing to compare: no speed-ups, no quality, and every verdict is `inconclusive`.

    Attributes:
        limit: best speed-up of training that the baseline's trace allows; None if unknown.
    """

    result: VariantResult
    verdicts: dict[str, Verdict]
    reasons: tuple[Reason, ...]
    speedups: dict[str, Speedup] = field(default_factory=dict)
    quality: QualityChange | None = None
    limit: float | None = None
    op_changes: tuple[OpChange, ...] = ()

    @property
    def variant(self) -> str:
        """Name of the variant."""
        return self.result.variant

    @property
    def verdict(self) -> Verdict:
        """The verdict on training."""
        return self.verdicts[TRAIN]


@dataclass(frozen=True)
class Comparison:
    """All candidates against the baseline; `control` has the ratios of the baseline to its own second copy (A/A)."""

    study: Study
    params: CompareParams
    control: dict[str, Speedup]
    candidates: tuple[Candidate, ...]
    baseline_reasons: tuple[Reason, ...] = ()

    @property
    def adopted(self) -> tuple[Candidate, ...]:
        """Candidates that are adopted for training."""
        return tuple(candidate for candidate in self.candidates if candidate.verdict == "adopt")

    @property
    def failed(self) -> tuple[VariantResult, ...]:
        """Variants with a training that failed, the baseline included."""
        return tuple(result for result in self.study.variants if result.failures)

    def before_after(self, metric: str, candidate: Candidate) -> BeforeAfter | None:
        """A metric of the baseline's and of a candidate's profile; None unless both have it."""
        before, after = self.study.baseline.profile, candidate.result.profile
        if before is None or after is None or metric not in before.metrics or metric not in after.metrics:
            return None
        return BeforeAfter(baseline=before.metrics[metric], candidate=after.metrics[metric])


def compare(study: Study, params: CompareParams) -> Comparison:
    """Compares every candidate of a study with its baseline.

    Raises:
        ComparisonError: variants were not trained or measured under the same conditions, or not measured together.
    """
    check_trainings(study)
    check_profiles(study)
    baseline = study.baseline.profile
    control = _speedups(study, baseline, study.control) if baseline and study.control else {}
    candidates = tuple(_compare_variant(study, result, control, params) for result in study.candidates)
    baseline_reasons = explain_profile(baseline, study.environment) if baseline else ()
    return Comparison(study, params, control, candidates, baseline_reasons)


def _compare_variant(
    study: Study, result: VariantResult, control: dict[str, Speedup], params: CompareParams
) -> Candidate:
    baseline = study.baseline
    if baseline.profile is None or result.profile is None:
        failures = [arm_failed(result)] if result.failures else []
        failures += [arm_failed(baseline, role="baseline")] if baseline.failures else []
        measures = [TRAIN, *map(inference_measure, study.inference_batch_sizes)]
        return Candidate(result, dict.fromkeys(measures, "inconclusive"), tuple(failures))
    speedups = _speedups(study, baseline.profile, result.profile)
    quality = QualityChange(_correct(study, baseline), _correct(study, result))
    verdicts = {name: decide(ratio, control[name].noise_floor, quality, params) for name, ratio in speedups.items()}
    evidence = Evidence(
        baseline=baseline.profile,
        candidate=result.profile,
        trainings=result.trainings,
        speedup=speedups[TRAIN],
        environment=study.environment,
        min_speedup=params.min_speedup,
        classes=len(study.data.classes),
    )
    changes = op_changes(baseline.profile, result.profile)
    return Candidate(result, verdicts, explain(evidence), speedups, quality, evidence.limit, changes)


def inference_measure(batch_size: int) -> str:
    """Name of the measure of inference at a batch size."""
    return f"inference_b{batch_size}"


def _speedups(study: Study, baseline: Profile, other: Profile) -> dict[str, Speedup]:
    confidence = baseline.summary.protocol.confidence
    ratios = {TRAIN: train_speedup(baseline.rounds, other.rounds, confidence)}
    for size in study.inference_batch_sizes:
        ratios[inference_measure(size)] = inference_speedup(baseline.calls, other.calls, size, confidence)
    return ratios


def _correct(study: Study, result: VariantResult) -> NDArray[np.bool_]:
    """Which test images each training classifies correctly, boolean `(seeds, images)`."""
    return np.stack([training.predicted == study.labels for training in result.trainings])
