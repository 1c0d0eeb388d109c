"""Puts it together: every candidate against the baseline, with intervals, verdicts and reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stages.compare.arms import Arm, Profile, Study
from stages.compare.evidence import Measurements, Reason
from stages.compare.reasons import arm_failed, explain
from stages.compare.statistics import AccuracyChange
from stages.compare.verdict import Verdict, decide
from stages.params import CompareParams
from stages.speedup import Speedup, inference_speedup, train_speedup

TRAIN = "train"


@dataclass(frozen=True)
class Candidate:
    """One candidate against the baseline. Measures are named `train` and `inference_b<n>`, in that order.

    Where an arm failed there is nothing to compare: no speed-ups, no accuracy, every verdict `inconclusive`.
    """

    arm: Arm
    verdicts: dict[str, Verdict]
    reasons: tuple[Reason, ...]
    speedups: dict[str, Speedup] = field(default_factory=dict)
    accuracy: AccuracyChange | None = None

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
    return Comparison(study, params, noise, candidates)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The content of `comparison.json`; what does not apply is absent."""
    return {
        "baseline": comparison.study.baseline.variant,
        "environment": comparison.study.environment,
        "noise_floor": {measure: ratio.noise_floor for measure, ratio in comparison.noise.items()},
        "candidates": {item.variant: _candidate_json(item, comparison.params) for item in comparison.candidates},
    }


def as_dvc_metrics(comparison: Comparison) -> dict[str, dict[str, float]]:
    """The content of `metrics.json`: numbers by arm, so that a line of `dvc metrics diff` begins with the arm.

    The noise floor stands under `_control`, which no variant can be called.
    """
    by_arm = {arm.variant: _arm_numbers(arm) for arm in comparison.study.arms}
    for candidate in comparison.candidates:
        by_arm[candidate.variant] |= candidate_metrics(candidate)
    control = {f"noise_floor_{measure}": ratio.noise_floor for measure, ratio in comparison.noise.items()}
    return {name: numbers for name, numbers in (by_arm | {"_control": control}).items() if numbers}


def as_tracking_metrics(comparison: Comparison) -> dict[str, float]:
    """Metrics of the `compare` run in MLflow, under the names of its contract."""
    metrics = {f"noise_floor/{measure}": ratio.noise_floor for measure, ratio in comparison.noise.items()}
    for candidate in comparison.candidates:
        metrics |= {f"{candidate.variant}/{name}": value for name, value in candidate_metrics(candidate).items()}
    return metrics


def as_tracking_tags(comparison: Comparison) -> dict[str, str]:
    """Tags of the `compare` run: a verdict for each candidate and measure."""
    return {
        f"{_verdict_key(measure)}.{candidate.variant}": verdict
        for candidate in comparison.candidates
        for measure, verdict in candidate.verdicts.items()
    }


def candidate_metrics(candidate: Candidate) -> dict[str, float]:
    """Speed-ups and accuracy of one candidate with the ends of their intervals, flat."""
    flat: dict[str, float] = {}
    for measure, speedup in candidate.speedups.items():
        name = f"speedup_{measure}"
        flat |= {name: speedup.ratio, f"{name}_low": speedup.low, f"{name}_high": speedup.high}
    if candidate.accuracy is not None:
        change = candidate.accuracy
        flat |= {"accuracy_delta": change.delta, "accuracy_delta_low": change.low, "accuracy_delta_high": change.high}
    return flat


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
    seen = Measurements(baseline.profile, arm.profile, arm.trainings, speedups[TRAIN], study.environment)
    return Candidate(arm, verdicts, explain(seen), speedups, accuracy)


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


def _arm_numbers(arm: Arm) -> dict[str, float]:
    numbers = {"test_accuracy": mean_test_accuracy(arm)}
    if arm.profile is not None:
        numbers["step_time_ms_p50"] = arm.profile.metrics.get("step_time_ms/p50")
    return {name: value for name, value in numbers.items() if value is not None}


def _candidate_json(candidate: Candidate, params: CompareParams) -> dict[str, Any]:
    value: dict[str, Any] = {}
    if candidate.speedups:
        value["speedup"] = {measure: _speedup_json(ratio) for measure, ratio in candidate.speedups.items()}
    if candidate.accuracy is not None:
        value["accuracy"] = _accuracy_json(candidate.accuracy, params.accuracy_margin)
    value |= {_verdict_key(measure): verdict for measure, verdict in candidate.verdicts.items()}
    value["reasons"] = [_reason_json(reason) for reason in candidate.reasons]
    return value


def _verdict_key(measure: str) -> str:
    return "verdict" if measure == TRAIN else f"verdict_{measure}"


def _speedup_json(speedup: Speedup) -> dict[str, float]:
    return {"ratio": speedup.ratio, "low": speedup.low, "high": speedup.high, "rounds": speedup.rounds}


def _accuracy_json(change: AccuracyChange, margin: float) -> dict[str, float]:
    return {
        "baseline": change.baseline,
        "candidate": change.candidate,
        "delta": change.delta,
        "low": change.low,
        "high": change.high,
        "margin": margin,
        "seeds": change.seeds,
    }


def _reason_json(reason: Reason) -> dict[str, Any]:
    value = {"code": reason.code, "text": reason.text, "evidence": reason.evidence, "advice": reason.advice}
    return value if reason.time_ms is None else value | {"time_ms": reason.time_ms}
