"""A training as files: what the rest of the pipeline knows of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stages import files
from stages.environment import fingerprint
from stages.train.training import Trained

HISTORY_COLUMNS = ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_time_s"]
OF_LOSS_SCALING = ["loss_scale", "skipped_steps"]  # columns that are there where it is


def write_results(trained: Trained, labels: np.ndarray, directory: Path) -> str:
    """Writes metrics, history, model and predictions of a training, and returns the sha256 of their manifest.

    A failed training leaves its model and history for whoever looks into it, and predictions only where there are any.
    What lay there before is removed, as DVC does before it starts the stage: the manifest holds all that is there.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    files.write_json(directory / "metrics.json", metrics(trained, labels))
    files.write_text(directory / "history.csv", _history(trained))
    with files.atomic_path(directory / "model.keras") as beside:
        trained.model.save(beside)
    if trained.probabilities is not None:
        with files.atomic_path(directory / "predictions.npy") as beside:
            np.save(beside, trained.probabilities, allow_pickle=False)
    return files.write_manifest(directory)


def metrics(trained: Trained, labels: np.ndarray) -> dict[str, Any]:
    """The numbers of `metrics.json`; what does not apply is absent."""
    failure = trained.failure
    values = {
        "status": "failed" if failure else "finished",
        "reason": failure.reason if failure else None,
        "epoch": failure.epoch if failure else None,
        "step": failure.step if failure else None,
        "test_accuracy": None if failure else trained.test_accuracy(labels),
        "test_loss": None if failure else trained.test_loss,
        "train_time_s": trained.train_time_s,
        "train_images_per_s": trained.images / trained.train_time_s,
        "loss_scale": trained.loss_scale,
        "batch_size": trained.batch_size,
        "data_sha256": trained.data_sha256,
        "environment": fingerprint.trained_on(),
    }
    return {name: value for name, value in values.items() if value is not None}


def _history(trained: Trained) -> str:
    columns = HISTORY_COLUMNS + ([] if trained.loss_scale is None else OF_LOSS_SCALING)
    rows = [vars(row) for row in trained.epochs]
    return pd.DataFrame(rows, columns=columns).to_csv(index=False, na_rep="nan")
