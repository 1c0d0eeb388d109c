"""The input of a worker, and the raw records of a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stages.params import Variant
from stages.results.profile import Configuration, InForce, Protocol, RawTimes
from stages.tasks.spec import TaskSpec


@dataclass(frozen=True)
class ArmConfig:
    """What the worker of one arm needs: the task, an entry of `variants`, and nothing about the other arms.

    `xla_choices` is where XLA writes what its autotuner chose; None without a GPU.
    """

    spec: TaskSpec
    variant: Variant
    seed: int
    xla_choices: Path | None = None


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
    """How one arm runs, as its worker reports it after the warm-up."""

    configuration: Configuration
    in_force: InForce


@dataclass(frozen=True)
class Calibration:
    """Costs of one arm, from which the protocol is planned.

    Attributes:
        step_time_ms: time of a training step.
        input_time_ms: time of the input pipeline for one batch, in all of its threads together.
        buffered_batches: batches that the input pipeline prepares in advance.
        peak_memory_bytes: peak during these training steps: of the GPU's allocator, on a CPU of the resident memory.
    """

    step_time_ms: float
    input_time_ms: float
    buffered_batches: int
    peak_memory_bytes: int


@dataclass
class ArmRecord:
    """Everything that was measured of one arm with its entry of `variants`.

    `peak_memory_bytes` is as in `Calibration`. `xla_choices` is what XLA's autotuner chose, by process; empty where XLA
    tuned nothing.
    """

    entry: Variant
    settings: ArmSettings
    peak_memory_bytes: int | None = None
    times: RawTimes = field(default_factory=RawTimes)
    trace: TraceRecord | None = None
    xla_choices: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """The records by arm, the protocol, and by candidate and seed what the baseline's weights give in its precision."""

    records: dict[str, ArmRecord]
    protocol: Protocol
    trace_steps: int
    same_weights: dict[str, dict[int, NDArray[np.float32]]] = field(default_factory=dict)
