"""All that is compared: the trainings and measurements of every variant, read back from their files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep import files
from halfstep.machine import fingerprint
from halfstep.params import CompareParams
from halfstep.params.margin import NEGATIVE_LOSS
from halfstep.params.measures import measures_of
from halfstep.results.artifact import read_array
from halfstep.results.occasions import Earlier, read_earlier
from halfstep.results.prepared import PREPARED_INFO, TEST_CLASSES, TEST_LABELS, PreparedInfo
from halfstep.results.profile import Profile, bridge_name, read_profile, same_weights_file
from halfstep.results.serving import Served, read_served, read_served_scores, read_times
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.results.training import (
    Training,
    TrainingMetrics,
    check_test_examples,
    correct,
    read_scores,
    read_training,
)
from halfstep.text import TRAIN, inference_measure, number_text, percent_text

MARGIN_OF_GAIN = 0.01
LARGEST_P = 0.001  # at which a model counts as one that has learned something


@dataclass(frozen=True)
class VariantResult:
    """One variant: its trainings, and its profile unless one of the trainings failed.

    Attributes:
        same_weights: by seed, the scores of the baseline's trained weights in this variant's precision, as in
            `Training`; without the seeds whose evaluation failed. Empty for the baseline.
    """

    variant: str
    trainings: tuple[Training, ...]
    profile: Profile | None
    same_weights: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[Training, ...]:
        """The trainings that failed."""
        return tuple(training for training in self.trainings if training.failed)

    @property
    def mean_test_score(self) -> float | None:
        """Mean test score over the seeds that finished, in its units; None if none finished."""
        found = [item.metrics.test_score for item in self.trainings if item.metrics.test_score is not None]
        return float(np.mean(found)) if found else None


@dataclass(frozen=True)
class ServedStudy:
    """The trained weights in other formats.

    Attributes:
        info: what was exported.
        times: by format, Keras and its second copy among them.
        scores: by variant and format, those of the test examples in `Training`, of all seeds; without those of a
            format that refuses one of them.
    """

    info: Served
    times: Mapping[str, Profile]
    scores: Mapping[tuple[str, str], NDArray[np.float64]]


@dataclass(frozen=True)
class Study:
    """The baseline, the candidates in the order of `train.variants`, and what they were measured on.

    Attributes:
        control: the second copy of the baseline; None if a training of the baseline failed.
        task: what was trained, and its score.
        data: description of the images; None for other tasks.
        bridges: by the arm's name, the baseline's policy with the other settings of a candidate.
        manifests: sha256 of the manifest of each folder that was read, by its path.
        earlier: what other occasions found of the same arms.
        model: `model.name` of images.
        classes_of_test: the class of each test example, `(examples,)`; None where they have none.
        served: the trained weights in other formats; None without any.
    """

    baseline: VariantResult
    candidates: tuple[VariantResult, ...]
    control: Profile | None
    task: TaskInfo
    data: PreparedInfo | None
    environment: dict[str, Any]
    inference_batch_sizes: tuple[int, ...]
    bridges: Mapping[str, Profile] = field(default_factory=dict)
    manifests: Mapping[str, str] = field(default_factory=dict)
    earlier: Earlier = field(default_factory=lambda: Earlier({}))
    model: str | None = None
    served: ServedStudy | None = None
    classes_of_test: NDArray[np.int64] | None = None

    def bridge(self, candidate: Profile, measure: str) -> Profile | None:
        """The arm between the baseline and a candidate; None where no other setting matters, or it was not needed."""
        name = self.bridge_name(candidate, measure)
        return None if name is None else self.bridges.get(name)

    def bridge_name(self, candidate: Profile, measure: str) -> str | None:
        """Name of that arm, whether it was measured or not."""
        return None if self.baseline.profile is None else _bridge_name(self.baseline.profile, candidate, measure)

    def measures_of(self, variant: str) -> list[str]:
        """What is measured of a variant; everything of one whose profile is not known."""
        entries = {item.variant: item.profile.summary.entry for item in self.variants if item.profile is not None}
        if variant not in entries or self.baseline.variant not in entries:
            return [TRAIN, *map(inference_measure, self.inference_batch_sizes)]
        return measures_of(entries[variant], entries[self.baseline.variant], self.inference_batch_sizes)

    @property
    def speed_only(self) -> bool:
        """Whether nothing is known of the quality: nothing was trained, or the baseline has learned nothing."""
        return self.why_speed_only is not None

    @property
    def why_speed_only(self) -> str | None:
        """Why nothing is known of the quality; None if something is."""
        if any(training.metrics.not_trained for training in self.baseline.trainings):
            return f"nothing was trained ({self.task.speed_only or 'train.epochs is 0'})"
        return self.learned_nothing

    @property
    def learned_nothing(self) -> str | None:
        """That the baseline's score is hardly better than that of permuted predictions; None if it is, or if unknown.

        With several seeds one is enough, at a p-value divided by their number.
        """
        found = [item.metrics.permuted_p for item in self.baseline.trainings if item.metrics.permuted_p is not None]
        if not found or min(found) * len(found) <= LARGEST_P:
            return None
        if all(_is_same_in_any_order(item.metrics) for item in self.baseline.trainings):
            return (
                f"nothing shows that {self.baseline.variant} has learned anything ({self.score_name} "
                f"{self._mean_text('test_score')}, also with its predictions in another order, as where all targets of "
                "the test are equal)"
            )
        return (
            f"{self.baseline.variant} has hardly learned anything ({self.score_name} "
            f"{self._mean_text('test_score')}, by chance {self._mean_text('permuted_score')})"
        )

    def _mean_text(self, name: str) -> str:
        """A mean over the baseline's trainings, in percent where it is one of images."""
        values = [value for item in self.baseline.trainings if (value := getattr(item.metrics, name)) is not None]
        mean = sum(values) / len(values)
        return percent_text(mean, 1) if self.task.has_classes else number_text(mean)

    def class_name(self, number: int) -> str:
        """Name of a class of the test examples: its number, where no other is known."""
        return str(number) if self.data is None else self.data.classes[number]

    @property
    def classes(self) -> int | None:
        """Number of the images' classes, which decides about a layer's width; None for other tasks."""
        return None if self.data is None else len(self.data.classes)

    @property
    def score_name(self) -> str:
        """Name of the score."""
        return self.task.score_name

    @property
    def variants(self) -> tuple[VariantResult, ...]:
        """The baseline, then the candidates."""
        return (self.baseline, *self.candidates)


