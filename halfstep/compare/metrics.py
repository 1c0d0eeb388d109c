"""The numbers that DVC and MLflow show: `metrics.json`, and the metrics and tags of the `compare` run."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from halfstep.compare.study import Study, VariantResult
from halfstep.results.comparison import Candidate, Comparison, Estimate, ServedRow, verdict_key

PEAK_MEMORY, STARTUP = "memory/peak_mib", "startup_s"  # of a profile
LARGEST_BATCH, LARGEST_BATCH_PER_S = "memory/max_batch_size", "memory/max_batch_examples_per_s"


def dvc_metrics(study: Study, result: Comparison) -> dict[str, dict[str, float | str]]:
    """The content of `metrics.json`: what one compares between experiments, by variant; the rest is in MLflow.

    Of the baseline its step and its score; of each candidate its speed-ups, the change of its score and its verdict on
    training; of each format the same, by the name of its run in MLflow. What does not apply is absent.
    """
    numbers: dict[str, dict[str, float | str]] = {result.baseline: {**_own_metrics(study.baseline, study.score_name)}}
    for name, candidate in result.candidates.items():
        found: dict[str, float | str] = {f"speedup_{key}": each.value for key, each in candidate.speedups.items()}
        if candidate.quality is not None:
            found[f"{candidate.quality.name}_delta"] = candidate.quality.value
        numbers[name] = {**found, "verdict": candidate.verdict}
    rows = result.serving.rows if result.serving else ()
    return numbers | {f"serve {row.variant} {row.name}": _of_format(row) for row in rows if row.verdict is not None}


def _of_format(row: ServedRow) -> dict[str, float | str]:
    found: dict[str, float | str] = {f"speedup_{measure}": each.value for measure, each in row.timed.items()}
    if row.quality is not None:
        found[f"{row.quality.name}_delta"] = row.quality.value
    return {**found, "verdict": str(row.verdict)}


def tracking_metrics(result: Comparison) -> dict[str, float]:
    """Metrics of the `compare` run in MLflow."""
    metrics = {f"noise_floor/{measure}": floor for measure, floor in result.noise_floor.items()}
    for name in (result.baseline, *result.candidates):
        metrics |= {f"{name}/{key}": value for key, value in _seconds(result, name).items()}
    for name, candidate in result.candidates.items():
        found = candidate_metrics(candidate) | _account_metrics(candidate)
        metrics |= {f"{name}/{key}": value for key, value in found.items()}
    return metrics


def _account_metrics(candidate: Candidate) -> dict[str, float]:
    """What each kind of operations changes a training step by in ms, what disturbances do, and what is unexplained."""
    account = candidate.training_account
    if account is None:
        return {}
    flat = _with_ends("account_unexplained_ms", account.unexplained)
    flat |= _with_ends("account_disturbance_ms", account.disturbance)
    for kind in account.kinds:
        flat |= _with_ends(f"account_{kind.kind}_ms", kind)
    return flat


def tracking_tags(result: Comparison) -> dict[str, str]:
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


def candidate_metrics(candidate: Candidate) -> dict[str, float]:
    """Speed-ups, their factors and quality of a candidate with the ends of their intervals, and memory saved; flat."""
    flat: dict[str, float] = {}
    for measure, speedup in candidate.speedups.items():
        flat |= _with_ends(f"speedup_{measure}", speedup)
    for measure, factors in (candidate.factors or {}).items():
        for name, factor in (("precision", factors.precision), ("settings", factors.settings)):
            flat |= _with_ends(f"speedup_{measure}_{name}", factor)
    for name, quality in (("", candidate.quality), ("_same_weights", candidate.quality_same_weights)):
        if quality is not None:
            flat |= _with_ends(f"{quality.name}{name}_delta", quality)
    if (peak := candidate.peak_memory_mib) is not None:
        flat["memory_saved_mib"] = peak.baseline - peak.candidate
    return flat


def _with_ends(name: str, found: Estimate) -> dict[str, float]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _own_metrics(variant: VariantResult, score_name: str) -> dict[str, float]:
    """What is known of a variant without a comparison."""
    numbers = {} if variant.mean_test_score is None else {f"test_{score_name}": variant.mean_test_score}
    return numbers | ({"step_time_ms_p50": variant.profile.metrics["step_time_ms/p50"]} if variant.profile else {})


def _seconds(result: Comparison, variant: str) -> dict[str, float]:
    found = result.time_to_accuracy
    if found is None or variant not in found.time_to_accuracy_s:
        return {}
    return {f"time_to_{found.name}_s": found.time_to_accuracy_s[variant]}


def metric_values(variants: Iterable[VariantResult], metric: str) -> dict[str, float]:
    """A metric of the profiles by variant; variants without it are absent."""
    profiles = {item.variant: item.profile for item in variants if item.profile is not None}
    return {name: profile.metrics[metric] for name, profile in profiles.items() if metric in profile.metrics}


def train_times_s(variants: Iterable[VariantResult]) -> dict[str, float]:
    """Seconds of a whole training by variant, the mean over the seeds; variants that were not trained are absent."""
    found = {
        item.variant: [training.metrics.train_time_s for training in item.trainings]
        for item in variants
        if not item.failures
    }
    known = {name: [time_s for time_s in times_s if time_s is not None] for name, times_s in found.items()}
    return {name: fmean(times_s) for name, times_s in known.items() if times_s}
