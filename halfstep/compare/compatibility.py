"""Refuses to compare variants that differ in more than their entries of `variants`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep import files
from halfstep.compare.study import Study, VariantResult
from halfstep.errors import ComparisonError
from halfstep.policies import FLOAT32
from halfstep.results.artifact import corrupt
from halfstep.results.profile import same_weights_file
from halfstep.results.training import SCORES
from halfstep.stats.resampling import array_length
from halfstep.text import MEASURE_AGAIN

# The conditions of a training. The machine of a timing needs no entry: one stage times all variants.
_CONDITIONS = {"status": "status", "data_sha256": "data", "batch_size": "batch size", "environment": "environment"}


def check_trainings(study: Study) -> None:
    """Checks that all trainings had the data, batch size, processor and releases of the baseline's first one.

    Trainings that failed are left out, as their variants are.

    Raises:
        ComparisonError: names the variant, the seed and what differs.
    """
    if study.baseline.failures:
        return
    first = study.baseline.trainings[0]
    for result in study.variants:
        conditions = set(_CONDITIONS) - set(_own_conditions(study, result))
        expected = first.metrics.model_dump(include=conditions)
        for training in result.trainings:
            found = training.metrics.model_dump(include=conditions)
            if training.failed or found == expected:
                continue
            folder = files.train_dir(result.variant, training.seed)
            raise ComparisonError(
                f"{folder}: '{result.variant}', seed {training.seed}, was not trained like '{study.baseline.variant}', "
                f"seed {first.seed} ({_differences(expected, found)}): run `dvc repro -f -s train@{folder.name}`, then "
                "`dvc repro`"
            )


def _own_conditions(study: Study, result: VariantResult) -> Iterator[str]:
    """The conditions that entries of `variants` make differ from the baseline's."""
    profiles = [item.profile for item in (study.baseline, result) if item.profile is not None]
    if any(profile.summary.entry.batch_size is not None for profile in profiles):
        yield "batch_size"
    if any(profile.summary.entry.python is not None for profile in profiles):
        yield "environment"


def check_initial_weights(study: Study) -> None:
    """Checks that the trainings of one seed began with the same weights, where their variables are float32.

    Raises:
        ComparisonError: names two that did not.
    """
    first: dict[tuple[int, str | None], tuple[str, NDArray[np.float64]]] = {}
    for result in study.variants:
        for training in result.trainings:
            found = training.metrics.initial_weights
            if found is None or result.profile is None or result.profile.dtype_policy.variables is not FLOAT32:
                continue
            weights = np.array([float(value) for value in found.split()])
            code = result.profile.summary.in_force.task_path
            name, before = first.setdefault((training.seed, code), (result.variant, weights))
            if before.shape != weights.shape or not np.allclose(before, weights, rtol=1e-3, atol=1e-6, equal_nan=True):
                raise ComparisonError(
                    f"'{name}' and '{result.variant}', seed {training.seed}, began with other initial weights, so "
                    "their accuracies say nothing about the precision: take all random numbers in your model from "
                    "Keras, whose seed is set, and train again: `dvc repro -f train`, then `dvc repro`"
                )


def check_metrics(study: Study) -> None:
    """Checks that each array of a metric has the values of one on so many test examples.

    Raises:
        CorruptFileError: it has others.
    """
    task, wanted = study.task, array_length(study.task.examples)
    for result in study.variants if task.score_kind == "metric" else ():
        found = {files.train_dir(result.variant, item.seed) / SCORES: item.scores for item in result.trainings}
        found |= {same_weights_file(result.variant, seed): scores for seed, scores in result.same_weights.items()}
        for path, scores in found.items():
            if scores is not None and len(scores) != wanted:
                raise corrupt(
                    path, f"a metric on {task.examples:,} test examples has {wanted:,} values, not {len(scores):,}"
                )


def check_profiles(study: Study) -> None:
    """Checks that all variants, the control and bridges were measured in the configuration of the baseline.

    Raises:
        ComparisonError: names the variant and the settings that differ.
    """
    if study.baseline.profile is None:
        return
    baseline = study.baseline.profile.summary
    profiles = {result.variant: result.profile for result in study.candidates}
    for name, profile in (profiles | {files.CONTROL: study.control} | dict(study.bridges)).items():
        if profile is None:
            continue
        in_force = profile.summary.in_force
        found, expected = (
            summary.configuration.common(in_force, baseline.in_force) for summary in (profile.summary, baseline)
        )
        if found != expected:
            raise ComparisonError(
                f"{files.profile_dir(name)}: '{name}' was not measured like '{study.baseline.variant}' "
                f"({_differences(expected, found)}): run `{MEASURE_AGAIN}`"
            )


def _differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{_CONDITIONS.get(key, key)} {_short(found[key])} instead of {_short(expected[key])}"
        for key in expected
        if found[key] != expected[key]
    )


def _short(value: Any) -> str:
    """A value as it is shown; the beginning of a digest is enough."""
    return str(value)[:12] if re.fullmatch("[0-9a-f]{64}", str(value)) else str(value)
