"""Every number of every arm, with its label and unit: the rows of the tables in the terminal and in the report."""

from __future__ import annotations

from dataclasses import dataclass

from stages.compare.arms import Arm, Study
from stages.compare.comparison import TRAIN, mean_test_accuracy
from stages.compare.plots import STEP_PARTS


@dataclass(frozen=True)
class MetricRow:
    """One metric: a value for each arm that has it. `measure` names the speed-up that belongs to it, if one does."""

    name: str
    label: str
    unit: str
    values: dict[str, float]
    digits: int = 2
    measure: str | None = None
    headline: bool = False

    def text(self, variant: str) -> str:
        """The value of an arm, or an empty string where it does not apply."""
        value = self.values.get(variant)
        return "" if value is None else f"{value:,.{self.digits}f}"


@dataclass(frozen=True)
class _Column:
    name: str
    label: str
    unit: str
    digits: int = 2
    measure: str | None = None
    headline: bool = False


def metric_rows(study: Study) -> list[MetricRow]:
    """The rows that at least one arm has a value for, in the order in which a reader asks."""
    accuracy = {arm.variant: value for arm in study.arms if (value := mean_test_accuracy(arm)) is not None}
    rows = [
        MetricRow(
            "test_accuracy",
            "test accuracy",
            "%",
            {k: 100 * v for k, v in accuracy.items()},
            2,
            "accuracy",
            headline=True,
        )
    ]
    rows += [_row(column, study.arms) for column in _columns(study.inference_batch_sizes)]
    return [row for row in rows if row.values]


def _row(column: _Column, arms: tuple[Arm, ...]) -> MetricRow:
    values = {
        arm.variant: arm.profile.metrics[column.name]
        for arm in arms
        if arm.profile is not None and column.name in arm.profile.metrics
    }
    return MetricRow(column.name, column.label, column.unit, values, column.digits, column.measure, column.headline)


def _columns(batch_sizes: tuple[int, ...]) -> list[_Column]:
    return [
        _Column("step_time_ms/p50", "training step, median", "ms", measure=TRAIN, headline=True),
        _Column("step_time_ms/p95", "training step, 95th percentile", "ms"),
        _Column("step_time_ms/mean", "training step, mean", "ms"),
        _Column("train_images_per_s", "training throughput", "images/s", digits=0, headline=True),
        *(column for size in batch_sizes for column in _inference_columns(size)),
        _Column("memory/peak_mib", "peak memory of training steps", "MiB", digits=1, headline=True),
        _Column("memory/max_batch_size", "largest batch that trains", "images", digits=0),
        _Column("profiler/step_time_ms", "traced step", "ms"),
        *(_Column(f"profiler/{part}_ms", f"traced step: {part.replace('_', ' ')}", "ms") for part in STEP_PARTS),
        _Column("profiler/compute_16bit_percent", "compute time in 16 bit", "%", digits=1, headline=True),
        _Column("profiler/compute_tf32_percent", "compute time in TF32", "%", digits=1),
        _Column("profiler/tensor_core_percent", "compute time on tensor cores", "%", digits=1, headline=True),
        _Column("profiler/compute_16bit_percent_xprof", "16 bit, as the profiler itself counts", "%", digits=1),
        _Column("profiler/overhead_percent", "cost of attaching the profiler", "%", digits=1),
    ]


def _inference_columns(size: int) -> list[_Column]:
    return [
        _Column(f"inference/b{size}/p50_ms", f"latency, batch {size}, median", "ms", 2, f"inference_b{size}", True),
        _Column(f"inference/b{size}/p95_ms", f"latency, batch {size}, 95th percentile", "ms"),
        _Column(f"inference/b{size}/p99_ms", f"latency, batch {size}, 99th percentile", "ms"),
        _Column(f"inference/b{size}/images_per_s", f"inference throughput, batch {size}", "images/s", digits=0),
    ]