def _is_same_in_any_order(metrics: TrainingMetrics) -> bool:
    """Whether permuted predictions score the same, as where all of them, or all targets, are equal."""
    score, permuted = metrics.test_score, metrics.permuted_score
    return score is not None and permuted is not None and math.isclose(score, permuted, rel_tol=1e-9)


def with_margin(params: CompareParams, study: Study) -> CompareParams:
    """The parameters with the margin of a script's loss, where none is declared."""
    if params.quality_margin is not None or study.task.script is None or study.score_name != NEGATIVE_LOSS:
        return params
    margin = margin_of_gain([item.metrics for item in study.baseline.trainings])
    return params if margin is None else params.model_copy(update={"quality_margin": margin})


def margin_of_gain(trainings: Iterable[TrainingMetrics]) -> float | None:
    """1 % of what the score of the baseline's trainings gains over permuted predictions; None without a gain."""
    gains = [
        metrics.test_score - metrics.permuted_score
        for metrics in trainings
        if metrics.test_score is not None and metrics.permuted_score is not None
    ]
    gain = float(np.mean(gains)) if gains else 0.0
    return MARGIN_OF_GAIN * gain if gain > 0 else None


def load_study(
    baseline: str, variants: Sequence[str], seeds: Sequence[int], inference_batch_sizes: Sequence[int]
) -> Study:
    """Reads the files of every variant below `data/`.

    Raises:
        DataError: a file is missing.
        CorruptFileError: a file is not what was written.
        ComparisonError: a training was tested on another test set.
    """
    task = TaskInfo.read(files.verified(files.PREPARED, TASK_INFO.name))
    labels = _read_labels(TEST_LABELS) if task.has_classes else None
    before = _load_variant(baseline, seeds, task, labels, ())
    trained = [training.seed for training in before.trainings if not training.metrics.not_trained]
    same_weights = () if before.failures else trained
    candidates = tuple(
        _load_variant(variant, seeds, task, labels, same_weights) for variant in variants if variant != baseline
    )
    study = Study(
        baseline=before,
        candidates=candidates,
        control=None if before.failures else read_profile(files.CONTROL),
        task=task,
        data=PreparedInfo.read(files.verified(files.PREPARED, PREPARED_INFO.name)) if task.has_classes else None,
        environment=fingerprint.read(),
        inference_batch_sizes=tuple(inference_batch_sizes),
        bridges=_load_bridges(before, candidates),
        earlier=read_earlier(before.profile.summary.protocol if before.profile else None),
        model=files.read_json(files.MODEL_FILE).get("name") if files.MODEL_FILE.is_file() else None,
        served=_load_served(task, labels, tests=bool(trained)),
        classes_of_test=_read_labels(TEST_CLASSES) if (files.PREPARED / TEST_CLASSES).is_file() else labels,
    )
    return replace(study, manifests=_manifests(study))


