"""Puts it together: every candidate against the baseline, with intervals, verdicts and reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stages.compare.arms import Arm, Profile, Study
from stages.compare.evidence import Measurements, Reason
from stages.compare.operations import OperationChange, operation_changes
from stages.compare.reasons import arm_failed, explain, explain_profile
from stages.compare.statistics import AccuracyChange
from stages.compare.verdict import Verdict, decide
from stages.params import CompareParams
from stages.speedup import Speedup, inference_speedup, train_speedup

TRAIN = "train"


@dataclass(frozen=True)
class Candidate:
    """One candidate against the baseline. Measures are named `train` and `inference_b<n>`, in that order.

    Where an arm failed there is nothing to compare: no speed-ups, no accuracy, every verdict `inconclusive`.
    `limit` is the best speed-up of training that the baseline's own trace allows; None where it cannot be told.
    """

    arm: Arm
    verdicts: dict[str, Verdict]
    reasons: tuple[Reason, ...]
    speedups: dict[str, Speedup] = field(default_factory=dict)
    accuracy: AccuracyChange | None = None
    limit: float | None = None
    operation_changes: tuple[OperationChange, ...] = ()

    @property
    def variant(self) -> str:
        """Name of the variant."""
        return self.arm.variant

    @property
    def verdict(self) -> Verdict:
        """The verdict on training."""
        return self.verdicts[TRAIN]


@dataclass(frozen=True)
class Comparison:
    """All candidates against the baseline. `noise` holds the ratios of the baseline to its own second copy."""

    study: Study
    params: CompareParams
    noise: dict[str, Speedup]
    candidates: tuple[Candidate, ...]
    baseline_reasons: tuple[Reason, ...] = ()

    @property
    def adopted(self) -> tuple[Candidate, ...]:
        """Candidates that are adopted for training."""
        return tuple(candidate for candidate in self.candidates if candidate.verdict == "adopt")

    @property
    def failed_arms(self) -> tuple[Arm, ...]:
        """Arms with a training that failed, the baseline among them."""
        return tuple(arm for arm in self.study.arms if arm.failures)


def compare(study: Study, params: CompareParams) -> Comparison:
    """Compares every candidate of a study with its baseline.

    Raises:
        ComparisonError: arms were not measured together.
    """
    noise = _noise(study)
    candidates = tuple(_compare_arm(study, arm, noise, params) for arm in study.candidates)
    baseline = study.baseline.profile
    baseline_reasons = explain_profile(baseline, study.environment) if baseline else ()
    return Comparison(study, params, noise, candidates, baseline_reasons)


def mean_test_accuracy(arm: Arm) -> float | None:
    """Mean test accuracy over the seeds that finished, a fraction."""
    values = [training.metrics["test_accuracy"] for training in arm.trainings if not training.failed]
    return float(np.mean(values)) if values else None


def _noise(study: Study) -> dict[str, Speedup]:
    if study.baseline.profile is None or study.control is None:
        return {}
    return _speedups(study, study.control)


def _compare_arm(study: Study, arm: Arm, noise: dict[str, Speedup], params: CompareParams) -> Candidate:
    baseline = study.baseline
    if baseline.profile is None or arm.profile is None:
        failures = [arm_failed(arm)] if arm.failures else []
        failures += [arm_failed(baseline, role="baseline")] if baseline.failures else []
        return Candidate(arm, dict.fromkeys(_measures(study), "inconclusive"), tuple(failures))
    speedups = _speedups(study, arm.profile)
    accuracy = AccuracyChange(_correct(study, baseline), _correct(study, arm))
    verdicts = {name: decide(ratio, noise[name].noise_floor, accuracy, params) for name, ratio in speedups.items()}
    seen = Measurements(
        baseline=baseline.profile,
        candidate=arm.profile,
        trainings=arm.trainings,
        speedup=speedups[TRAIN],
        environment=study.environment,
        min_speedup=params.min_speedup,
        classes=len(study.data.get("classes", ())) or None,
    )
    changes = operation_changes(baseline.profile, arm.profile)
    return Candidate(arm, verdicts, explain(seen), speedups, accuracy, seen.limit, changes)


def _speedups(study: Study, other: Profile) -> dict[str, Speedup]:
    baseline = study.baseline.profile
    assert baseline is not None  # callers compare nothing with a baseline that failed
    ratios = {TRAIN: train_speedup(baseline.rounds, other.rounds, baseline.confidence)}
    for size in study.inference_batch_sizes:
        ratios[f"inference_b{size}"] = inference_speedup(baseline.inference, other.inference, size, baseline.confidence)
    return ratios


def _measures(study: Study) -> list[str]:
    return [TRAIN, *(f"inference_b{batch_size}" for batch_size in study.inference_batch_sizes)]


def _correct(study: Study, arm: Arm) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which test images each training classifies correctly, boolean `(seeds, images)`."""
    return np.stack([training.predicted == study.labels for training in arm.trainings])
