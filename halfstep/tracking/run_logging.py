"""What is logged for each stage.

A stage calls these functions at its end, and `compare` calls them for stages that DVC restored from its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from halfstep.results.artifact import read_array
from halfstep.results.audit import AUDIT
from halfstep.results.prepared import PREPARED_INFO, TEST_LABELS, PreparedInfo
from halfstep.results.profile import SUMMARY, TABLES, ProfileSummary
from halfstep.results.serving import Export, ServedArm, read_served_scores, refusal_of, timing_dir
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.results.training import HISTORY, METRICS, PREDICTIONS, TrainingMetrics, read_metrics, read_probabilities
from halfstep.system import files
from halfstep.tracking import models
from halfstep.tracking.active_run import FAILURE_TAG, ActiveRun
from halfstep.tracking.tracker import RunIdentity
from halfstep.words.escaping import markdown_text, table_text, truncated_markdown
from halfstep.words.formats import FORMATS

Logger = Callable[[ActiveRun], None]

GLANCE = "at_a_glance/step_time_ms"  # MLflow's comparison of runs opens on the metric that was logged first
CONFUSION_MATRIX = "confusion_matrix.csv"
_OF_SEVERAL = ("/p50_ms", "/p95_ms", "/p99_ms", "/cold_ms")  # percentiles of rows of several calls
MAX_WARNINGS = 7900  # characters of a description; a tag of MLflow holds 8,000


def preparation() -> RunIdentity:
    """The run of `prepare`."""
    return RunIdentity(name="prepare", stage="prepare")


def training(variant: str, seed: int) -> RunIdentity:
    """The run of one training."""
    return RunIdentity(name=f"train {variant} seed {seed}", stage="train", variant=variant, seed=seed)


def profiling(variant: str) -> RunIdentity:
    """The run of the measurements of one variant."""
    return RunIdentity(name=variant, stage="profile", variant=variant)


def serving(variant: str, name: str) -> RunIdentity:
    """The run of the weights of one variant in one format."""
    return RunIdentity(name=f"serve {variant} {name}", stage="serve", variant=variant, format=name)


def comparison() -> RunIdentity:
    """The run of `compare`."""
    return RunIdentity(name="compare", stage="compare")


def log_preparation(run: ActiveRun, directory: Path, result_sha256: str) -> None:
    """Logs the description of the task and, of images, their numbers and the rejected files."""
    task = TaskInfo.read(directory / TASK_INFO.name)
    if task.has_classes:
        _log_images(run, directory)
    else:
        run.artifact(directory / TASK_INFO.name)
        run.metrics({"examples/test": task.examples})
    run.mark_complete(result_sha256)


def _log_images(run: ActiveRun, directory: Path) -> None:
    info = PreparedInfo.read(directory / "info.json")
    run.metrics({f"images/{split}": count for split, count in info.images.items()})
    run.metrics({"images/rejected": info.rejected, "classes": len(info.classes)})
    for name in ("class_counts.csv", "rejected.csv", "info.json"):
        run.artifact(directory / name)
    if info.synthetic:
        run.describe("Synthetic images: they measure speed only, and their accuracy has no meaning.")


def log_training(run: ActiveRun, directory: Path, result_sha256: str) -> None:
    """Logs `metrics.json`, the epochs that are missing and, of images, the confusion matrix.

    A failed training's run ends as FAILED.
    """
    metrics = TrainingMetrics.read(directory / METRICS)
    run.epochs(pd.read_csv(directory / HISTORY).to_dict(orient="records"))
    run.metrics(metrics.tracked())
    run.artifact(directory / HISTORY)
    run.artifact(directory / METRICS)
    if metrics.reason is not None:
        run.tags({FAILURE_TAG: metrics.reason})
        run.describe(f"Failed: {markdown_text(metrics.reason)}.")
        run.fail()
    if (directory / PREDICTIONS).exists():
        predicted = read_probabilities(directory).argmax(axis=1)
        labels = read_array(files.PREPARED / TEST_LABELS, dimensions=1)
        matrix = _confusion_matrix(predicted, labels, PreparedInfo.read(PREPARED_INFO).classes)
        run.file(matrix, CONFUSION_MATRIX)
    run.mark_complete(result_sha256)


def log_not_trained(run: ActiveRun, directory: Path, result_sha256: str) -> None:
    """Logs `metrics.json` of a variant that was not trained, and says so."""
    run.artifact(directory / METRICS)
    run.describe("Not trained: speed only.")
    run.mark_complete(result_sha256)


def log_profile(run: ActiveRun, directory: Path, score_name: str, scores: Sequence[float], result_sha256: str) -> None:
    """Logs `summary.json`, the mean test score over the seeds, the raw times and the trace."""
    summary = ProfileSummary.read(directory / SUMMARY)
    if (step_ms := summary.metrics.get("step_time_ms/mean")) is not None:
        run.metrics({GLANCE: step_ms})
    run.metrics(summary.metrics)
    run.metrics(score_metrics(score_name, scores))
    run.artifact(directory / SUMMARY)
    for name, _ in TABLES.values():
        if (directory / name).is_file():  # an arm may have no account
            run.artifact(directory / name, "timings")
    if (directory / AUDIT).is_file():
        run.artifact(directory / AUDIT)
    if (directory / "trace").is_dir():  # the profiler may have failed
        run.artifact(directory / "trace", "trace")
    if warnings := [*summary.protocol.warnings, *summary.warnings]:
        lines = "\n".join(f"- {markdown_text(line)}" for line in warnings)
        run.describe(truncated_markdown(lines, MAX_WARNINGS, "The rest is in summary.json."))
    run.mark_complete(result_sha256)


def log_served(run: ActiveRun, exports: Sequence[Export], arm: ServedArm | None, result_sha256: str) -> None:
    """Logs a format as it was timed: its folder, the size and the time of its export, the score, and the latencies.

    A format that refuses the model ends as FAILED, with the reason.
    """
    first = exports[0]
    run.params({"serve.format": first.format})
    refusal = refusal_of(exports)
    if refusal is not None or arm is None:
        run.tags({FAILURE_TAG: refusal or "not timed"})
        run.describe(f"Not served: {markdown_text(refusal or 'it was not timed')}.")
        run.fail()
        run.mark_complete(result_sha256)
        return
    in_turns = ProfileSummary.read(timing_dir(arm.name) / SUMMARY).metrics
    run.metrics(
        {name: value for name, value in in_turns.items() if not name.endswith(_OF_SEVERAL)} | _alone_metrics(arm)
    )
    metrics = {"file_kib": first.kib, "export_s": first.export_s, "difference": first.difference}
    run.metrics({key: value for key, value in metrics.items() if value is not None})
    if not read_metrics(first.variant, first.seed).not_trained:
        task = TaskInfo.read(TASK_INFO)
        labels = read_array(files.PREPARED / TEST_LABELS, dimensions=1) if task.has_classes else None
        scores = [read_served_scores(item.seed, first.format, task, labels) for item in exports]
        means = [
            float(example_scores.mean() if task.score_kind == "score" else example_scores[0])
            for example_scores in scores
        ]
        run.metrics(score_metrics(task.score_name, means))
    path = files.SERVE / str(first.file)
    run.artifact(path.parent, "model")
    if first.format == "onnx" and not FORMATS["onnx"].missing:  # they may be in the user's interpreter alone
        models.log_onnx(run, path)
    run.mark_complete(result_sha256)


def _alone_metrics(arm: ServedArm) -> dict[str, float]:
    """What was found in a process of its own, whose percentiles are of single calls."""
    if arm.alone is None:
        return {}
    metrics = {"load_ms": arm.alone.load_ms, "memory/peak_mib": arm.alone.memory_mib}
    for item in arm.alone.batches:
        name = f"inference/b{item.batch_size}"
        metrics |= {
            f"{name}/first_call_ms": item.first_call_ms,
            f"{name}/p50_ms": item.p50_ms,
            f"{name}/p99_ms": item.p99_ms,
            f"{name}/examples_per_s": item.examples_per_s,
        }
    return metrics


def log_comparison(
    run: ActiveRun, directory: Path, metrics: Mapping[str, float], tags: Mapping[str, str], description: str
) -> None:
    """Logs `metrics`, `tags`, the description, and everything in `directory`, such as the report and its tables."""
    run.metrics(metrics)
    run.tags(tags)
    run.describe(description)
    for path in sorted(directory.iterdir()):
        if not path.name.startswith("."):
            run.artifact(path, path.name if path.is_dir() else None)
    run.mark_complete(files.sha256_file(directory / "comparison.json"))


def score_metrics(score_name: str, scores: Sequence[float]) -> dict[str, float]:
    """Mean test score over the seeds and, with at least two seeds, its sample standard deviation."""
    values = pd.Series(list(scores), dtype=float)
    metrics = {f"test_{score_name}": float(values.mean())} if len(values) else {}
    return metrics | ({f"test_{score_name}_sd": float(values.std(ddof=1))} if len(values) > 1 else {})


def _confusion_matrix(predicted: NDArray[Any], labels: NDArray[Any], classes: Sequence[str]) -> bytes:
    """A CSV file: rows are the true classes, columns the predicted ones."""
    counts = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (labels, predicted), 1)
    names = [table_text(name) for name in classes]
    return bytes(pd.DataFrame(counts, pd.Index(names, name="true class"), names).to_csv().encode())
