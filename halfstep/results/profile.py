"""`data/profile/<variant>/`: the measurements of one variant, or of the control, as files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from halfstep.params.measures import OF_TRAINING
from halfstep.params.schema import Variant
from halfstep.results.artifact import Document, Record, empty_table, read_array, read_table, write_array, write_table
from halfstep.results.audit import AUDIT, ModelAudit
from halfstep.system import files
from halfstep.system.records import Field, model_validator
from halfstep.words.policies import POLICIES, DTypePolicy
from halfstep.words.text import TRAIN

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary.json"
THROTTLING = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
THROTTLED = "throttled"  # a column that only measurements on a GPU have


@dataclass(frozen=True)
class Round:
    """One turn: `steps` training steps. `position` is its place in the order of the round.

    `counted` is false before the steady state of the process, and true for rounds that enter the results. `throttled`
    says whether the GPU was slowed down during the round; None without a GPU, or if its driver does not say.
    """

    process: int
    round: int
    position: int
    steps: int
    round_time_ms: float
    counted: bool = True
    throttled: bool | None = None


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
class InferenceCall:
    """One prediction, from pixels on the host to probabilities on the host.

    `call` is its place in the turn. `counted` is false before the steady state, and true for calls that enter the
    results. `throttled` as in `Round`.
    """

    process: int
    round: int
    batch_size: int
    call: int
    latency_ms: float
    counted: bool = True
    throttled: bool | None = None


@dataclass(frozen=True)
class AccountRow:
    """What operations take of the traced training steps of a turn. All rows of a repeat add up to its mean step.

    Each instant of the traced steps is shared equally by the operations that run then.

    Attributes:
        process: the repeat; 0 before it is known.
        kind: of `halfstep.operations.op_kinds`, or of `IDLE` for instants without an operation.
        layer, layer_class: path of the layer and its class; empty for operations outside layers.
        operation: op type, such as `Conv2D` or `Mul (gradient)`.
        dtype: data type that they compute in; empty if it is unknown.
        time_ms: milliseconds of a step of the turn / turns of the repeat.
        tensor_core: whether their kernels use tensor cores; None without a kernel, and where its name does not show it.
        turn: of the repeat; 0 in results that have one row for all turns.
    """

    process: int
    kind: str
    layer: str = ""
    layer_class: str = ""
    operation: str = ""
    dtype: str = ""
    time_ms: float = 0.0
    tensor_core: bool | None = None
    turn: int = 0


NOTABLE_MOVE = 0.01  # of a speed-up, by a trend: what rises or falls in all arms alike does not matter
HOST = "host"  # the kind of instants without an operation
IDLE_CAUSES = ("idle_launch", "idle_host", "idle_input")  # of those of a GPU whose cause is known
IDLE = frozenset({HOST, *IDLE_CAUSES})


def largest_move(ratios: Mapping[str, tuple[float, float]]) -> str | None:
    """Name of the speed-up that a trend moves most; None if it moves none of them notably.

    Args:
        ratios: by name, the speed-up over all of a turn or a repeat, and over its later half.
    """
    moves = {name: abs(late / whole - 1) for name, (whole, late) in ratios.items()}
    name = max(moves, key=moves.__getitem__, default=None)
    return name if name is not None and moves[name] >= NOTABLE_MOVE else None


@dataclass
class RawTimes:
    """Every time that was read from the clock or from a short trace for one arm."""

    rounds: list[Round] = field(default_factory=list)
    input_rounds: list[InputRound] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    calls: list[InferenceCall] = field(default_factory=list)
    account: list[AccountRow] = field(default_factory=list)


# The tables by the attribute of `RawTimes` that they hold: file name and type of a row.
TABLES: Mapping[str, tuple[str, type]] = {
    "rounds": ("rounds.csv", Round),
    "input_rounds": ("input_rounds.csv", InputRound),
    "steps": ("timings.csv", Step),
    "calls": ("inference.csv", InferenceCall),
    "account": ("account.csv", AccountRow),
}
# Without profile.inference_batch_sizes there are no calls; input rounds are run only where the input matters; a
# bridging arm has what it was needed for.
_MAY_BE_EMPTY = {"calls", "input_rounds"}
_MAY_BE_ABSENT = {"account"}  # of arms without one
_TEXTS = ("kind", "layer", "layer_class", "operation", "dtype")  # columns of `AccountRow`; empty ones are read as NaN
_TURN = "turn"  # the column of `AccountRow` that older results do not have


class Configuration(Record):
    """What must be the same in all arms.

    Attributes:
        device: `CPU` or `GPU`.
        input_shape: shape of one input, such as `(height, width, channels)` of an image; None for several inputs.
        parameters: number of the model's weights.
        layer_widths: the different widths of its layers.
        data_sha256: sha256 of the manifest of the prepared data.
    """

    device: Literal["CPU", "GPU"]
    input_shape: tuple[int, ...] | None = None
    parameters: int
    optimizer: str
    op_determinism: bool
    layer_widths: tuple[int, ...]
    data_sha256: str

    @model_validator(mode="before")
    @classmethod
    def _without_replicas(cls, content: Any) -> Any:
        """Results of before 0.4 say that one device has trained."""
        return {name: value for name, value in content.items() if (name, value) != ("replicas", 1)}

    def common(self, in_force: InForce, baseline: InForce) -> dict[str, Any]:
        """What must be as in the baseline's: the code of the task may be another one, if an entry says so."""
        return self.model_dump(exclude=_OF_CODE if in_force.task_path != baseline.task_path else set())


