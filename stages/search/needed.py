"""The fewest layers in float32 with which a variant trains: those that overflow, or whose gradients vanish."""

from __future__ import annotations

import time
from collections.abc import Callable

from stages.errors import SearchError
from stages.params import Params
from stages.prepare.trials import run_trial
from stages.results.search import TrainingTried
from stages.results.training import TrainingMetrics, read_metrics
from stages.tasks.spec import TaskSpec

TRYING = "stages.search.trying"  # it imports TensorFlow
MOST = 8  # trainings
Layers = tuple[str, ...]
Report = Callable[[TrainingTried], None]


def first_training(settings: Params, variant: str) -> TrainingMetrics | None:
    """Of the trainings of the variant in `data/train`, one that has something wrong, else the first; None without."""
    found = [read_metrics(variant, seed) for seed in settings.train.seeds]
    trained = [metrics for metrics in found if not metrics.not_trained]
    return next((metrics for metrics in trained if problem_of(metrics)), trained[0] if trained else None)


def problem_of(metrics: TrainingMetrics) -> str | None:
    """Why a training does not count as one that trains; None if it does."""
    if metrics.failed:
        return metrics.reason
    if metrics.loss_scale is not None and metrics.loss_scale < 1:
        return f"the loss scale ended at {metrics.loss_scale:.2g}"
    if metrics.underflow:
        return f"gradients vanish in {', '.join(metrics.underflow)}"
    return None


def layers_of(metrics: TrainingMetrics) -> Layers:
    """The layers that a training says to keep in float32."""
    if metrics.overflow is not None:
        return (metrics.overflow.layer, *metrics.overflow.readers)
    return tuple(metrics.underflow or ())


def needed_layers(
    settings: Params, variant: str, tried: list[TrainingTried], report: Report, seconds_left: Callable[[], float]
) -> Layers | None:
    """Trains the variant with more and more layers in float32 until it trains.

    Args:
        settings: all parameters.
        variant: its name.
        tried: trainings of an earlier session; new ones are added.
        report: called with each new training.
        seconds_left: how long the search may go on.

    Returns:
        The layers; None if it is not known which ones, or if the time is up.

    Raises:
        SearchError: a training cannot be run.
    """
    entry, seed = settings.variants[variant], settings.train.seeds[0]
    metrics = first_training(settings, variant)
    layers = entry.float32_layers
    for past in tried:
        if past.trains:
            return past.float32_layers
    while metrics is not None and problem_of(metrics) is not None:
        more = tuple(dict.fromkeys((*layers, *layers_of(metrics))))
        if more == layers or len(tried) >= MOST or seconds_left() <= 0:
            return None
        layers, began_s = more, time.monotonic()
        kept = entry.model_copy(update={"float32_layers": layers})
        answer = run_trial(f"{variant}-{seed}", TRYING, kept, TaskSpec.of(settings, variant), seed, None)
        if isinstance(answer, str):
            raise SearchError(f"{variant} with {', '.join(layers)} in float32: {answer}")
        metrics, last = answer
        report(
            TrainingTried(
                float32_layers=layers,
                trains=problem_of(metrics) is None,
                why=problem_of(metrics),
                val_score=next((last[name] for name in last if name.startswith("val_") and name != "val_loss"), None),
                seconds=time.monotonic() - began_s,
            )
        )
    return layers
