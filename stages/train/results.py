"""A training as files: what the rest of the pipeline knows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stages import files
from stages.train.callbacks import Epoch
from stages.train.training import Trained

HISTORY_COLUMNS = ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_time_s"]


def write_results(trained: Trained, labels: np.ndarray, directory: Path) -> str:
    """Writes metrics, history, model and predictions of a training, and returns the sha256 of their manifest.

    A failed training leaves its model and history for whoever looks into it, and predictions only where there are any.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files.write_json(directory / "metrics.json", metrics(trained, labels))
    files.write_text(directory / "history.csv", _history(trained.epochs))
    with files.atomic_path(directory / "model.keras") as beside:
        trained.model.save(beside)
    if trained.probabilities is not None:
        with files.atomic_path(directory / "predictions.npy") as beside:
            np.save(beside, trained.probabilities, allow_pickle=False)
    return files.write_manifest(directory)


def metrics(trained: Trained, labels: np.ndarray) -> dict[str, Any]:
    """The numbers of `metrics.json`; what does not apply is absent."""
    values = {
        "status": "failed" if trained.failure else "finished",
        "reason": trained.failure,
        "test_accuracy": None if trained.failure else trained.test_accuracy(labels),
        "test_loss": None if trained.failure else trained.test_loss,
        "train_time_s": trained.train_time_s,
        "train_images_per_s": trained.images / trained.train_time_s,
        "loss_scale": trained.loss_scale,
    }
    return {name: value for name, value in values.items() if value is not None}


def _history(epochs: tuple[Epoch, ...]) -> str:
    rows = [vars(row) for row in epochs]
    return pd.DataFrame(rows, columns=HISTORY_COLUMNS).to_csv(index=False, na_rep="nan")
