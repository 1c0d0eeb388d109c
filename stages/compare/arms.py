"""What was measured, read back from the files: raw values and their n, checked before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stages import files
from stages.errors import ComparisonError, CorruptFileError, DataError
from stages.speedup import CONFIDENCE

_COLUMNS = {
    "rounds.csv": ["process", "round", "position", "steps", "round_time_ms"],
    "inference.csv": ["process", "round", "batch_size", "call", "latency_ms"],
    "timings.csv": ["process", "round", "step", "step_time_ms"],
    "history.csv": ["epoch", "accuracy", "val_accuracy"],
}


_ONEDNN_PREFIX = re.compile(r"^_Mkl(Native)?")


@dataclass(frozen=True)
class Training:
    """One training of one variant. `correct` is boolean, `(test images,)`; a failed training has no results."""

    seed: int
    metrics: dict[str, Any]
    history: pd.DataFrame | None = None
    predicted: NDArray[np.int64] | None = None  # class index of each test image

    @property
    def failed(self) -> bool:
        """Whether the training ended without a usable model."""
        return self.metrics.get("status") != "finished"

    @property
    def failure(self) -> str:
        """Why it failed, in words."""
        return str(self.metrics.get("reason", "no reason was recorded"))


@dataclass(frozen=True)
class Operation:
    """An operation of the traced step, its self time in milliseconds a step summed over its occurrences."""

    type: str
    name: str
    occurrences: float
    self_time_ms_per_step: float
    dtype: str | None = None
    tensor_core: bool | None = None

    @property
    def kind(self) -> str:
        """The operation's type, whichever library computed it."""
        return _ONEDNN_PREFIX.sub("", self.type)


@dataclass(frozen=True)
class Profile:
    """Measurements of one variant on this machine: raw times, and the numbers of its summary under contract names."""

    rounds: pd.DataFrame
    inference: pd.DataFrame
    timings: pd.DataFrame
    metrics: dict[str, float]
    entry: dict[str, Any]
    configuration: dict[str, Any]
    operations: tuple[Operation, ...]
    warnings: tuple[str, ...]
    device_type: str
    confidence: float = CONFIDENCE  # of the intervals, as the look that ended the measurement has it
    protocol: dict[str, Any] = field(default_factory=dict)  # how it was measured, and what ended it


@dataclass(frozen=True)
class Arm:
    """One variant: its trainings, and its profile unless one of the trainings failed."""

    variant: str
    trainings: tuple[Training, ...]
    profile: Profile | None

    @property
    def failures(self) -> tuple[Training, ...]:
        """The trainings that failed."""
        return tuple(training for training in self.trainings if training.failed)


@dataclass(frozen=True)
class Study:
    """All arms that are compared, and what they were measured on."""

    baseline: Arm
    candidates: tuple[Arm, ...]
    control: Profile | None  # second copy of the baseline; None where the baseline itself failed
    labels: NDArray[np.int64]  # (test images,)
    data: dict[str, Any]
    environment: dict[str, Any]
    inference_batch_sizes: tuple[int, ...]

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, then the candidates in the order of `train.variants`."""
        return (self.baseline, *self.candidates)

    @property
    def synthetic(self) -> bool:
        """Whether the images were made up, so that accuracy means nothing."""
        return bool(self.data.get("synthetic", False))


def load_study(
    baseline: str, variants: Sequence[str], seeds: Sequence[int], inference_batch_sizes: Sequence[int]
) -> Study:
    """Reads every arm's files below `data/`.

    Raises:
        DataError: a file is missing.
        CorruptFileError: a file is not what its manifest says, or does not hold what its contract says.
        ComparisonError: two arms were measured under different settings.
    """
    labels = _array(files.PREPARED / "test_labels.npy", dimensions=1).astype(np.int64)
    arms = {variant: _load_arm(variant, seeds, len(labels)) for variant in variants}
    study = Study(
        baseline=arms[baseline],
        candidates=tuple(arm for variant, arm in arms.items() if variant != baseline),
        control=None if arms[baseline].failures else _load_profile(files.CONTROL),
        labels=labels,
        data=_json_object(files.PREPARED / "info.json"),
        environment=_json_object(files.ENVIRONMENT_FILE),
        inference_batch_sizes=tuple(inference_batch_sizes),
    )
    refuse_other_configurations(study)
    return study


def refuse_other_configurations(study: Study) -> None:
    """Refuses arms that differ from the baseline in more than their variant.

    Raises:
        ComparisonError: names the arm and the settings that differ.
    """
    if study.baseline.profile is None:
        return
    expected = study.baseline.profile.configuration
    others = {arm.variant: arm.profile for arm in study.candidates} | {files.CONTROL: study.control}
    for name, profile in others.items():
        found = profile.configuration if profile else expected
        differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        if differing:
            values = ", ".join(f"{key} {found.get(key)} instead of {expected.get(key)}" for key in differing)
            raise ComparisonError(
                f"{files.profile_dir(name)}: '{name}' was not measured like '{study.baseline.variant}' ({values}), and "
                "only arms that differ in their variant alone are compared: run `dvc repro -f -s profile`"
            )


def _load_arm(variant: str, seeds: Sequence[int], images: int) -> Arm:
    trainings = tuple(_load_training(variant, seed, images) for seed in seeds)
    failed = any(training.failed for training in trainings)
    return Arm(variant, trainings, None if failed else _load_profile(variant))


def _load_training(variant: str, seed: int, images: int) -> Training:
    folder = files.train_dir(variant, seed)
    files.check_manifest(folder)
    metrics = _json_object(folder / "metrics.json")
    if metrics.get("status") != "finished":
        return Training(seed, metrics)
    probabilities = _array(folder / "predictions.npy", dimensions=2)
    if len(probabilities) != images:
        raise ComparisonError(
            f"{folder / 'predictions.npy'} holds {len(probabilities)} predictions and the test set {images} images: "
            f"run `dvc repro -f -s train@{variant}-{seed}`"
        )
    return Training(seed, metrics, _table(folder / "history.csv"), probabilities.argmax(axis=1))


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
    if missing or table.empty:
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
