"""The comparison as numbers: what comparison.json, metrics.json and the `compare` run in MLflow hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stages.compare.arms import Arm
from stages.compare.comparison import TRAIN, Candidate, Comparison, mean_test_accuracy
from stages.compare.evidence import Reason
from stages.compare.gate import gate_state
from stages.compare.operations import OperationChange, gained, lost
from stages.compare.settling import accuracy_needed, what_would_settle
from stages.compare.statistics import AccuracyChange
from stages.compare.time_to_accuracy import time_to_accuracy
from stages.compare.wording import verdict_sentence
from stages.speedup import Speedup

PEAK_MEMORY = "memory/peak_mib"
LARGEST_BATCH = "memory/max_batch_size"


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The content of `comparison.json`; what does not apply is absent."""
    return {
        "baseline": comparison.study.baseline.variant,
        "environment": comparison.study.environment,
        "noise_floor": {measure: ratio.noise_floor for measure, ratio in comparison.noise.items()},
        "min_speedup": comparison.params.min_speedup,
        **_optional(gate=gate_state(comparison), time_to_accuracy=_time_to_accuracy_json(comparison)),
        **_optional(baseline_reasons=[_reason_json(reason) for reason in comparison.baseline_reasons]),
        "candidates": {item.variant: _candidate_json(item, comparison) for item in comparison.candidates},
    }


def as_dvc_metrics(comparison: Comparison) -> dict[str, dict[str, float]]:
    """The content of `metrics.json`: numbers by arm, so that a line of `dvc metrics diff` begins with the arm.

    The noise floor stands under `_control`, which no variant can be called.
    """
    by_arm = {arm.variant: _arm_numbers(arm) for arm in comparison.study.arms}
    for variant, seconds in _seconds_to_accuracy(comparison).items():
        by_arm[variant]["time_to_accuracy_s"] = seconds
    for candidate in comparison.candidates:
        by_arm[candidate.variant] |= candidate_metrics(candidate, comparison)
    control = {f"noise_floor_{measure}": ratio.noise_floor for measure, ratio in comparison.noise.items()}
    return {name: numbers for name, numbers in (by_arm | {"_control": control}).items() if numbers}


def as_tracking_metrics(comparison: Comparison) -> dict[str, float]:
    """Metrics of the `compare` run in MLflow, under the names of its contract."""
    metrics = {f"noise_floor/{measure}": ratio.noise_floor for measure, ratio in comparison.noise.items()}
    metrics |= {f"{name}/time_to_accuracy_s": value for name, value in _seconds_to_accuracy(comparison).items()}
    for candidate in comparison.candidates:
        found = candidate_metrics(candidate, comparison)
        metrics |= {f"{candidate.variant}/{name}": value for name, value in found.items()}
    return metrics


def as_tracking_tags(comparison: Comparison) -> dict[str, str]:
    """Tags of the `compare` run: a verdict for each candidate and measure, and how the gate stands if there is one."""
    verdicts = {
        f"{_verdict_key(measure)}.{candidate.variant}": verdict
        for candidate in comparison.candidates
        for measure, verdict in candidate.verdicts.items()
    }
    return verdicts | _optional(gate=gate_state(comparison))


def candidate_metrics(candidate: Candidate, comparison: Comparison) -> dict[str, float]:
    """Speed-ups and accuracy of one candidate with the ends of their intervals, and memory saved; flat."""
    flat: dict[str, float] = {}
    for measure, speedup in candidate.speedups.items():
        name = f"speedup_{measure}"
        flat |= {name: speedup.ratio, f"{name}_low": speedup.low, f"{name}_high": speedup.high}
    if candidate.accuracy is not None:
        change = candidate.accuracy
        flat |= {"accuracy_delta": change.delta, "accuracy_delta_low": change.low, "accuracy_delta_high": change.high}
    if (peak := both(PEAK_MEMORY, candidate.arm, comparison)) is not None:
        flat["memory_saved_mib"] = peak["baseline"] - peak["candidate"]
    return flat


