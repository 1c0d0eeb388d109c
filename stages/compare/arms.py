"""What was measured, as raw values and their n."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stages.speedup import CONFIDENCE

_ONEDNN_PREFIX = re.compile(r"^_Mkl(Native)?")


@dataclass(frozen=True)
class Training:
    """One training of one variant; a failed one has no predictions, and a history only where it wrote one."""

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
    same_weights: dict[str, float] | None = None  # its trained weights computed with in the baseline's precision


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
