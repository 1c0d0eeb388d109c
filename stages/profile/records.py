"""What a measurement is made of: the task that a worker gets, and the raw times that come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.params import ModelParams, TrainParams, Variant


@dataclass(frozen=True)
class Task:
    """What a worker needs to know: sections of the parameters, and nothing of the other workers."""

    model: ModelParams
    train: TrainParams
    variant: Variant
    seed: int


@dataclass(frozen=True)
class Round:
    """One turn of `steps` training steps; `position` is its place in the order of the round."""

    process: int
    round: int
    position: int
    steps: int
    round_time_ms: float


@dataclass(frozen=True)
class Step:
    """One training step with the device waited for at its end."""

    process: int
    round: int
    step: int
    step_time_ms: float


@dataclass(frozen=True)
class Call:
    """One prediction, from pixels on the host to probabilities on the host."""

    process: int
    round: int
    batch_size: int
    call: int
    latency_ms: float


@dataclass(frozen=True)
class TraceTaken:
    """A trace of `marked_steps` steps, and what it cost: milliseconds of a step without the profiler and with it."""

    directory: Path
    marked_steps: int
    plain_step_time_ms: float
    traced_step_time_ms: float
    graph_dtypes: Mapping[str, str]


@dataclass
class ArmRecord:
    """Everything that was measured of one arm, raw."""

    rounds: list[Round] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    peak_device_bytes: int | None = None
    trace: TraceTaken | None = None
