"""Refuses arms that must not be compared: they differ in more than their variant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stages import files
from stages.compare.arms import Study
from stages.errors import ComparisonError

# What a training records of its conditions. The machine of a timing needs no entry: all arms are timed in one stage.
_CONDITIONS = {"data_sha256": "data", "batch_size": "batch size", "environment": "environment"}


def refuse_other_trainings(study: Study) -> None:
    """Refuses trainings that differ from the baseline's first in data, batch size, processor or releases.

    A training that failed does not count: its arm is left out. What a training did not record is not judged.

    Raises:
        ComparisonError: names the arm, the seed and what differs.
    """
    trainings = [(arm.variant, item) for arm in study.arms for item in arm.trainings if not item.failed]
    if not trainings or study.baseline.failures:
        return
    first = study.baseline.trainings[0]
    for variant, training in trainings:
        recorded = {key: first.metrics[key] for key in _CONDITIONS if key in training.metrics and key in first.metrics}
        differing = {_CONDITIONS[key]: key for key in _differing(recorded, training.metrics)}
        if differing:
            values = ", ".join(
                f"{name} {_short(training.metrics[key])} instead of {_short(recorded[key])}"
                for name, key in differing.items()
            )
            folder = files.train_dir(variant, training.seed)
            raise ComparisonError(
                f"{folder}: '{variant}', seed {training.seed}, was not trained like '{study.baseline.variant}', seed "
                f"{first.seed} ({values}), and only arms that differ in their variant alone are compared: run "
                f"`dvc repro -f -s train@{folder.name}`, then `dvc repro`"
            )


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
        differing = sorted({*_differing(expected, found), *_differing(found, expected)})
        if differing:
            values = ", ".join(f"{key} {found.get(key)} instead of {expected.get(key)}" for key in differing)
            raise ComparisonError(
                f"{files.profile_dir(name)}: '{name}' was not measured like '{study.baseline.variant}' ({values}), and "
                "only arms that differ in their variant alone are compared: run `dvc repro -f -s profile`"
            )


def _differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [key for key in expected if expected[key] != found.get(key)]


def _short(value: Any) -> str:
    """A value as it is told; of a digest the beginning is enough."""
    return str(value)[:12] if re.fullmatch("[0-9a-f]{64}", str(value)) else str(value)
