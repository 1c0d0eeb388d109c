"""What a rule may use, and what a reason is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from halfstep.compare.explain.account import moved_to_16bit, stayed_in_32bit
from halfstep.compare.explain.accounts import Accounts
from halfstep.compare.explain.hardware import compute_capability, has_16bit_matrix_work, instruction_sets
from halfstep.compare.explain.limit import compute_ms, compute_operations, train_limit
from halfstep.policies import POLICIES, Precision
from halfstep.results.comparison import Account, KindChange, PartChange, Remedy
from halfstep.results.profile import AccountRow, Profile, Setting
from halfstep.results.training import Training
from halfstep.stats.speedup import Speedup
from halfstep.text import TRAIN, decimals, ms_text

STEP = "profiler/step_time_ms"


@dataclass(frozen=True)
class SpeedupFactors:
    """The two factors of a speed-up: of the candidate's other settings, and of its precision on top of them."""

    settings: Speedup
    precision: Speedup


@dataclass(frozen=True)
class Evidence:
    """The profiles of a candidate and its baseline, and the machine.

    For a profile by itself `baseline` is None and there are no speed-ups, and rules that need them return nothing.

    Attributes:
        speedups: by measure: `train`, `inference_b<n>`.
        control: by measure, the ratio of the baseline to its second copy (A/A).
        void: measures whose control differs from 1, or with a throttled GPU. Nothing timed for them is a reason.
        throttled: the latter, with the share of the rounds in which the GPU was throttled.
        factors: by measure, where settings in force differ beside the policy.
        accounts, account: of the operations of training; None without short traces.
        rejected: policies that are no advice: the report rejects them for training, or has a verdict on them already.
        lacks_same_weights: whether the baseline's weights were not evaluated in the candidate's precision.
    """

    baseline: Profile | None
    candidate: Profile
    trainings: tuple[Training, ...]
    speedups: Mapping[str, Speedup]
    environment: dict[str, Any]
    min_speedup: float = 1.0
    classes: int | None = None
    control: Mapping[str, Speedup] = field(default_factory=dict)
    void: Collection[str] = ()
    throttled: Mapping[str, float] = field(default_factory=dict)
    factors: Mapping[str, SpeedupFactors] = field(default_factory=dict)
    accounts: Accounts | None = None
    account: Account | None = None
    rejected: Collection[str] = ()
    lacks_same_weights: bool = False

    def timed(self, measure: str) -> Speedup | None:
        """The speed-up of a measure; None if it was not measured, or if the measure is void."""
        return None if measure in self.void else self.speedups.get(measure)

    def factored(self, measure: str) -> SpeedupFactors | None:
        """The factors of a measure; None if there are none, or if the measure is void."""
        return None if measure in self.void else self.factors.get(measure)

    @property
    def speedup(self) -> Speedup | None:
        """The speed-up of training."""
        return self.timed(TRAIN)

    @property
    def precision(self) -> Speedup | None:
        """What the precision alone makes of training: its factor where there is one, else the speed-up.

        None where XLA compiles only one of both, and what that makes was not measured.
        """
        factors = self.factored(TRAIN)
        if factors:
            return factors.precision
        return self.speedup if self.is_compiled_alike else None

    @property
    def is_compiled_alike(self) -> bool:
        """Whether XLA compiles both sides, or neither."""
        return self.before.summary.in_force.xla == self.candidate.summary.in_force.xla

    @property
    def is_account_void(self) -> bool:
        """Whether nothing rests on the account: it does not explain the timing, or its copy of the baseline differs."""
        return self.account is not None and not self.account.is_sound

    def kind(self, name: str) -> KindChange | None:
        """What operations of a kind change by; None without an account, if it is void, or if they may not change."""
        change = None if self.account is None or self.is_account_void else self.account.kind(name)
        return change if change is not None and change.named else None

    @property
    def by_operation(self) -> Accounts | None:
        """The traces, if their operations can be compared one by one: those of a program that XLA compiled are others.

        None without an account, and if it is void.
        """
        return None if self.is_account_void or not self.is_compiled_alike else self.accounts

    @cached_property
    def moved(self) -> tuple[PartChange, list[dict[str, Any]]] | None:
        """As `moved_to_16bit`; None if operations cannot be compared, or if none moved."""
        if self.by_operation is None:
            return None
        change, rows = moved_to_16bit(self.by_operation)
        return (change, rows) if rows else None

    @cached_property
    def stayed(self) -> PartChange | None:
        """The change of the operations that the candidate computes in float32; None if they cannot be compared."""
        return None if self.by_operation is None else stayed_in_32bit(self.by_operation)

    @property
    def policy(self) -> str:
        """Keras dtype policy of the candidate."""
        return self.candidate.policy

    @property
    def is_16bit(self) -> bool:
        """Whether the candidate computes in 16 bit."""
        return self.compute.bits == 16

    @property
    def compute(self) -> Precision:
        """The precision that the candidate's layers compute in."""
        return self.candidate.dtype_policy.compute

    @property
    def is_about_16bit(self) -> bool:
        """Whether 16 bit is compared, or could be tried next; false if both variants are 32-bit."""
        return self.is_16bit or self.baseline is None

    @property
    def on_gpu(self) -> bool:
        """Whether the candidate computes on a GPU."""
        return self.candidate.on_gpu

    @property
    def has_instructions(self) -> bool:
        """Whether the CPU is known to have instructions for the candidate's precision."""
        return not instruction_sets(self.environment).isdisjoint(self.compute.cpu_ratios)

    @property
    def compute_capability(self) -> float | None:
        """The GPU's compute capability, such as 8.0; None without a GPU, or if the driver does not report it."""
        return compute_capability(self.environment) if self.on_gpu else None

    @property
    def policy_to_try(self) -> str | None:
        """The mixed policy that this machine has hardware for, or may have; None if there is none to advise.

        None also if the report rejects that policy.
        """
        policy = "mixed_float16" if self.on_gpu else "mixed_bfloat16"
        has_hardware = self.has_hardware_for(POLICIES[policy].compute)
        return None if has_hardware is False or policy in self.rejected else policy

    @property
    def lacks_instructions(self) -> bool:
        """Whether the CPU is known to have no instructions for the candidate's 16-bit type."""
        is_known = bool(instruction_sets(self.environment)) and not self.on_gpu and self.is_16bit
        return is_known and self.has_hardware_for(self.compute) is False

    def has_hardware_for(self, precision: Precision) -> bool | None:
        """Whether the device has hardware for matrix products in a precision; None if unknown."""
        return has_16bit_matrix_work(precision, self.environment, on_gpu=self.on_gpu)

    @property
    def before(self) -> Profile:
        """What is compared with: the baseline, or this profile if there is none."""
        return self.baseline or self.candidate

    @cached_property
    def operations(self) -> list[AccountRow]:
        """What computes in the candidate's step, in the mean over the repeats."""
        return compute_operations(self.candidate)

    @cached_property
    def limit(self) -> float | None:
        """Best speed-up that the baseline's trace allows the candidate; None if unknown."""
        return train_limit(self.baseline, self.candidate, self.environment) if self.baseline else None

    @property
    def compute_ms(self) -> float | None:
        """Compute time in the candidate's traced step."""
        return compute_ms(self.candidate)

    def changed(
        self, key: str, to: Setting | tuple[str, ...], at_most: float | None = None, layers: str | None = None
    ) -> Remedy:
        """A change of this variant's entry.

        Args:
            key: of the entry.
            to: its new value.
            at_most: the largest speed-up that it may bring; None if unknown.
            layers: what the layers in `to` are, where they have something in common.
        """
        return remedy(self.candidate, key, to, at_most, layers)

    @property
    def sets_input_threads(self) -> bool:
        """Whether `input_threads` and `learning_rate` are the project's, and not those of the user's own task."""
        return self.candidate.summary.in_force.learning_rate is not None

    def share_of_step(self, part: str) -> float | None:
        """Share of the candidate's traced step that a part takes; None unless both were measured."""
        step_ms, part_ms = self.candidate.metrics.get(STEP), self.candidate.metrics.get(part)
        return None if not step_ms or part_ms is None else part_ms / step_ms

    def part_of_step(self, part: str) -> dict[str, float]:
        """A measured part of the candidate's traced step and the whole step, as evidence."""
        return {name: self.candidate.metrics[name] for name in (part, STEP)}


