"""The report's charts as matplotlib figures, for the `compare` run in MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stages.compare.comparison import Comparison
from stages.compare.contents import PEAK_MEMORY
from stages.compare.loss_scaling import loss_scaling
from stages.compare.operations import OperationChange, gained, lost
from stages.compare.plots import STEP_PARTS, latencies, plot_tables, step_parts
from stages.compare.wording import measure_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN = 8.0
_ROW_IN = 0.35


def figures(comparison: Comparison) -> dict[str, Figure]:
    """The figures by name; a chart that has nothing to show is left out."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # a layer's name may hold a dollar
        found = _drawn(comparison)
    return {name: figure for name, figure in found.items() if figure is not None}


def _drawn(comparison: Comparison) -> dict[str, Figure | None]:
    found = {
        "speedups": _speedups(comparison),
        "accuracy": _accuracy(comparison),
        "accuracy_by_epoch": _accuracy_by_epoch(comparison),
        "step_breakdown": _step_breakdown(comparison),
        "latency": _latency(comparison),
        "memory": _memory(comparison),
        "loss_scale": _loss_scale(comparison),
    }
    for candidate in comparison.candidates:
        found[f"operations_{candidate.variant}"] = _operations(candidate.operation_changes)
    return found


def _axes(rows: float, title: str, xlabel: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, 1.2 + _ROW_IN * rows), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _intervals(axes: Axes, labels: Sequence[str], estimates: Sequence[tuple[float, float, float]]) -> None:
    for row, (estimate, low, high) in enumerate(estimates):
        axes.plot([low, high], [row, row], color="C0", linewidth=2)
        axes.plot([estimate], [row], "o", color="C0")
    axes.set_yticks(range(len(labels)), list(labels))
    axes.set_ylim(len(labels) - 0.5, -0.5)


def _speedups(comparison: Comparison) -> Figure | None:
    rows = [
        (f"{item.variant}, {measure_label(measure)}", measure, ratio)
        for item in comparison.candidates
        for measure, ratio in item.speedups.items()
    ]
    if not rows:
        return None
    figure, axes = _axes(len(rows), "Speed-up, with its interval; grey: noise floor", "time of the baseline / its time")
    for row, (_, measure, _) in enumerate(rows):
        floor = comparison.noise[measure].noise_floor
        axes.fill_betweenx([row - 0.4, row + 0.4], 1 - floor, 1 + floor, color="0.85", linewidth=0)
    _intervals(axes, [row[0] for row in rows], [(ratio.ratio, ratio.low, ratio.high) for _, _, ratio in rows])
    axes.axvline(1.0, color="0.4", linewidth=1)
    axes.axvline(comparison.params.min_speedup, color="0.4", linewidth=1, linestyle="--")
    return figure


def _accuracy(comparison: Comparison) -> Figure | None:
    changes = {item.variant: item.accuracy for item in comparison.candidates if item.accuracy is not None}
    if not changes:
        return None
    figure, axes = _axes(len(changes), "Change of test accuracy, with its interval", "percentage points")
    estimates = [(100 * change.delta, 100 * change.low, 100 * change.high) for change in changes.values()]
    _intervals(axes, list(changes), estimates)
    axes.axvline(0.0, color="0.4", linewidth=1)
    axes.axvline(-100 * comparison.params.accuracy_margin, color="0.4", linewidth=1, linestyle="--")
    return figure


def _accuracy_by_epoch(comparison: Comparison) -> Figure | None:
    epochs = plot_tables(comparison)["accuracy_by_epoch"].dropna(subset=["val_accuracy"])
    if epochs.empty:
        return None
    figure, axes = _axes(8, "Validation accuracy by epoch: thin one seed, thick their mean", "epoch")
    for number, (variant, rows) in enumerate(epochs.groupby("variant", sort=False)):
        for _, of_seed in rows.groupby("seed"):
            axes.plot(of_seed["epoch"], of_seed["val_accuracy"], color=f"C{number}", linewidth=0.7, alpha=0.5)
        mean = rows.groupby("epoch")["val_accuracy"].mean()
        axes.plot(mean.index, mean, color=f"C{number}", linewidth=2, label=str(variant))
    axes.legend(frameon=False)
    return figure


def _step_breakdown(comparison: Comparison) -> Figure | None:
    parts = {arm.variant: step_parts(arm.profile) for arm in comparison.study.arms}
    parts = {variant: of_step for variant, of_step in parts.items() if of_step}
    if not parts:
        return None
    figure, axes = _axes(len(parts) + 2, "What a traced training step is made of", "ms")
    left = dict.fromkeys(parts, 0.0)
    for number, part in enumerate(name for name in STEP_PARTS if any(of_step.get(name) for of_step in parts.values())):
        times_ms = [parts[variant].get(part, 0.0) for variant in parts]
        axes.barh(list(parts), times_ms, left=list(left.values()), color=f"C{number}", label=part.replace("_", " "))
        left = {variant: left[variant] + time_ms for variant, time_ms in zip(parts, times_ms, strict=True)}
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _latency(comparison: Comparison) -> Figure | None:
    sizes = comparison.study.inference_batch_sizes
    rows = [row for arm in comparison.study.arms for row in latencies(arm, sizes)]
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: float(row["batch_size"]))
    figure, axes = _axes(len(rows), "Latency of inference: median, up to the 95th percentile", "ms")
    labels = [f"{row['variant']}, batch size {row['batch_size']}" for row in rows]
    _intervals(axes, labels, [(float(row["p50_ms"]), float(row["p50_ms"]), float(row["p95_ms"])) for row in rows])
    axes.set_xlim(left=0)
    return figure


def _memory(comparison: Comparison) -> Figure | None:
    peaks = {arm.variant: arm.profile.metrics.get(PEAK_MEMORY) for arm in comparison.study.arms if arm.profile}
    known = {variant: mib for variant, mib in peaks.items() if mib is not None}
    if not known:
        return None
    figure, axes = _axes(len(known), "Peak memory of training steps", "MiB")
    axes.barh(list(known), list(known.values()))
    axes.invert_yaxis()
    return figure


def _loss_scale(comparison: Comparison) -> Figure | None:
    courses = [course for course in loss_scaling(comparison.study.arms) if course.scales]
    if not courses:
        return None
    figure, axes = _axes(6, "Loss scale at the end of each epoch", "epoch")
    for course in courses:
        label = f"{course.variant}, seed {course.seed}"
        axes.plot(range(len(course.scales)), course.scales, marker="o", markersize=3, label=label)
    axes.set_yscale("log", base=2)
    axes.legend(frameon=False, fontsize="small")
    return figure


def _operations(changes: Sequence[OperationChange]) -> Figure | None:
    shown = [*gained(changes), *reversed(lost(changes))]
    if not shown:
        return None
    figure, axes = _axes(len(shown), "Operations that gained and lost most", "ms a step, after − before")
    labels = [f"{change.layer} {change.operation}".strip() for change in shown]
    axes.barh(
        range(len(shown)),
        [change.delta_ms for change in shown],
        color=["C0" if c.delta_ms < 0 else "C3" for c in shown],
    )
    axes.set_yticks(range(len(shown)), labels, fontsize="small")
    axes.axvline(0.0, color="0.4", linewidth=1)
    axes.invert_yaxis()
    return figure