def both(metric: str, arm: Arm, comparison: Comparison) -> dict[str, float] | None:
    """A metric of the baseline and of a candidate; None where either did not measure it."""
    profiles = {"baseline": comparison.study.baseline.profile, "candidate": arm.profile}
    values = {
        role: profile.metrics[metric] for role, profile in profiles.items() if profile and metric in profile.metrics
    }
    return values if len(values) == len(profiles) else None


def _optional(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, {}, [])}


def _arm_numbers(arm: Arm) -> dict[str, float]:
    numbers = {"test_accuracy": mean_test_accuracy(arm)}
    if arm.profile is not None:
        numbers["step_time_ms_p50"] = arm.profile.metrics.get("step_time_ms/p50")
    return {name: value for name, value in numbers.items() if value is not None}


def _seconds_to_accuracy(comparison: Comparison) -> dict[str, float]:
    found = time_to_accuracy(comparison.study.arms)
    means = {} if found is None else {name: found.mean_s(name) for name in found.seconds}
    return {name: seconds for name, seconds in means.items() if seconds is not None}


def _time_to_accuracy_json(comparison: Comparison) -> dict[str, Any] | None:
    found = time_to_accuracy(comparison.study.arms)
    if found is None:
        return None
    return {"val_accuracy": found.target, "time_to_accuracy_s": _seconds_to_accuracy(comparison)}


def _candidate_json(candidate: Candidate, comparison: Comparison) -> dict[str, Any]:
    value: dict[str, Any] = {}
    if candidate.speedups:
        value["speedup"] = {measure: _speedup_json(ratio) for measure, ratio in candidate.speedups.items()}
    if candidate.accuracy is not None:
        value["accuracy"] = _accuracy_json(candidate.accuracy, comparison.params.accuracy_margin)
    if candidate.limit is not None:
        value["limit"] = {TRAIN: candidate.limit}
    value |= {_verdict_key(measure): verdict for measure, verdict in candidate.verdicts.items()}
    value["sentence"] = verdict_sentence(candidate, comparison)
    value |= _optional(settle=list(what_would_settle(candidate, comparison)))
    value["reasons"] = [_reason_json(reason) for reason in candidate.reasons]
    return value | _extras_json(candidate, comparison)


def _extras_json(candidate: Candidate, comparison: Comparison) -> dict[str, Any]:
    changes, profile = candidate.operation_changes, candidate.arm.profile
    operations = {
        "gained": [_change_json(change) for change in gained(changes)],
        "lost": [_change_json(change) for change in lost(changes)],
    }
    return _optional(
        peak_memory_mib=both(PEAK_MEMORY, candidate.arm, comparison),
        max_batch_size=both(LARGEST_BATCH, candidate.arm, comparison),
        same_weights=profile.same_weights if profile else None,
        operations=_optional(**operations),
    )


def _change_json(change: OperationChange) -> dict[str, Any]:
    return _optional(**asdict(change)) | {"delta_ms": change.delta_ms}


def _verdict_key(measure: str) -> str:
    return "verdict" if measure == TRAIN else f"verdict_{measure}"


def _speedup_json(speedup: Speedup) -> dict[str, float]:
    return {"ratio": speedup.ratio, "low": speedup.low, "high": speedup.high, "rounds": speedup.rounds}


def _accuracy_json(change: AccuracyChange, margin: float) -> dict[str, Any]:
    return {
        "baseline": change.baseline,
        "candidate": change.candidate,
        "delta": change.delta,
        "low": change.low,
        "high": change.high,
        "margin": margin,
        "seeds": change.seeds,
        "test_images": change.images,
        "outcome": change.outcome(margin),
        **_optional(mcnemar_p=change.mcnemar_p, needed=accuracy_needed(change, margin)),
    }


def _reason_json(reason: Reason) -> dict[str, Any]:
    value = {"code": reason.code, "text": reason.text, "evidence": reason.evidence, "advice": reason.advice}
    return value if reason.time_ms is None else value | {"time_ms": reason.time_ms}
