"""One process that trains a variant, or evaluates trained weights in its precision. Imports TensorFlow."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.params import Variant
from stages.results.training import TrainingMetrics, saved_model
from stages.tasks import building, scoring, user_code
from stages.tasks.ready import ReadyTask
from stages.tasks.spec import TaskSpec
from stages.train.training import train

Scores = NDArray[np.float64]
Trained = tuple[TrainingMetrics, dict[str, float], Scores | None]


def serve(connection: Connection, variant: Variant, spec: TaskSpec, seed: int, weights: Path | None) -> None:
    """What the process runs: sends what `trained` or `scores_of` returns, or the message of an error."""

    def run() -> Any:
        return trained(spec, variant, seed) if weights is None else scores_of(spec, variant, seed, weights)

    connection.send(user_code.answer_of(spec.subject, run))


def trained(spec: TaskSpec, variant: Variant, seed: int) -> Trained:
    """Trains a variant; returns its metrics, the numbers of its last epoch, and its scores on the validation data."""
    found = train(spec, variant, seed)
    scores = None if found.failure else _validated(found.ready)
    return found.metrics(), found.epochs[-1].metrics() if found.epochs else {}, scores


def scores_of(spec: TaskSpec, variant: Variant, seed: int, weights: Path) -> Scores | None:
    """Scores of the validation examples with trained weights in the variant's precision; None without a score each.

    Args:
        spec, variant, seed: what is built.
        weights: folder of the training whose weights are used.
    """
    ready = building.build(spec, variant, seed)
    ready.model.load_weights(saved_model(weights))
    return _validated(ready)


def _validated(ready: ReadyTask) -> Scores | None:
    if ready.validation is None or ready.task.score is None:
        return None
    tested = scoring.evaluate(
        ready.task, ready.validation, ready.model.predict_on_batch, keeps_predictions=False, allow_not_finite=True
    )
    return np.asarray(tested.outputs, np.float64)
