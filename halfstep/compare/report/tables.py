"""The rows of the HTML report and of the DVC plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pandas as pd

from halfstep.compare.metrics import LARGEST_BATCH, PEAK_MEMORY, STARTUP, metric_values, train_times_s
from halfstep.compare.scale import Scale
from halfstep.compare.study import Study, VariantResult
from halfstep.compare.text import ratio_text, verdict_text
from halfstep.files import COMPARE, atomic_path
from halfstep.results.comparison import Candidate, Comparison, Ratio, Score
from halfstep.results.profile import Profile
from halfstep.text import TRAIN, inference_measure, number_text

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
QUALITY = "quality"  # instead of a measure, of the row of the score
_SPEEDUP_COLUMNS = ("ratio", "low", "high", "typical_ratio", "baseline_time_ms", "candidate_time_ms")


@dataclass(frozen=True)
class MetricRow:
    """One metric of all variants.

    Attributes:
        values: by variant; variants without the metric are absent.
        digits: decimal places; None for three significant digits.
        measure: the measure whose speed-up, or `QUALITY` whose change, belongs to the metric.
    """

    label: str
    unit: str
    values: dict[str, float]
    digits: int | None = None
    measure: str | None = None

    def text(self, variant: str) -> str:
        """The value of a variant; empty if it has none."""
        value = self.values.get(variant)
        if value is None:
            return ""
        return number_text(value) if self.digits is None else f"{value:,.{self.digits}f}"


def metric_rows(study: Study, score: Score | None) -> list[MetricRow]:
    """The metrics that at least one variant has."""
    rows = [
        *_score_rows(study, score),
        *_train_rows(study),
        *chain.from_iterable(_inference_rows(study, size) for size in study.inference_batch_sizes),
        _row(study, PEAK_MEMORY, "peak memory of training steps", "MiB"),
        _row(study, "memory/allocator_peak_mib", _allocator_text(study), "MiB"),
        _row(study, LARGEST_BATCH, "largest batch that trains", study.task.examples_word, 0),
        _row(study, "profiler/step_time_ms", "traced step", "ms"),
        *(_row(study, f"profiler/{part}_ms", f"traced step: {part.replace('_', ' ')}", "ms") for part in STEP_PARTS),
        _row(study, "profiler/compute_16bit_percent", "compute time in 16 bit", "%"),
        _row(study, "profiler/compute_tf32_percent", "compute time in TF32", "%"),
        _row(study, "profiler/compute_unknown_percent", "compute time in an unknown type", "%"),
        _row(study, "profiler/tensor_core_percent", "compute time on tensor cores", "%"),
        _row(study, "profiler/tensor_core_unknown_percent", "compute time, unknown whether on tensor cores", "%"),
        _row(study, "profiler/matrix_tensor_core_percent", "matrix work on tensor cores", "%"),
        _row(study, "profiler/layout_percent", "compute time changing layouts (NCHW, NHWC)", "%"),
        _row(study, "profiler/compute_16bit_percent_xprof", "compute time in 16 bit, as xprof counts it", "%"),
        _row(study, "profiler/overhead_percent", "overhead of the profiler", "%"),
    ]
    return [item for item in rows if item.values]


def _allocator_text(study: Study) -> str:
    """The allocator whose memory a trace shows."""
    on_gpu = any(item.profile.on_gpu for item in study.variants if item.profile is not None)
    return "peak of the GPU's allocator in the trace" if on_gpu else "peak of oneDNN's allocator"


def _score_rows(study: Study, score: Score | None) -> Iterator[MetricRow]:
    scores = {item.variant: value for item in study.variants if (value := item.mean_test_score) is not None}
    if scores and score is not None and score.margin is not None:
        scale = Scale(score.name, score.unit == "fraction", score.margin)
        shown = {variant: 100 * value if scale.is_fraction else value for variant, value in scores.items()}
        yield MetricRow(f"test {scale.name}", scale.unit, shown, scale.digits, QUALITY)


def _row(study: Study, metric: str, label: str, unit: str, digits: int | None = None) -> MetricRow:
    return MetricRow(label, unit, metric_values(study.variants, metric), digits)


def _train_rows(study: Study) -> list[MetricRow]:
    means_ms = metric_values(study.variants, "step_time_ms/mean")
    examples = study.task.examples_word
    per_s = metric_values(study.variants, f"train_{examples}_per_s")
    return [
        _time_row("training step, mean", means_ms, TRAIN),
        MetricRow("throughput of training steps", f"{examples}/s", per_s),
        MetricRow("wall time of a training", "s", train_times_s(study.variants)),
        MetricRow("processor time to start", "s", metric_values(study.variants, STARTUP)),
        _time_row("training step, median of single steps", metric_values(study.variants, "step_time_ms/p50")),
        _time_row("training step, 95th percentile of them", metric_values(study.variants, "step_time_ms/p95")),
    ]


def _inference_rows(study: Study, size: int) -> list[MetricRow]:
    measure = inference_measure(size)
    means_ms, at = metric_values(study.variants, f"inference/b{size}/mean_ms"), f"batch {size}"
    labels = {"p50": "median", "p95": "95th percentile", "p99": "99th percentile", "cold": "first call"}
    times = {key: metric_values(study.variants, f"inference/b{size}/{key}_ms") for key in labels}
    return [
        _time_row(f"latency, {at}, mean", means_ms, measure),
        *(_time_row(f"latency, {at}, {label}", times[key]) for key, label in labels.items()),
        MetricRow(f"inference throughput, {at}", f"{study.task.examples_word}/s", _per_second(size, means_ms)),
    ]


def batch_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of candidates whose batch is not the baseline's, without columns with nothing in them."""
    examples = comparison.setup.task.examples_word if comparison.setup else "examples"
    score = comparison.score.name if comparison.score else "score"
    verdict = "verdict, speed only" if comparison.speed_only else "verdict"
    heads = ("variant", "batch", f"{examples}/s", "speed-up", "memory, MiB", f"change of {score}", verdict)
    rows = [
        (
            name,
            f"{item.other_batch.batch_size.candidate:g}",
            number_text(item.other_batch.examples_per_s.candidate),
            _over(item.speedups[TRAIN], comparison, item.other_batch.batch_size.baseline) + _factors_text(item),
            number_text(item.peak_memory_mib.candidate) if item.peak_memory_mib else "",
            Scale.of(item.quality).change(item.quality) if item.quality else "",
            verdict_text(item.verdict, speed_only=comparison.speed_only),
        )
        for name, item in comparison.candidates.items()
        if item.other_batch is not None
    ]
    known = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    return [heads[place] for place in known], [[row[place] for place in known] for row in rows]