Setting = bool | int | str | None
_OF_GPUS = {"tf32", "gpu_thread_mode", "prefetch_to_device"}
_OF_CPUS = {"onednn"}
_OF_PRECISION = {"policy", "float32_layers", "float32_casts"}
_OF_CODE = {"input_shape", "parameters", "optimizer", "op_determinism", "layer_widths"}


class InForce(Record):
    """What the variant's entry sets, as the worker found it: the only settings in which arms may differ.

    Attributes:
        batch_size: examples a step.
        learning_rate: largest of the schedule; None if the task's own code decides.
        threads: of TensorFlow, within an operation; 0: one for each core.
        threads_between: of TensorFlow, between operations.
        gpu_thread_mode: None without one.
        env: other environment variables that the entry sets, such as `A=1 B=2`; None without any.
        input_threads: of the input pipeline; None if the task's own code decides.
        cache_input: whether the batches of the first pass are kept.
        prefetch_to_device: whether batches are copied to the GPU in advance.
        task_path: folder of the module of the user's task, where the entry names one.
        python: the releases of another interpreter, where the entry names one.
        float32_layers: paths of the layers that a mixed policy leaves in float32, because the entry says so.
        float32_casts: casts at the borders of these layers, in a forward pass.
    """

    policy: str
    xla: bool
    tf32: bool
    onednn: bool
    batch_size: int
    learning_rate: float | None = None
    threads: int = 0
    threads_between: int = 0
    gpu_thread_mode: str | None = None
    env: str | None = None
    input_threads: int | None = None
    cache_input: bool = False
    prefetch_to_device: bool = False
    task_path: str | None = None
    python: str | None = None
    float32_layers: tuple[str, ...] = ()
    float32_casts: int = 0

    def other_settings(self, device: Literal["CPU", "GPU"], measure: str = TRAIN) -> dict[str, Setting]:
        """The settings beside the policy that have an effect on a measure on this device."""
        without = {"learning_rate", "threads_between"} | _OF_PRECISION | (_OF_CPUS if device == "GPU" else _OF_GPUS)
        return self.model_dump(exclude=without if measure == TRAIN else without | OF_TRAINING)


