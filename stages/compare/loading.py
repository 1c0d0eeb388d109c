"""Reads back from the files what the other stages measured, and checks it before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stages import files
from stages.compare.arms import Arm, Operation, Profile, Study, Training
from stages.compare.comparable import refuse_other_configurations, refuse_other_trainings
from stages.environment import fingerprint
from stages.errors import ComparisonError, CorruptFileError, DataError

_COLUMNS = {
    "rounds.csv": ["process", "round", "position", "steps", "round_time_ms"],
    "inference.csv": ["process", "round", "batch_size", "call", "latency_ms"],
    "timings.csv": ["process", "round", "step", "step_time_ms"],
    "history.csv": ["epoch", "accuracy", "val_accuracy"],
}
MAY_BE_EMPTY = "inference.csv"  # where profile.inference_batch_sizes lists none


def load_study(
    baseline: str, variants: Sequence[str], seeds: Sequence[int], inference_batch_sizes: Sequence[int]
) -> Study:
    """Reads every arm's files below `data/`.

    Raises:
        DataError: a file is missing.
        CorruptFileError: a file is not what its manifest says, or does not hold what its contract says.
        ComparisonError: two arms were trained or measured under different conditions.
    """
    labels = _array(files.checked(files.PREPARED, "test_labels.npy"), dimensions=1).astype(np.int64)
    arms = {variant: _load_arm(variant, seeds, len(labels)) for variant in variants}
    study = Study(
        baseline=arms[baseline],
        candidates=tuple(arm for variant, arm in arms.items() if variant != baseline),
        control=None if arms[baseline].failures else _load_profile(files.CONTROL),
        labels=labels,
        data=_json_object(files.checked(files.PREPARED, "info.json")),
        environment=fingerprint.read(),
        inference_batch_sizes=tuple(inference_batch_sizes),
    )
    refuse_other_trainings(study)
    refuse_other_configurations(study)
    return study


def _load_arm(variant: str, seeds: Sequence[int], images: int) -> Arm:
    trainings = tuple(_load_training(variant, seed, images) for seed in seeds)
    failed = any(training.failed for training in trainings)
    return Arm(variant, trainings, None if failed else _load_profile(variant))


def _load_training(variant: str, seed: int, images: int) -> Training:
    folder = files.train_dir(variant, seed)
    files.check_manifest(folder)
    metrics = _json_object(folder / "metrics.json")
    if metrics.get("status") != "finished":
        history = folder / "history.csv"
        return Training(seed, metrics, _table(history) if history.is_file() and _has_rows(history) else None)
    probabilities = _array(folder / "predictions.npy", dimensions=2)
    if len(probabilities) != images:
        raise ComparisonError(
            f"{folder / 'predictions.npy'} holds {len(probabilities)} predictions and the test set {images} images: "
            f"run `dvc repro -f -s train@{variant}-{seed}`"
        )
    return Training(seed, metrics, _table(folder / "history.csv"), probabilities.argmax(axis=1))


def _has_rows(table: Path) -> bool:
    return len(table.read_text(encoding="utf-8").splitlines()) > 1


def _load_profile(name: str) -> Profile:
    folder = files.profile_dir(name)
    files.check_manifest(folder)
    summary = _json_object(folder / "summary.json")
    try:
        return Profile(
            rounds=_table(folder / "rounds.csv"),
            inference=_table(folder / "inference.csv"),
            timings=_table(folder / "timings.csv"),
            metrics={key: float(value) for key, value in summary["metrics"].items()},
            entry=dict(summary["entry"]),
            configuration=dict(summary["configuration"]),
            operations=tuple(_operation(row) for row in summary.get("operations", [])),
            warnings=tuple(summary.get("warnings", [])),
            device_type=str(summary.get("device_type", "CPU")),
            confidence=float(summary["protocol"]["confidence"]),
            protocol=dict(summary["protocol"]),
            same_weights=summary.get("same_weights"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _corrupt(folder / "summary.json", f"{type(error).__name__}: {error}") from error


def _operation(row: dict[str, Any]) -> Operation:
    known = {key: row[key] for key in Operation.__dataclass_fields__ if key in row}
    return Operation(**known)


def _json_object(path: Path) -> dict[str, Any]:
    value = files.read_json(path)
    if not isinstance(value, dict):
        raise _corrupt(path, "it holds no object")
    return value


def _table(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (ValueError, pd.errors.ParserError) as error:
        raise _corrupt(path, str(error)) from error
    missing = [column for column in _COLUMNS[path.name] if column not in table.columns]
    if missing or (table.empty and path.name != MAY_BE_EMPTY):
        raise _corrupt(path, f"columns {', '.join(missing)} are missing" if missing else "it has no rows")
    return table


def _array(path: Path, dimensions: int) -> NDArray[Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (ValueError, EOFError, OSError) as error:
        raise _corrupt(path, str(error)) from error
    if array.ndim != dimensions or not np.isfinite(array).all():
        raise _corrupt(path, f"{dimensions} dimensions of finite numbers are expected, found shape {array.shape}")
    return np.asarray(array)


def _stage_of(path: Path) -> str:
    """The DVC stage that writes a file below `data/`."""
    if path.is_relative_to(files.TRAIN):
        return f"train@{path.relative_to(files.TRAIN).parts[0]}"
    return "profile" if path.is_relative_to(files.PROFILE) else "prepare"


def _missing(path: Path) -> DataError:
    return DataError(f"{path} is missing: run `dvc repro -f -s {_stage_of(path)}`")


def _corrupt(path: Path, why: str) -> CorruptFileError:
    reason = " ".join(why.split())
    return CorruptFileError(f"{path} cannot be used ({reason}): run `dvc repro -f -s {_stage_of(path)}`")
