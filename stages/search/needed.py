"""The fewest layers in float32 with which a variant trains: those that overflow, or whose gradients vanish."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stages.errors import SearchError
from stages.params import Params, Variant
from stages.prepare.trials import run_trial
from stages.results.search import TrainingTried
from stages.results.training import TrainingMetrics, read_metrics
from stages.search.deadline import Deadline
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
    settings: Params, variant: str, tried: Sequence[TrainingTried], report: Report, deadline: Deadline
) -> Layers | None:
    """Trains the variant with more and more layers in float32 until it trains.

    Args:
        settings: all parameters.
        variant: its name.
        tried: such trainings of an earlier search.
        report: called with each new training.
        deadline: no training starts after it.

    Returns:
        The layers; None if it is not known which ones.

    Raises:
        SearchError: a training cannot be run.
        OutOfTimeError: the time was up before it trained.
    """
    entry = settings.variants[variant]
    last = tried[-1] if tried else _as_it_is(settings, variant)
    number = len(tried)
    while not last.trains:
        more = tuple(dict.fromkeys((*last.float32_layers, *last.named)))
        if more == last.float32_layers or number >= MOST:
            return None
        deadline.require()
        last, _ = training_of(settings, variant, entry.model_copy(update={"float32_layers": more}))
        number += 1
        report(last)
    return last.float32_layers


def _as_it_is(settings: Params, variant: str) -> TrainingTried:
    """The training of `dvc repro`, as one of the search."""
    layers, metrics = settings.variants[variant].float32_layers, first_training(settings, variant)
    if metrics is None:
        return TrainingTried(float32_layers=layers, trains=True, seconds=0.0)
    return _tried(layers, metrics, metrics.train_time_s or 0.0)


def _tried(layers: Layers, metrics: TrainingMetrics, seconds: float, val_score: float | None = None) -> TrainingTried:
    why = problem_of(metrics)
    return TrainingTried(
        float32_layers=layers,
        trains=why is None,
        why=why,
        named=() if why is None else layers_of(metrics),
        val_score=val_score,
        seconds=seconds,
    )


def training_of(settings: Params, variant: str, entry: Variant) -> tuple[TrainingTried, NDArray[np.float64] | None]:
    """Trains an entry of `variants`; returns what is kept, and the score of each validation example if there are such.

    Raises:
        SearchError: it cannot be trained.
    """
    seed, began_s = settings.train.seeds[0], time.monotonic()
    answer = run_trial(f"{variant}-{seed}", TRYING, entry, TaskSpec.of(settings, variant), seed, None)
    if isinstance(answer, str):
        raise SearchError(f"{variant} with {', '.join(entry.float32_layers)} in float32: {answer}")
    metrics, last, scores = answer
    val_score = next((last[name] for name in last if name.startswith("val_") and name != "val_loss"), None)
    return _tried(entry.float32_layers, metrics, time.monotonic() - began_s, val_score), scores
