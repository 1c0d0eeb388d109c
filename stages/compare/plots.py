"""What `dvc plots` draws: one long table a plot, with the variant as a column."""

from __future__ import annotations

import pandas as pd

from stages.compare.arms import Arm, Profile
from stages.compare.comparison import Comparison
from stages.files import COMPARE, atomic_path

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


def write_plots(comparison: Comparison) -> None:
    """Writes `data/compare/plots/*.csv`."""
    for name, table in plot_tables(comparison).items():
        with atomic_path(COMPARE / "plots" / f"{name}.csv") as path:
            table.to_csv(path, index=False)


def plot_tables(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """The tables by file name without its ending. Columns exist also where there are no rows."""
    arms = comparison.study.arms
    return {
        "accuracy_by_epoch": _table(
            ["variant", "seed", "epoch", "accuracy", "val_accuracy"], [row for arm in arms for row in _epochs(arm)]
        ),
        "step_breakdown": _table(
            ["variant", "part", "time_ms"],
            [
                {"variant": arm.variant, "part": part, "time_ms": time_ms}
                for arm in arms
                for part, time_ms in step_parts(arm.profile).items()
            ],
        ),
        "latency": _table(
            ["variant", "batch_size", "p50_ms", "p95_ms"],
            [row for arm in arms for row in latencies(arm, comparison.study.inference_batch_sizes)],
        ),
        "speedups": _table(["variant", "measure", "ratio", "low", "high", "noise_floor"], _speedups(comparison)),
        "confusion": _table(
            ["variant", "seed", "actual", "predicted"], [row for arm in arms for row in _confusion(comparison, arm)]
        ),
    }


def step_parts(profile: Profile | None) -> dict[str, float]:
    """Parts of the traced step that were measured, in milliseconds a step."""
    metrics = profile.metrics if profile else {}
    named = {part: metrics.get(f"profiler/{part}_ms") for part in STEP_PARTS}
    return {part: time_ms for part, time_ms in named.items() if time_ms is not None}


def latencies(arm: Arm, batch_sizes: tuple[int, ...]) -> list[dict[str, float | str]]:
    """A row a batch size: median and 95th percentile of the latency, over all calls, in milliseconds."""
    if arm.profile is None:
        return []
    calls = arm.profile.inference.groupby("batch_size")["latency_ms"]
    p50, p95 = calls.quantile(0.50), calls.quantile(0.95)
    return [
        {"variant": arm.variant, "batch_size": size, "p50_ms": float(p50[size]), "p95_ms": float(p95[size])}
        for size in batch_sizes
    ]


def _table(columns: list[str], rows: list[dict[str, float | str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns)


def _epochs(arm: Arm) -> list[dict[str, float | str]]:
    return [
        {"variant": arm.variant, "seed": training.seed, **row}
        for training in arm.trainings
        if training.history is not None and not training.failed
        for row in training.history[["epoch", "accuracy", "val_accuracy"]].to_dict("records")
    ]


def _speedups(comparison: Comparison) -> list[dict[str, float | str]]:
    return [
        {
            "variant": candidate.variant,
            "measure": measure,
            "ratio": ratio.ratio,
            "low": ratio.low,
            "high": ratio.high,
            "noise_floor": comparison.noise[measure].noise_floor,
        }
        for candidate in comparison.candidates
        for measure, ratio in candidate.speedups.items()
    ]


def _confusion(comparison: Comparison, arm: Arm) -> list[dict[str, float | str]]:
    classes = comparison.study.data["classes"]
    return [
        {
            "variant": arm.variant,
            "seed": training.seed,
            "actual": classes[actual],
            "predicted": classes[predicted],
        }
        for training in arm.trainings
        if training.predicted is not None
        for actual, predicted in zip(comparison.study.labels, training.predicted, strict=True)
    ]
