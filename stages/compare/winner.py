"""The winner's way into the model registry."""

from __future__ import annotations

from stages import files
from stages.compare.arms import Arm, Training
from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.compare.wording import verdict_sentence
from stages.errors import TrackingError
from stages.tracking import views
from stages.tracking.registry import ALIAS, Winner, register_champion
from stages.tracking.runs import Tracker


def winner(comparison: Comparison) -> Candidate | None:
    """Of the candidates that are adopted for training the one with the highest speed-up; None where none is."""
    return max(comparison.adopted, key=lambda candidate: candidate.speedups[TRAIN].ratio, default=None)


def best_training(arm: Arm) -> Training:
    """The training with the best validation accuracy at its end, the first of equals: the test set chooses nothing."""
    return max(arm.trainings, key=lambda item: -1.0 if item.history is None else item.history["val_accuracy"].iloc[-1])


def register_winner(name: str, comparison: Comparison, tracker: Tracker) -> str:
    """Puts the winner's model into the registry, and says in one line what was done.

    Raises:
        TrackingError: the store refuses, or does not hold the winner's training.
    """
    chosen = winner(comparison)
    if chosen is None:
        return f"compare.register: no candidate was adopted, so '{name}' stays as it is"
    training = best_training(chosen.arm)
    directory = files.train_dir(chosen.variant, training.seed)
    run_id = tracker.find(files.check_manifest(directory), views.training(chosen.variant, training.seed))
    if run_id is None:
        raise TrackingError(
            f"compare.register: the run of {directory.name} is not in the tracking store, so its model cannot be "
            "registered; run `dvc repro` again when the store answers"
        )
    won = Winner(chosen.variant, training.seed, run_id, directory, verdict_sentence(chosen, comparison))
    version = register_champion(name, won)
    return f"compare.register: {ALIAS} of '{name}' is version {version}, {chosen.variant} with seed {training.seed}"