class GpuConditions(Record):
    """What a GPU did during the rounds, by the readings that follow them. What its driver does not report is absent.

    Attributes:
        name, uuid: of the GPU, or of the slice of one.
        identified: false if it is not known whether TensorFlow used this GPU or another one of the machine.
        readings: rounds after which it was read; a round counts as throttled on the evidence of one reading.
        throttled: share of them in which the GPU was slowed down against heat, or by its power supply.
        reasons: share of them by reason, also of reasons that are usual under load, such as `sw_power_cap`.
        sm_clock_mhz, temperature_c, power_w: lowest and highest reading. The clock is read right after a turn.
        max_sm_clock_mhz, power_limit_w: the limits in force.
        other_processes: other programs that used it.
        has_own_process_ids: whether the driver lists the workers by the ids that they have here. In a container it may
            list those of the host; then programs that ran only beside workers are not among `other_processes`.
        reading_ms: milliseconds of a reading, mean.
        failure: the error after which the driver was not asked again.
    """

    name: str
    uuid: str
    identified: bool = True
    readings: int
    throttled: float
    reasons: Mapping[str, float] = Field(default_factory=dict)
    sm_clock_mhz: tuple[int, int] | None = None
    max_sm_clock_mhz: int | None = None
    temperature_c: tuple[int, int] | None = None
    power_w: tuple[float, float] | None = None
    power_limit_w: float | None = None
    other_processes: int | None = None
    has_own_process_ids: bool | None = None
    reading_ms: float
    failure: str | None = None

    @property
    def throttling_text(self) -> str:
        """The reasons for which it was throttled, the most frequent first."""
        names = sorted(THROTTLING & self.reasons.keys(), key=lambda name: (-self.reasons[name], name))
        return ", ".join(name.replace("_", " ") for name in names)


EndedBy = Literal["target_precision", "decided", "max_seconds", "time", "rounds"]


class Ending(Record):
    """Why and when one measure of one candidate ended.

    Attributes:
        ended_by: why.
        confidence: of its interval, so that all interim looks together leave 95 %.
        looks: how often the interval was inspected, the last inspection included.
        last_looks: how many of them came when the time was up; after all but the last one the measure went on.
        repeats: in which both arms were measured.
    """

    ended_by: EndedBy
    confidence: float
    looks: int
    repeats: int
    last_looks: int = 0


OTHER_PROGRAMS = "Other programs used"  # so the warning of a busy processor begins


class Protocol(Record):
    """How the measurement went; the same for all of its arms.

    Attributes:
        processes: number of repeats; each started a process of every arm that it needed.
        rounds: rounds of training of the baseline in all repeats.
        steps_per_round: training steps in a turn of the baseline; of another batch, as many as take about as long.
        timing_seconds: seconds spent in timed rounds of training and inference, without start-up and traces.
        bridge_seconds: the part of the stage that was spent on bridging arms: their start-up, rounds and calls.
        control_seconds: the part that was spent on the control.
        account_seconds: the part that was spent on short traces.
        stage_seconds: seconds from the start of the stage to the end of the measurement, of all sessions.
        interleaved: whether the arms took turns; on a GPU one arm is measured at a time.
        compilations: of each arm that its repeats share, on a GPU; None where each process compiled for itself.
        endings: why each measure ended, by candidate and measure.
        drifting_processes: repeats whose counted rounds still show a trend.
        unsteady: measures whose latency was still falling at the end of a turn.
        target_precision: half-width that every interval should reach, as a ratio.
        other_load_cores: mean number of cores that other programs kept busy during the rounds.
        gpus: clocks, throttling and other programs of the GPU that was used; empty on a CPU.
        occasion: `profile.occasion`; None without a word.
        measurement: digest of all that decides the times but the occasion.
        measured_at: when the measurement ended, in UTC, such as `2026-03-31 14:05`; None in results of before 0.4.
        commit: of the checkout that measured, with `+` where tracked files differed from it; None without git.
        warnings: what a reader of the numbers should know.
    """

    processes: int
    rounds: int
    steps_per_round: int
    timing_seconds: float
    bridge_seconds: float | None = None
    control_seconds: float | None = None
    account_seconds: float | None = None
    stage_seconds: float | None = None
    interleaved: bool = True
    compilations: int | None = None
    endings: Mapping[str, Mapping[str, Ending]] = Field(default_factory=dict)
    drifting_processes: int = 0
    unsteady: tuple[str, ...] = ()
    target_precision: float
    other_load_cores: float | None = None
    gpus: tuple[GpuConditions, ...] = ()
    occasion: str | None = None
    measurement: str | None = None
    measured_at: str | None = None
    commit: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def busy(self) -> str | None:
        """The warning that other programs disturbed the timing, if they did."""
        return next((line for line in self.warnings if line.startswith(OTHER_PROGRAMS)), None)

    def confidence_of(self, candidate: str, measure: str) -> float:
        """Confidence of an interval of a candidate; 95 % of the control's, which no look may end."""
        ending = self.endings.get(candidate, {}).get(measure)
        return ending.confidence if ending else 0.95

    @property
    def ended_by_text(self) -> str:
        """Why the timing ended, in words, the most frequent reason first; empty where nothing was compared."""
        words = {
            "target_precision": f"reached ±{self.target_precision:g}",
            "decided": "decided",
            "max_seconds": "out of time (profile.max_seconds)",
            "time": "out of time (profile.max_seconds gives more)",
            "rounds": "out of rounds",
        }
        counts = Counter(ending.ended_by for of_one in self.endings.values() for ending in of_one.values())
        of = sum(counts.values())
        texts = [f"{count} {words[reason]}" for reason, count in counts.most_common()]
        return f"of {of} intervals, {', '.join(texts)}" if texts else ""


