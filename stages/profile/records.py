"""The input of a worker, and the raw records of a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stages.params import ModelParams, TrainParams, Variant
from stages.results.profile import Configuration, InForce, Protocol, RawTimes, SameWeights


@dataclass(frozen=True)
class ArmConfig:
    """What the worker of one arm needs: sections of the parameters, and nothing about the other arms.

    `prepared_sha256` is the sha256 of the prepared images' manifest. If it is given, the workers do not verify the
    images again: there are dozens of workers, and each would read all images. None if the parent has not verified them.
    """

    model: ModelParams
    train: TrainParams
    variant: Variant
    seed: int
    prepared_sha256: str | None = None


@dataclass(frozen=True)
class TraceRecord:
    """A trace of `marked_steps` steps, and the time of a step with and without the profiler, in milliseconds."""

    directory: Path
    marked_steps: int
    plain_step_time_ms: float
    traced_step_time_ms: float
    graph_dtypes: Mapping[str, str]


@dataclass(frozen=True)
class ArmSettings:
    """How one arm runs, as its worker reports it after the warm-up.

    `peak_memory_bytes` is the peak of the GPU's allocator before any inference; None without a GPU.
    """

    configuration: Configuration
    in_force: InForce
    peak_memory_bytes: int | None


@dataclass
class ArmRecord:
    """Everything that was measured of one arm."""

    settings: ArmSettings
    times: RawTimes = field(default_factory=RawTimes)
    trace: TraceRecord | None = None


@dataclass(frozen=True)
class Measurement:
    """The records by arm, the protocol, and the same-weights comparisons by candidate."""

    records: dict[str, ArmRecord]
    protocol: Protocol
    same_weights: dict[str, SameWeights] = field(default_factory=dict)
