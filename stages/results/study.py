"""All that is compared: the trainings and measurements of every variant, read back from their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages import files, fingerprint
from stages.errors import ComparisonError
from stages.results.artifact import read_array
from stages.results.prepared import PreparedInfo
from stages.results.profile import Profile, bridge_name, read_profile, same_weights_file
from stages.results.training import Training, read_training


@dataclass(frozen=True)
class VariantResult:
    """One variant: its trainings, and its profile unless one of the trainings failed."""

    variant: str
    trainings: tuple[Training, ...]
    profile: Profile | None

    @property
    def failures(self) -> tuple[Training, ...]:
        """The trainings that failed."""
        return tuple(training for training in self.trainings if training.failed)

    @property
    def mean_test_accuracy(self) -> float | None:
        """Mean test accuracy over the seeds that finished, as a fraction; None if none finished."""
        found = [item.metrics.test_accuracy for item in self.trainings if item.metrics.test_accuracy is not None]
        return float(np.mean(found)) if found else None


@dataclass(frozen=True)
class Study:
    """The baseline, the candidates in the order of `train.variants`, and what they were measured on.

    Attributes:
        control: the second copy of the baseline; None if a training of the baseline failed.
        labels: int64 `(test images,)`.
        bridges: by the arm's name, the baseline's policy with the other settings of a candidate.
    """

    baseline: VariantResult
    candidates: tuple[VariantResult, ...]
    control: Profile | None
    labels: NDArray[np.int64]
    data: PreparedInfo
    environment: dict[str, Any]
    inference_batch_sizes: tuple[int, ...]
    bridges: Mapping[str, Profile] = field(default_factory=dict)

    def bridge(self, candidate: Profile) -> Profile | None:
        """The arm between the baseline and a candidate; None where no other setting than the precision differs."""
        name = None if self.baseline.profile is None else _bridge_name(self.baseline.profile, candidate)
        return None if name is None else self.bridges[name]

    @property
    def variants(self) -> tuple[VariantResult, ...]:
        """The baseline, then the candidates."""
        return (self.baseline, *self.candidates)


def load_study(
    baseline: str, variants: Sequence[str], seeds: Sequence[int], inference_batch_sizes: Sequence[int]
) -> Study:
    """Reads the files of every variant below `data/`.

    Raises:
        DataError: a file is missing.
        CorruptFileError: a file is not what was written.
        ComparisonError: a training was tested on another test set.
    """
    labels = read_array(files.verified(files.PREPARED, "test_labels.npy"), dimensions=1).astype(np.int64)
    before = _load_variant(baseline, seeds, len(labels), ())
    same_weights = () if before.failures else seeds
    candidates = tuple(
        _load_variant(variant, seeds, len(labels), same_weights) for variant in variants if variant != baseline
    )
    return Study(
        baseline=before,
        candidates=candidates,
        control=None if before.failures else read_profile(files.CONTROL),
        labels=labels,
        data=PreparedInfo.read(files.verified(files.PREPARED, "info.json")),
        environment=fingerprint.read(),
        inference_batch_sizes=tuple(inference_batch_sizes),
        bridges=_load_bridges(before, candidates),
    )


def _load_variant(variant: str, seeds: Sequence[int], test_images: int, same_weights: Sequence[int]) -> VariantResult:
    trainings = tuple(read_training(variant, seed, test_images) for seed in seeds)
    failed = any(training.failed for training in trainings)
    profile = None if failed else read_profile(variant, same_weights)
    for seed, probabilities in profile.same_weights.items() if profile else ():
        if len(probabilities) != test_images:
            raise ComparisonError(
                f"{same_weights_file(variant, seed)} has {len(probabilities)} rows and the test set has {test_images} "
                "images: run `dvc repro -f -s profile`"
            )
    return VariantResult(variant, trainings, profile)


def _load_bridges(baseline: VariantResult, candidates: Sequence[VariantResult]) -> dict[str, Profile]:
    if baseline.profile is None:
        return {}
    found = (_bridge_name(baseline.profile, item.profile) for item in candidates if item.profile is not None)
    return {name: read_profile(name) for name in sorted({name for name in found if name is not None})}


def _bridge_name(baseline: Profile, candidate: Profile) -> str | None:
    device = baseline.summary.configuration.device
    return bridge_name(baseline.summary.in_force, candidate.summary.in_force, device)
