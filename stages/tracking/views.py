"""What each stage's files look like in MLflow.

The same functions serve a stage that has just run, and `compare` where a stage was restored from DVC's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from stages import files
from stages.tracking.live import LiveRun
from stages.tracking.runs import Described

Logger = Callable[[LiveRun], None]
FINAL_METRICS = ("test_accuracy", "test_loss", "train_time_s", "train_images_per_s", "loss_scale")


def preparation() -> Described:
    """The run of `prepare`."""
    return Described(name="prepare", stage="prepare")


def training(variant: str, seed: int) -> Described:
    """The run of one training."""
    return Described(name=f"train {variant} seed {seed}", stage="train", variant=variant, seed=seed)


def profiling(variant: str) -> Described:
    """The run of one variant's measurements."""
    return Described(name=variant, stage="profile", variant=variant)


def comparison() -> Described:
    """The run of `compare`."""
    return Described(name="compare", stage="compare")


def log_preparation(run: LiveRun, directory: Path, result_sha256: str) -> None:
    """Counts of images, the sample grid, class counts and the list of rejected files."""
    info = files.read_json(directory / "info.json")
    run.metrics({f"images/{split}": count for split, count in info["images"].items()})
    run.metrics({"images/rejected": info["rejected"], "classes": len(info["classes"])})
    for name in ("sample_grid.png", "class_counts.csv", "rejected.csv", "info.json"):
        run.artifact(directory / name)
    if info["synthetic"]:
        run.describe("Synthetic images: for speed only. Accuracies on them mean nothing.")
    run.complete(result_sha256)


def log_history(run: LiveRun, directory: Path) -> None:
    """Every epoch of `history.csv`, as the callbacks would have logged it."""
    logged = run.logged_steps("epoch_time_s")  # where it had begun, and its server went away
    for row in pd.read_csv(directory / "history.csv").to_dict(orient="records"):
        if row["epoch"] not in logged:
            run.metrics({str(name): value for name, value in row.items() if name != "epoch"}, step=int(row["epoch"]))


def log_training(run: LiveRun, directory: Path, classes: Sequence[str], labels: Any, result_sha256: str) -> None:
    """The numbers of `metrics.json`, the history and the confusion matrix; a failed training ends as FAILED."""
    metrics = files.read_json(directory / "metrics.json")
    run.metrics({name: metrics[name] for name in FINAL_METRICS if name in metrics})
    run.artifact(directory / "history.csv")
    run.artifact(directory / "metrics.json")
    if metrics["status"] == "failed":
        run.tags({"failure": metrics["reason"]})
        run.describe(f"Failed: {metrics['reason']}.")
        run.fail()
    if (directory / "predictions.npy").exists():
        run.figure(confusion_figure(directory / "predictions.npy", labels, classes), "confusion_matrix.png")
    run.complete(result_sha256)


def log_profile(run: LiveRun, directory: Path, accuracies: Sequence[float], result_sha256: str) -> None:
    """The numbers of `summary.json`, test accuracy over the seeds, the raw timings and the trace."""
    summary = files.read_json(directory / "summary.json")
    run.metrics(summary["metrics"])
    run.metrics(accuracy_metrics(accuracies))
    for name in ("summary.json", "rounds.csv", "timings.csv", "inference.csv"):
        run.artifact(directory / name, "timings" if name.endswith(".csv") else None)
    run.artifact(directory / "trace", "trace")
    if warnings := [*summary["protocol"]["warnings"], *summary["warnings"]]:
        run.describe("\n".join(f"- {line}" for line in warnings))
    run.complete(result_sha256)


def log_comparison(
    run: LiveRun, directory: Path, metrics: Mapping[str, float], tags: Mapping[str, str], description: str
) -> None:
    """The verdicts as tags, speed-ups, accuracies and noise floors as metrics, the report and its tables."""
    run.metrics(metrics)
    run.tags(tags)
    run.describe(description)
    for path in sorted(directory.iterdir()):
        if not path.name.startswith("."):
            run.artifact(path, path.name if path.is_dir() else None)
    run.complete(files.sha256_file(directory / "comparison.json"))


def accuracy_metrics(accuracies: Sequence[float]) -> dict[str, float]:
    """Mean test accuracy over the seeds, and from two seeds on its sample standard deviation."""
    values = pd.Series(list(accuracies), dtype=float)
    metrics = {"test_accuracy": float(values.mean())} if len(values) else {}
    return metrics | ({"test_accuracy_sd": float(values.std(ddof=1))} if len(values) > 1 else {})


def confusion_figure(predictions: Path, labels: Any, classes: Sequence[str]) -> Any:
    """A confusion matrix as a matplotlib figure: rows are the true classes, columns the predicted ones."""
    import numpy as np
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    predicted = np.load(predictions, allow_pickle=False).argmax(axis=1)
    side = min(max(4.0, 0.45 * len(classes) + 2), 24)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.subplots()
    ConfusionMatrixDisplay.from_predictions(
        labels,
        predicted,
        labels=range(len(classes)),
        display_labels=list(classes),
        ax=axes,
        cmap="Blues",
        colorbar=False,
        xticks_rotation="vertical" if max(map(len, classes)) > 2 else "horizontal",
        include_values=len(classes) <= 30,
    )
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    return figure