def _load_served(task: TaskInfo, labels: NDArray[np.int64] | None, *, tests: bool) -> ServedStudy | None:
    """What was served; without `tests`, because nothing was trained, its scores are not known."""
    info = read_served()
    if info is None or not info.exports:
        return None
    times = {name: read_times(name) for name in (*info.timed, *([files.CONTROL] if info.timed else []))}
    scores = {
        (variant, name): np.stack([read_served_scores(variant, item.seed, name, task, labels) for item in exports])
        for (variant, name), exports in info.by_row.items()
        if tests and all(item.refusal is None for item in exports)
    }
    return ServedStudy(info, times, scores)


def _manifests(study: Study) -> dict[str, str]:
    profiled = [item.variant for item in study.variants if item.profile is not None]
    folders = [
        files.PREPARED,
        *(files.train_dir(item.variant, training.seed) for item in study.variants for training in item.trainings),
        *(files.profile_dir(name) for name in (*profiled, *study.bridges)),
        *([files.profile_dir(files.CONTROL)] if study.control else []),
        *([files.SERVE] if study.served else []),
    ]
    return {folder.as_posix(): files.sha256_file(folder / files.MANIFEST) for folder in folders}


def _read_labels(name: str) -> NDArray[np.int64]:
    return read_array(files.verified(files.PREPARED, name), dimensions=1).astype(np.int64)


def _load_variant(
    variant: str, seeds: Sequence[int], task: TaskInfo, labels: NDArray[np.int64] | None, same_weights: Sequence[int]
) -> VariantResult:
    trainings = tuple(read_training(variant, seed, task, labels) for seed in seeds)
    if any(training.failed for training in trainings):
        return VariantResult(variant, trainings, None)
    if labels is None:
        paths = {seed: same_weights_file(variant, seed) for seed in same_weights}
        scores = {seed: read_scores(path, task) for seed, path in paths.items() if path.is_file()}
        return VariantResult(variant, trainings, read_profile(variant), scores)
    profile = read_profile(variant, same_weights)
    for seed, probabilities in profile.same_weights.items():
        check_test_examples(same_weights_file(variant, seed), len(probabilities), task)
    scores = {seed: correct(probabilities, labels) for seed, probabilities in profile.same_weights.items()}
    return VariantResult(variant, trainings, profile, scores)


def _load_bridges(baseline: VariantResult, candidates: Sequence[VariantResult]) -> dict[str, Profile]:
    if baseline.profile is None:
        return {}
    found = (_bridge_name(baseline.profile, item.profile) for item in candidates if item.profile is not None)
    names = sorted({name for name in found if name is not None and files.profile_dir(name).is_dir()})
    return {name: read_profile(name) for name in names}


def _bridge_name(baseline: Profile, candidate: Profile, measure: str = TRAIN) -> str | None:
    device = baseline.summary.configuration.device
    return bridge_name(baseline.summary.in_force, candidate.summary.in_force, device, measure)