class BatchTried(Record):
    """A batch that was tried, in a process of its own.

    Attributes:
        peak_mib: memory that it took, in MiB: of the device's allocator, on a CPU of the process; None if it is too
            large.
        examples_per_s: that were trained; None if it is too large.
    """

    batch_size: int
    peak_mib: float | None = None
    examples_per_s: float | None = None

    @property
    def fits(self) -> bool:
        """Whether it fits in memory."""
        return self.peak_mib is not None


class LargestBatch(Record):
    """The largest batch that trains.

    Attributes:
        batch_size: examples a step; 0 where not even one fits.
        limit_mib: memory that could be used, in MiB; None on a GPU, where it is the device's memory.
        peak_mib, examples_per_s: with `batch_size`, as in `BatchTried`.
        tried: all sizes, in the order of trying.
    """

    batch_size: int
    limit_mib: int | None = None
    peak_mib: float | None = None
    examples_per_s: float | None = None
    tried: tuple[BatchTried, ...] = ()


class ProfileSummary(Document):
    """`summary.json`: everything about one arm but its raw times and its trace.

    Attributes:
        variant: name of the variant, or of the control.
        entry: its entry of `variants`.
        metrics: numbers under their names in MLflow; what does not apply is absent.
        warnings: about this arm's trace and memory.
        largest_batch: with `profile.find_max_batch`.
        resumed: repeats that were taken over from an interrupted or earlier measurement; absent without any.
    """

    VERSION: ClassVar[int] = 6

    variant: str
    entry: Variant
    configuration: Configuration
    in_force: InForce
    protocol: Protocol
    metrics: dict[str, float]
    warnings: tuple[str, ...] = ()
    largest_batch: LargestBatch | None = None
    resumed: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_operations(cls, content: Any) -> Any:
        """Results of before 0.4 have the operations of one trace; `account.csv` has those of all short traces."""
        return {name: value for name, value in content.items() if name != "operations"}


@dataclass(frozen=True)
class Profile:
    """The measurements of one arm: its summary, and the raw times as tables with the columns of their row types.

    Attributes:
        same_weights: by seed, what the baseline's trained weights give in this arm's precision: class probabilities,
            float32 `(test images, classes)`, not finite where 16 bits overflow. Empty for the baseline, the control and
            bridging arms.
        audit: of the model; None where there is none.
    """

    summary: ProfileSummary
    rounds: pd.DataFrame
    input_rounds: pd.DataFrame
    steps: pd.DataFrame
    calls: pd.DataFrame
    account: pd.DataFrame = field(default_factory=lambda: empty_table(_columns(AccountRow)))
    same_weights: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    audit: ModelAudit | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers under their names in MLflow."""
        return self.summary.metrics

    @property
    def policy(self) -> str:
        """Keras dtype policy in force."""
        return self.summary.in_force.policy

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The policy in force, with what depends on its precision."""
        return POLICIES[self.policy]

    @property
    def on_gpu(self) -> bool:
        """Whether the arm computes on a GPU."""
        return self.summary.configuration.device == "GPU"

    @property
    def batch_size(self) -> int:
        """Examples of a training step."""
        return self.summary.in_force.batch_size


