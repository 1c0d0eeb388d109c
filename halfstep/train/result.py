"""What a training leaves, without its model: what the process that trains sends to the stage. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.machine import fingerprint
from halfstep.results.training import Overflow, TrainingMetrics
from halfstep.train.epochs import Epoch


@dataclass(frozen=True)
class TrainingFailure:
    """Why a training failed. `epoch`, and `step` within it, count from 1."""

    reason: str
    epoch: int | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A training and its test.

    Attributes:
        epochs: the epochs that have ended.
        failure: why the training ended early, for a numerical reason; None if it finished.
        train_time_s: seconds in `fit`, with validation and compilation, without logging. After an interruption, the
            sum over all sessions, without repeated work.
        outputs: what is stored of the test, as `ReadyTask.outputs` returns it; None after a failure.
        tested: numbers of the test for `metrics.json`, by name.
        permuted: as `scoring.permuted_scores` returns it; None after a failure.
        loss_scale: final loss scale; None without loss scaling.
        steps_per_epoch, batch_size: training steps of an epoch, and examples of a step.
        keeps_predictions: whether `outputs` are predictions, in place of scores.
        score_name: of the task; None where nothing is scored.
        data_sha256, initial_weights: as in `metrics.json`.
        releases: of the libraries that trained, as `fingerprint.versions` returns them.
        overflow, underflow: the layers in which numbers leave the range of 16 bits, as in `metrics.json`.
    """

    epochs: tuple[Epoch, ...]
    failure: TrainingFailure | None
    train_time_s: float
    outputs: NDArray[Any] | None
    tested: Mapping[str, float]
    permuted: tuple[NDArray[np.float64], NDArray[np.float64]] | None
    loss_scale: float | None
    steps_per_epoch: int
    batch_size: int
    keeps_predictions: bool
    score_name: str | None
    data_sha256: str
    releases: Mapping[str, str]
    initial_weights: str
    overflow: Overflow | None = None
    underflow: dict[str, float] | None = None

    def metrics(self) -> TrainingMetrics:
        """Content of `metrics.json`."""
        steps = len(self.epochs) * self.steps_per_epoch
        skipped = [row.skipped_steps for row in self.epochs if row.skipped_steps is not None]
        return TrainingMetrics(
            status="failed" if self.failure else "finished",
            **(vars(self.failure) if self.failure else {}),
            **self.tested,
            **of_permuted(self.permuted),
            train_time_s=self.train_time_s,
            train_images_per_s=steps * self.batch_size / self.train_time_s if self.keeps_predictions else None,
            loss_scale=self.loss_scale,
            skipped_share=sum(skipped) / steps if skipped else None,
            batch_size=self.batch_size,
            data_sha256=self.data_sha256,
            environment=fingerprint.trained_on(self.releases),
            initial_weights=self.initial_weights,
            overflow=self.overflow,
            underflow=self.underflow,
        )


def of_permuted(pair: tuple[NDArray[np.float64], NDArray[np.float64]] | None) -> dict[str, float]:
    """The mean score of permuted predictions, and whether it is as good as that of the predictions (a paired t-test).

    As keys of `metrics.json`; empty where it is not known.
    """
    from scipy import stats  # not in the process that trains

    if pair is None:
        return {}
    scores, permuted = pair
    gains = scores - permuted
    p = float(stats.ttest_1samp(gains, 0.0, alternative="greater").pvalue) if np.ptp(gains) else float(gains[0] <= 0)
    return {"permuted_score": float(permuted.mean()), "permuted_p": p}
