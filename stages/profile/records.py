"""What a measurement is made of: the task that a worker gets, and the raw times that come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stages.params import ModelParams, TrainParams, Variant


@dataclass(frozen=True)
class Task:
    """What a worker needs to know: sections of the parameters, and nothing of the other workers.

    `prepared_sha256` is what the prepared images' manifest was found to be by who has checked them: there are dozens
    of workers, and each would read all images again. None: not checked yet.
    """

    model: ModelParams
    train: TrainParams
    variant: Variant
    seed: int
    prepared_sha256: str | None = None


@dataclass(frozen=True)
class Round:
    """One turn of `steps` training steps; `position` is its place in the order of the round."""

    process: int
    round: int
    position: int
    steps: int
    round_time_ms: float


@dataclass(frozen=True)
class InputRound:
    """One turn of `steps` training steps on batches of the input pipeline, or on one batch held on the device."""

    process: int
    round: int
    batches: Literal["pipeline", "device"]
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


@dataclass(frozen=True)
class SameWeights:
    """One training's weights computed with in two precisions, on the test images.

    Attributes:
        images: number of test images.
        agreement: share of them that get the same class.
        max_probability_difference: largest difference of a class probability.
        accuracy: accuracy of these weights in the baseline's precision, as a fraction.
    """

    images: int
    agreement: float
    max_probability_difference: float
    accuracy: float


@dataclass
class ArmRecord:
    """Everything that was measured of one arm, raw."""

    rounds: list[Round] = field(default_factory=list)
    input_rounds: list[InputRound] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    in_force: dict[str, Any] = field(default_factory=dict)
    peak_device_bytes: int | None = None
    trace: TraceTaken | None = None


@dataclass(frozen=True)
class Protocol:
    """How a measurement went: the same for all of its arms.

    Attributes:
        confidence: of every interval that is taken from it, so that looking early is paid for.
        processes: times that each arm's process was started.
        rounds: rounds in all of them.
        timing_seconds: time spent in rounds; start-up, traces and what else is not timed left out.
        ended_by: what ended it.
        target_precision: half the width that intervals were to have, as a ratio.
        looks_held: how often the intervals were looked at.
        other_load_cores: cores that other programs kept busy during the rounds; None where it cannot be told.
        machine: what the driver says of the GPUs during the rounds: clocks, throttling, other programs' processes.
        warnings: what a reader of the numbers should know.
    """

    confidence: float
    processes: int
    rounds: int
    timing_seconds: float
    ended_by: Literal["target_precision", "max_seconds", "rounds"]
    target_precision: float
    looks_held: int
    other_load_cores: float | None = None
    machine: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """The raw records by arm, how they came about, and what the arms' weights do in the baseline's precision."""

    records: dict[str, ArmRecord]
    protocol: Protocol
    same_weights: dict[str, SameWeights] = field(default_factory=dict)