def bridge_name(
    baseline: InForce, candidate: InForce, device: Literal["CPU", "GPU"], measure: str = TRAIN
) -> str | None:
    """Name of the arm with the baseline's policy and the candidate's other settings, such as `_bridge_onednn_off`.

    None if the policy is the same, so that the other settings are what is compared, or if nothing else that has an
    effect on the measure differs.
    """
    if baseline.policy == candidate.policy or not differing_settings(baseline, candidate, device, measure):
        return None
    differing = differing_settings(baseline, candidate, device)
    return files.BRIDGE_PREFIX + "_".join(f"{name}_{_word(value)}" for name, value in differing.items())


def differing_settings(
    baseline: InForce, candidate: InForce, device: Literal["CPU", "GPU"], measure: str = TRAIN
) -> dict[str, Setting]:
    """The settings beside the policy that have an effect on a measure and differ, with the candidate's value."""
    before, after = (in_force.other_settings(device, measure) for in_force in (baseline, candidate))
    return {name: after[name] for name in sorted(after) if after[name] != before[name]}


def _word(value: Setting) -> str:
    if value is None or isinstance(value, bool):
        return {True: "on", False: "off", None: "default"}[value]
    return re.sub(r"\W+", "_", str(value)).strip("_")  # it names a folder


def write_profile(
    name: str,
    summary: ProfileSummary,
    times: RawTimes,
    trace: Path | None,
    same_weights: Mapping[int, NDArray[Any]] | None = None,
    audit: ModelAudit | None = None,
) -> str:
    """Writes an arm's folder and returns the sha256 of its manifest.

    Args:
        name: the variant's name, that of the control or that of a bridging arm.
        summary, times: its measurements.
        trace: its trace; None for a bridging arm.
        same_weights: by seed, what `train` stores of a test: probabilities, float32, or scores, float64.
        audit: of its model; None where there is none.
    """
    directory = files.profile_dir(name)
    for attribute, (file_name, row_type) in TABLES.items():
        rows = getattr(times, attribute)
        if rows or attribute not in _MAY_BE_ABSENT:
            write_table(directory / file_name, row_type, rows)
    summary.write(directory / SUMMARY)
    for seed, outputs in (same_weights or {}).items():
        write_array(same_weights_file(name, seed), outputs)
    if audit is not None:
        audit.write(directory / AUDIT)
    if trace is not None:
        with files.atomic_path(files.trace_file(name)) as temporary_path:
            temporary_path.write_bytes(trace.read_bytes())
    return files.write_manifest(directory)


def _columns(row_type: type) -> list[str]:
    """The columns that every table of these rows has; the others are of GPUs."""
    return [column.name for column in fields(row_type) if column.default is not None]


def same_weights_file(name: str, seed: int) -> Path:
    """Where the probabilities of the baseline's weights of one seed in an arm's precision are."""
    return files.profile_dir(name) / f"same_weights_{seed}.npy"


def read_profile(name: str, seeds: Sequence[int] = ()) -> Profile:
    """Reads an arm's folder after checking every file against the manifest.

    Args:
        name: the arm's name.
        seeds: seeds whose `same_weights` are read, as far as they could be evaluated.

    Raises:
        DataError: a file is missing.
        CorruptFileError: a file is not what was written.
    """
    directory = files.profile_dir(name)
    files.verify_manifest(directory)
    tables = {
        attribute: read_table(
            directory / file_name,
            [column for column in _columns(row_type) if column != _TURN],
            may_be_empty=attribute in _MAY_BE_EMPTY or not files.is_variant(name),
        )
        for attribute, (file_name, row_type) in TABLES.items()
        if attribute not in _MAY_BE_ABSENT or (directory / file_name).is_file()
    }
    if "account" in tables:
        if _TURN not in tables["account"]:
            tables["account"][_TURN] = 0
        tables["account"] = tables["account"].fillna(dict.fromkeys(_TEXTS, "")).astype(dict.fromkeys(_TEXTS, str))
    paths = {seed: same_weights_file(name, seed) for seed in seeds}
    same_weights = {
        seed: read_array(path, dimensions=2, may_overflow=True) for seed, path in paths.items() if path.is_file()
    }
    audit = ModelAudit.read(directory / AUDIT) if (directory / AUDIT).is_file() else None
    return Profile(ProfileSummary.read(directory / SUMMARY), **tables, same_weights=same_weights, audit=audit)