def remedy(
    profile: Profile,
    key: str,
    to: Setting | tuple[str, ...],
    at_most: float | None = None,
    layers: str | None = None,
) -> Remedy:
    """A change of the entry of a profile's variant; arguments as of `Evidence.changed`."""
    name, entry = profile.summary.variant, profile.summary.entry
    return Remedy(key=f"variants.{name}.{key}", before=getattr(entry, key), to=to, at_most=at_most, layers=layers)


def changes_of(changes: Sequence[Remedy]) -> dict[str, Any]:
    """Changes as fields of a reason: the first one, and the others."""
    return {"change": changes[0] if changes else None, "more_changes": tuple(changes[1:]) or None}


def measure_text(measure: str) -> str:
    """A measure in words: `training`, or `inference at batch size 1`."""
    return "training" if measure == TRAIN else f"inference at batch size {measure.removeprefix('inference_b')}"


def part_of_compute_ms(profile: Profile, metric: str) -> float | None:
    """A metric in percent of compute time as milliseconds a step; None if unknown."""
    total_ms, percent = compute_ms(profile), profile.metrics.get(metric)
    return None if total_ms is None or percent is None else total_ms * percent / 100


def time_by_type(operations: Iterable[AccountRow]) -> dict[str, float]:
    """Time in milliseconds a step by op type."""
    times: dict[str, float] = {}
    for row in operations:
        times[row.operation] = times.get(row.operation, 0.0) + row.time_ms
    return times


def interval_evidence(change: PartChange) -> dict[str, float]:
    """The change of a part of the step, as evidence."""
    return {
        "baseline_ms": change.baseline_ms,
        "candidate_ms": change.candidate_ms,
        "delta_ms": change.delta,
        "low_ms": change.low,
        "high_ms": change.high,
    }


def change_text(change: PartChange) -> str:
    """Such as `12.5 ms more than in the baseline (11.9 to 13.1)`."""
    word, ends = ("more", (change.low, change.high)) if change.delta > 0 else ("less", (-change.high, -change.low))
    digits = decimals(change.delta, *ends)
    low, high = (f"{end:,.{digits}f}".replace("-", "−") for end in ends)
    return f"{abs(change.delta):,.{digits}f} ms {word} than in the baseline ({low} to {high})"


def longest(times_ms: dict[str, float], count: int) -> list[dict[str, Any]]:
    """The longest of times by type, as evidence."""
    ordered = sorted(times_ms, key=lambda op_type: -times_ms[op_type])[:count]
    return [{"type": op_type, "time_ms": times_ms[op_type]} for op_type in ordered]


def times_text(times_ms: dict[str, float], count: int) -> str:
    """The longest of times by type as text, such as `softmax 1.2 ms, optimizer 0.3 ms`."""
    return ", ".join(f"{row['type']} {ms_text(row['time_ms'])}" for row in longest(times_ms, count))
