"""The rows that the terminal, the HTML report and the DVC plots show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from stages.compare.comparison import LARGEST_BATCH, PEAK_MEMORY, TRAIN, Comparison, inference_measure
from stages.escaping import table_text
from stages.files import COMPARE, atomic_path
from stages.results.profile import Profile
from stages.results.study import Study, VariantResult

STEP_PARTS = (  # of a traced step, in the order in which they are drawn
    "device_compute",
    "host_compute",
    "kernel_launch",
    "input",
    "output",
    "device_to_device",
    "device_collectives",
    "compilation",
    "other",
)


@dataclass(frozen=True)
class MetricRow:
    """One metric of all variants.

    Attributes:
        values: by variant; variants without the metric are absent.
        measure: the measure whose speed-up, or `accuracy` whose change, belongs to the metric.
        headline: whether the terminal shows the row.
    """

    label: str
    unit: str
    values: dict[str, float]
    digits: int = 2
    measure: str | None = None
    headline: bool = False

    def text(self, variant: str) -> str:
        """The value of a variant; empty if it has none."""
        value = self.values.get(variant)
        return "" if value is None else f"{value:,.{self.digits}f}"


def metric_rows(study: Study) -> list[MetricRow]:
    """The metrics that at least one variant has."""

    def row(
        metric: str, label: str, unit: str, digits: int = 2, measure: str | None = None, *, headline: bool = False
    ) -> MetricRow:
        return MetricRow(label, unit, metric_values(study.variants, metric), digits, measure, headline)

    accuracy = {item.variant: 100 * value for item in study.variants if (value := item.mean_test_accuracy) is not None}
    rows = [
        MetricRow("test accuracy", "%", accuracy, measure="accuracy", headline=True),
        row("step_time_ms/p50", "training step, median", "ms", measure=TRAIN, headline=True),
        row("step_time_ms/p95", "training step, 95th percentile", "ms"),
        row("step_time_ms/mean", "training step, mean", "ms"),
        row("train_images_per_s", "training throughput", "images/s", 0, headline=True),
    ]
    for size in study.inference_batch_sizes:
        name, at = f"inference/b{size}", f"batch {size}"
        rows += [
            row(f"{name}/p50_ms", f"latency, {at}, median", "ms", 2, inference_measure(size), headline=True),
            row(f"{name}/p95_ms", f"latency, {at}, 95th percentile", "ms"),
            row(f"{name}/p99_ms", f"latency, {at}, 99th percentile", "ms"),
            row(f"{name}/images_per_s", f"inference throughput, {at}", "images/s", 0),
        ]
    rows += [
        row(PEAK_MEMORY, "peak memory of training steps", "MiB", 1, headline=True),
        row(LARGEST_BATCH, "largest batch that trains", "images", 0),
        row("profiler/step_time_ms", "traced step", "ms"),
        *(row(f"profiler/{part}_ms", f"traced step: {part.replace('_', ' ')}", "ms") for part in STEP_PARTS),
        row("profiler/compute_16bit_percent", "compute time in 16 bit", "%", 1, headline=True),
        row("profiler/compute_tf32_percent", "compute time in TF32", "%", 1),
        row("profiler/tensor_core_percent", "compute time on tensor cores", "%", 1, headline=True),
        row("profiler/compute_16bit_percent_xprof", "compute time in 16 bit, as xprof counts it", "%", 1),
        row("profiler/overhead_percent", "overhead of the profiler", "%", 1),
    ]
    return [item for item in rows if item.values]


def metric_values(variants: Iterable[VariantResult], metric: str) -> dict[str, float]:
    """A metric by variant; variants without it are absent."""
    profiles = _profiles(variants)
    return {name: profile.metrics[metric] for name, profile in profiles.items() if metric in profile.metrics}


def _profiles(variants: Iterable[VariantResult]) -> dict[str, Profile]:
    return {item.variant: item.profile for item in variants if item.profile is not None}


def speedups(comparison: Comparison) -> pd.DataFrame:
    """A row a candidate and measure: the ratio with its interval, and the measure's noise floor."""
    rows = [
        {
            "variant": candidate.variant,
            "measure": measure,
            "ratio": ratio.ratio,
            "low": ratio.low,
            "high": ratio.high,
            "noise_floor": comparison.control[measure].noise_floor,
        }
        for candidate in comparison.candidates
        for measure, ratio in candidate.speedups.items()
    ]
    return pd.DataFrame(rows, columns=["variant", "measure", "ratio", "low", "high", "noise_floor"])


def accuracy_by_epoch(study: Study) -> pd.DataFrame:
    """A row a variant, seed and epoch."""
    rows = [
        {"variant": result.variant, "seed": training.seed, **row}
        for result in study.variants
        for training in result.trainings
        if training.history is not None and not training.failed
        for row in training.history[["epoch", "accuracy", "val_accuracy"]].to_dict("records")
    ]
    return pd.DataFrame(rows, columns=["variant", "seed", "epoch", "accuracy", "val_accuracy"])


def step_breakdown(study: Study) -> pd.DataFrame:
    """A row a variant and part of its traced step, in milliseconds; parts that were not measured are absent."""
    rows = [
        {"variant": name, "part": part, "time_ms": profile.metrics[f"profiler/{part}_ms"]}
        for name, profile in _profiles(study.variants).items()
        for part in STEP_PARTS
        if f"profiler/{part}_ms" in profile.metrics
    ]
    return pd.DataFrame(rows, columns=["variant", "part", "time_ms"])


def latency(study: Study) -> pd.DataFrame:
    """A row a variant and batch size: median and 95th percentile of the latency, in milliseconds."""
    rows = [
        {"variant": name, "batch_size": size}
        | {f"{key}_ms": profile.metrics[f"inference/b{size}/{key}_ms"] for key in ("p50", "p95")}
        for name, profile in _profiles(study.variants).items()
        for size in study.inference_batch_sizes
    ]
    return pd.DataFrame(rows, columns=["variant", "batch_size", "p50_ms", "p95_ms"])


def confusion(study: Study) -> pd.DataFrame:
    """A row a variant, seed and test image: its class and the predicted one."""
    classes = [_plotted_name(name) for name in study.data.classes]
    rows = [
        {
            "variant": result.variant,
            "seed": training.seed,
            "actual": classes[actual],
            "predicted": classes[predicted],
        }
        for result in study.variants
        for training in result.trainings
        if training.predicted is not None
        for actual, predicted in zip(study.labels, training.predicted, strict=True)
    ]
    return pd.DataFrame(rows, columns=["variant", "seed", "actual", "predicted"])


def _plotted_name(name: str) -> str:
    """A class name for a table that spreadsheets open and that `dvc plots` copies into a script of an HTML page.

    A zero-width space, which is not visible, separates what would end the script or begin a comment in it.
    """
    return re.sub(r"<(?=[!/])", "<\u200b", table_text(name))


def write_plots(comparison: Comparison) -> None:
    """Writes `data/compare/plots/*.csv`, which `dvc plots` draws."""
    tables = {
        "accuracy_by_epoch": accuracy_by_epoch(comparison.study),
        "step_breakdown": step_breakdown(comparison.study),
        "latency": latency(comparison.study),
        "speedups": speedups(comparison),
        "confusion": confusion(comparison.study),
    }
    for name, table in tables.items():
        with atomic_path(COMPARE / "plots" / f"{name}.csv") as path:
            table.to_csv(path, index=False)
