"""Registers the model of the best adopted candidate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stages import files
from stages.compare.study import Study
from stages.errors import ComparisonError, TrackingError
from stages.results.comparison import Comparison
from stages.results.training import MODEL, WEIGHTS, Training
from stages.text import TRAIN
from stages.tracking import run_logging
from stages.tracking.models import ALIAS, ChampionModel, register_champion
from stages.tracking.tracker import Tracker


def best_candidate(comparison: Comparison) -> str | None:
    """Of the candidates adopted for training the one with the highest speed-up; None if none is adopted."""
    adopted = _adopted(comparison)
    return max(adopted, key=lambda name: comparison.candidates[name].speedups[TRAIN].ratio, default=None)


def _adopted(comparison: Comparison) -> list[str]:
    return [name for name, candidate in comparison.candidates.items() if candidate.verdict == "adopt"]


def best_training(trainings: Sequence[Training], score_name: str) -> Training:
    """The training with the best final validation score, the first of equals. The test set selects nothing.

    Where the task does not compute the score by epoch, the lowest final validation loss counts, if it computes that.
    """

    def final_score(training: Training) -> float:
        history = training.history
        if history is None:
            return -math.inf
        column, sign = (f"val_{score_name}", 1) if f"val_{score_name}" in history else ("val_loss", -1)
        return sign * float(history[column].iloc[-1]) if column in history else 0.0

    return max(trainings, key=final_score)


def register_best(name: str, comparison: Comparison, study: Study, tracker: Tracker) -> str:
    """Registers the best candidate's model, and returns one line that says what was done.

    Raises:
        ComparisonError: only the weights of the model are stored.
        TrackingError: the store refuses, or does not have the run of the training.
    """
    candidate = best_candidate(comparison)
    if candidate is None:
        return f"compare.register: no candidate was adopted; '{name}' is unchanged"
    (result,) = (item for item in study.candidates if item.variant == candidate)
    training = best_training(result.trainings, study.score_name)
    directory = files.train_dir(candidate, training.seed)
    if not (directory / MODEL).exists():
        raise ComparisonError(
            f"compare.register: '{name}' is unchanged: plain Keras cannot load the classes or functions of the model, "
            f"so {directory / WEIGHTS} holds its weights alone, and no model can be registered; set compare.register "
            "to null"
        )
    run_id = tracker.find(files.verify_manifest(directory), run_logging.training(candidate, training.seed))
    if run_id is None:
        raise TrackingError(
            f"compare.register: the run of {directory.name} is not in the tracking store, so its model cannot be "
            "registered; run `dvc repro` again when the store responds"
        )
    sentence = comparison.candidates[candidate].sentence
    champion = ChampionModel(candidate, training.seed, run_id, directory, sentence)
    version = register_champion(tracker.client, name, champion)
    return (
        f"compare.register: {ALIAS} of '{name}' is version {version}, {candidate} with seed {training.seed}"
        f"{_luck(len(_adopted(comparison)))}"
    )


def _luck(adopted: int) -> str:
    """What choosing the highest of several measured ratios does to it; empty for one."""
    if adopted < 2:
        return ""
    return (
        f"; it is the fastest of {adopted} adopted candidates, which luck favours: expect a little less than its ratio"
    )
