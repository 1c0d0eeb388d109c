"""`data/profile/<variant>/`: the measurements of one variant, or of the control, as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd

from stages import files
from stages.params import Variant
from stages.results.artifact import Document, Record, read_table, write_table

SUMMARY = "summary.json"


@dataclass(frozen=True)
class Round:
    """One turn: `steps` training steps. `position` is its place in the order of the round."""

    process: int
    round: int
    position: int
    steps: int
    round_time_ms: float


@dataclass(frozen=True)
class InputRound:
    """One turn of `steps` training steps, on batches of the input pipeline or on one batch cached on the device."""

    process: int
    round: int
    batches: Literal["pipeline", "cached"]
    steps: int
    round_time_ms: float


@dataclass(frozen=True)
class Step:
    """One training step that ends when the device is synchronised."""

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


@dataclass
class RawTimes:
    """Every time that was read from the clock for one arm."""

    rounds: list[Round] = field(default_factory=list)
    input_rounds: list[InputRound] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


# The tables by the attribute of `RawTimes` that they hold: file name and type of a row.
TABLES: Mapping[str, tuple[str, type]] = {
    "rounds": ("rounds.csv", Round),
    "input_rounds": ("input_rounds.csv", InputRound),
    "steps": ("timings.csv", Step),
    "calls": ("inference.csv", Call),
}
_MAY_BE_EMPTY = "calls"  # without profile.inference_batch_sizes


class Configuration(Record):
    """What must be the same in all arms.

    Attributes:
        device: `CPU` or `GPU`.
        batch_size: images a step.
        input_shape: `(height, width, channels)` of an image.
        parameters: number of the model's weights.
        layer_widths: the different widths of its layers.
        data_sha256: sha256 of the manifest of the prepared images.
    """

    device: Literal["CPU", "GPU"]
    batch_size: int
    input_shape: tuple[int, ...]
    parameters: int
    optimizer: str
    intra_op_threads: int
    inter_op_threads: int
    input_threads: int
    op_determinism: bool
    layer_widths: tuple[int, ...]
    data_sha256: str


class InForce(Record):
    """What the variant's entry sets, as the worker found it: the only settings in which arms may differ."""

    policy: str
    xla: bool
    tf32: bool
    onednn: bool


class Protocol(Record):
    """How the measurement went; the same for all of its arms.

    Attributes:
        confidence: of each interval, so that all interim looks together leave 95 %.
        processes: how often each arm's process was started.
        rounds: rounds in all processes.
        timing_seconds: seconds spent in rounds, without start-up and traces.
        ended_by: why the measurement ended.
        target_precision: half-width that every interval should reach, as a ratio.
        interim_looks: how often the intervals were inspected, the last inspection included.
        other_load_cores: mean number of cores that other programs kept busy during the rounds.
        gpus: clocks, throttling and other processes by GPU, as the driver reports them before and after the rounds.
        warnings: what a reader of the numbers should know.
    """

    confidence: float
    processes: int
    rounds: int
    timing_seconds: float
    ended_by: Literal["target_precision", "max_seconds", "rounds"]
    target_precision: float
    interim_looks: int
    other_load_cores: float | None = None
    gpus: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ended_by_text(self) -> str:
        """Why the measurement ended, in words."""
        return {
            "target_precision": "every interval reached profile.target_precision",
            "max_seconds": "time budget exhausted (profile.max_seconds)",
            "rounds": "all rounds were run (profile.rounds)",
        }[self.ended_by]


class OperationTime(Record):
    """An operation of the traced step; `self_time_ms_per_step` sums over its `occurrences` in a step."""

    type: str
    name: str
    occurrences: float
    self_time_ms_per_step: float
    dtype: str | None = None
    tensor_core: bool | None = None


class SameWeights(Record):
    """One training's weights evaluated in two precisions, on the test images.

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


class LargestBatch(Record):
    """The largest batch that trains.

    Attributes:
        batch_size: images a step; 0 where not even one image fits.
        limit_mib: memory that could be used, in MiB; None on a GPU, where it is the device's memory.
        peak_mib: memory that `batch_size` took, in MiB: of the device's allocator, on a CPU of the process.
        tried: `(batch size, whether it fits)`, in the order of trying.
    """

    batch_size: int
    limit_mib: int | None = None
    peak_mib: float | None = None
    tried: tuple[tuple[int, bool], ...] = ()


class ProfileSummary(Document):
    """`summary.json`: everything about one arm but its raw times and its trace.

    Attributes:
        variant: name of the variant, or of the control.
        entry: its entry of `variants`.
        metrics: numbers under their names in MLflow; what does not apply is absent.
        operations: of the traced step, the longest first; empty for the control, which is not traced.
        warnings: about this arm's trace and memory.
        same_weights: its trained weights evaluated in the baseline's precision.
        largest_batch: with `profile.find_max_batch`.
    """

    VERSION: ClassVar[int] = 2

    variant: str
    entry: Variant
    configuration: Configuration
    in_force: InForce
    protocol: Protocol
    metrics: dict[str, float]
    operations: tuple[OperationTime, ...] = ()
    warnings: tuple[str, ...] = ()
    same_weights: SameWeights | None = None
    largest_batch: LargestBatch | None = None


@dataclass(frozen=True)
class Profile:
    """The measurements of one arm: its summary, and the raw times as tables with the columns of their row types."""

    summary: ProfileSummary
    rounds: pd.DataFrame
    input_rounds: pd.DataFrame
    steps: pd.DataFrame
    calls: pd.DataFrame

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers under their names in MLflow."""
        return self.summary.metrics

    @property
    def operations(self) -> tuple[OperationTime, ...]:
        """Operations of the traced step, the longest first."""
        return self.summary.operations

    @property
    def policy(self) -> str:
        """Keras dtype policy in force."""
        return self.summary.in_force.policy

    @property
    def on_gpu(self) -> bool:
        """Whether the arm computes on a GPU."""
        return self.summary.configuration.device == "GPU"


def write_profile(name: str, summary: ProfileSummary, times: RawTimes, trace: Path | None) -> str:
    """Writes an arm's folder and returns the sha256 of its manifest; `trace` is None for the control."""
    directory = files.profile_dir(name)
    for attribute, (file_name, row_type) in TABLES.items():
        write_table(directory / file_name, row_type, getattr(times, attribute))
    summary.write(directory / SUMMARY)
    if trace is not None:
        with files.atomic_path(files.trace_file(name)) as temporary_path:
            temporary_path.write_bytes(trace.read_bytes())
    return files.write_manifest(directory)


def read_profile(name: str) -> Profile:
    """Reads an arm's folder after checking every file against the manifest.

    Raises:
        DataError: a file is missing.
        CorruptFileError: a file is not what was written.
    """
    directory = files.profile_dir(name)
    files.verify_manifest(directory)
    tables = {
        attribute: read_table(
            directory / file_name,
            [column.name for column in fields(row_type)],
            may_be_empty=attribute == _MAY_BE_EMPTY,
        )
        for attribute, (file_name, row_type) in TABLES.items()
    }
    return Profile(ProfileSummary.read(directory / SUMMARY), **tables)