def _over(found: Ratio, comparison: Comparison, batch_size: float) -> str:
    """A ratio, and what it is over."""
    return f"{ratio_text(found)} over {comparison.baseline} at {batch_size:g}"


def _factors_text(candidate: Candidate) -> str:
    factors = (candidate.factors or {}).get(TRAIN)
    if factors is None:
        return ""
    return f" = {factors.settings.ratio:.2f}× settings × {factors.precision.ratio:.2f}× precision"


def at_equal_batch(comparison: Comparison) -> dict[str, Candidate]:
    """The candidates whose training steps have as many examples as the baseline's."""
    return {name: item for name, item in comparison.candidates.items() if item.other_batch is None}


def _time_row(label: str, times_ms: dict[str, float], measure: str | None = None) -> MetricRow:
    return MetricRow(label, "ms", times_ms, measure=measure)


def _per_second(images: int, times_ms: dict[str, float]) -> dict[str, float]:
    return {variant: 1000 * images / time_ms for variant, time_ms in times_ms.items()}


def _profiles(variants: Iterable[VariantResult]) -> dict[str, Profile]:
    return {item.variant: item.profile for item in variants if item.profile is not None}


def speedups(comparison: Comparison) -> pd.DataFrame:
    """A row a candidate and measure: the ratio with its interval, the times, the factors, and the noise floor.

    `baseline_time_ms / candidate_time_ms` is `ratio`, and `settings * precision` too, where there are factors.
    """
    rows = [
        {
            "variant": name,
            "measure": measure,
            **{column: getattr(speedup, column) for column in _SPEEDUP_COLUMNS},
            **_factor_columns(candidate, measure),
            "noise_floor": comparison.noise_floor.get(measure),
        }
        for name, candidate in comparison.candidates.items()
        for measure, speedup in candidate.speedups.items()
    ]
    columns = ["variant", "measure", *_SPEEDUP_COLUMNS, "settings", "precision", "noise_floor"]
    return pd.DataFrame(rows, columns=columns)


def _factor_columns(candidate: Candidate, measure: str) -> dict[str, float]:
    factors = (candidate.factors or {}).get(measure)
    return {} if factors is None else {"settings": factors.settings.ratio, "precision": factors.precision.ratio}


def score_by_epoch(study: Study) -> pd.DataFrame:
    """A row a variant, seed and epoch: the score on the training and the validation set, in the score's units.

    The scores are empty where the task does not compute them by epoch.
    """
    columns = {"epoch": "epoch", study.score_name: "score", f"val_{study.score_name}": "val_score"}
    rows = [
        {"variant": result.variant, "seed": training.seed, **row}
        for result in study.variants
        for training in result.trainings
        if training.history is not None and not training.failed
        for row in training.history.reindex(columns=list(columns)).rename(columns=columns).to_dict("records")
    ]
    return pd.DataFrame(rows, columns=["variant", "seed", *columns.values()])


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
    """A row a variant and batch size: mean, median and 95th percentile of the steady calls, in milliseconds."""
    rows = [
        {"variant": name, "batch_size": size}
        | {f"{key}_ms": profile.metrics[f"inference/b{size}/{key}_ms"] for key in ("p50", "p95", "mean")}
        for name, profile in _profiles(study.variants).items()
        for size in study.inference_batch_sizes
        if f"inference/b{size}/p50_ms" in profile.metrics
    ]
    return pd.DataFrame(rows, columns=["variant", "batch_size", "p50_ms", "p95_ms", "mean_ms"])


def write_plots(comparison: Comparison, study: Study) -> None:
    """Writes `data/compare/plots/*.csv`, which `dvc plots` draws."""
    epochs = score_by_epoch(study)
    tables = {
        "score_by_epoch": epochs.assign(epoch=epochs["epoch"] + 1),  # counted from 1, as `fit` prints them
        "step_breakdown": step_breakdown(study),
        "latency": latency(study),
        "speedups": speedups(comparison),
    }
    for name, table in tables.items():
        with atomic_path(COMPARE / "plots" / f"{name}.csv") as path:
            table.to_csv(path, index=False)
