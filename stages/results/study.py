"""All that is compared: the trainings and measurements of every variant, read back from their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages import files, fingerprint
from stages.results.artifact import read_array
from stages.results.prepared import PreparedInfo
from stages.results.profile import Profile, read_profile
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
    """

    baseline: VariantResult
    candidates: tuple[VariantResult, ...]
    control: Profile | None
    labels: NDArray[np.int64]
    data: PreparedInfo
    environment: dict[str, Any]
    inference_batch_sizes: tuple[int, ...]

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
    found = {variant: _load_variant(variant, seeds, len(labels)) for variant in variants}
    return Study(
        baseline=found[baseline],
        candidates=tuple(result for variant, result in found.items() if variant != baseline),
        control=None if found[baseline].failures else read_profile(files.CONTROL),
        labels=labels,
        data=PreparedInfo.read(files.verified(files.PREPARED, "info.json")),
        environment=fingerprint.read(),
        inference_batch_sizes=tuple(inference_batch_sizes),
    )


def _load_variant(variant: str, seeds: Sequence[int], test_images: int) -> VariantResult:
    trainings = tuple(read_training(variant, seed, test_images) for seed in seeds)
    failed = any(training.failed for training in trainings)
    return VariantResult(variant, trainings, None if failed else read_profile(variant))
