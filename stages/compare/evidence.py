"""What a reason may look at, and what a reason is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stages.compare.arms import Operation, Profile, Training
from stages.compare.limit import compute_ms, policy_of, train_limit
from stages.compare.machine import compute_capability, has_16bit_matrix_work, instruction_sets
from stages.speedup import Speedup

STEP = "profiler/step_time_ms"
_FLOAT16_INSTRUCTIONS = {"avx512_fp16", "amx_fp16"}


@dataclass(frozen=True)
class Reason:
    """A cause with its evidence; `time_ms` is how much of a step it explains, None where it has no time."""

    code: str
    text: str
    evidence: dict[str, Any]
    advice: str
    time_ms: float | None = None


@dataclass(frozen=True)
class Measurements:
    """A profile and the machine, and what it is compared with.

    A run that is looked at by itself has no baseline and no speed-up: what needs them then finds nothing.
    """

    baseline: Profile | None
    candidate: Profile
    trainings: tuple[Training, ...]
    speedup: Speedup | None
    environment: dict[str, Any]
    min_speedup: float = 1.0
    classes: int | None = None

    @property
    def policy(self) -> str:
        """Keras dtype policy of the candidate."""
        return policy_of(self.candidate)

    @property
    def is_16bit(self) -> bool:
        """Whether the candidate asks for float16 or bfloat16."""
        return "float16" in self.policy  # bfloat16 holds the word too

    @property
    def is_float16(self) -> bool:
        """Whether the candidate asks for float16 proper."""
        return re.search(r"(?<!b)float16", self.policy) is not None

    @property
    def is_about_16bit(self) -> bool:
        """Whether 16 bit is what is judged, or what may be tried: not with two arms in 32 bit."""
        return self.is_16bit or self.baseline is None

    @property
    def on_gpu(self) -> bool:
        """Whether the candidate computes on a GPU."""
        return self.candidate.device_type == "GPU"

    @property
    def float16_instructions(self) -> bool | None:
        """Whether the CPU computes float16 in hardware; None where its instruction sets are not known."""
        known = instruction_sets(self.environment)
        return bool(_FLOAT16_INSTRUCTIONS & known) if known else None

    @property
    def compute_capability(self) -> float | None:
        """That of the GPU, such as 8.0; None without one, or where the driver does not say."""
        return compute_capability(self.environment) if self.on_gpu else None

    @property
    def policy_to_try(self) -> str | None:
        """The mixed policy that this machine computes in hardware; None where there is none to recommend."""
        policy = "mixed_float16" if self.on_gpu else "mixed_bfloat16"
        return policy if has_16bit_matrix_work(policy, self.candidate.device_type, self.environment) else None

    @property
    def before(self) -> Profile:
        """The run before anything is changed: the baseline, or the run itself where it is looked at alone."""
        return self.baseline or self.candidate

    @property
    def limit(self) -> float | None:
        """Best speed-up that the baseline's trace allows the candidate; None where it cannot be told."""
        return train_limit(self.baseline, self.candidate, self.environment) if self.baseline else None

    @property
    def compute_ms(self) -> float | None:
        """Computation in the candidate's traced step, on the device that it computes on."""
        return compute_ms(self.candidate)

    def share_of_step(self, part: str) -> float | None:
        """Share of the candidate's traced step that a part takes, None where either is not measured."""
        step_ms, part_ms = self.candidate.metrics.get(STEP), self.candidate.metrics.get(part)
        return None if not step_ms or part_ms is None else part_ms / step_ms

    def part_of_step(self, part: str) -> dict[str, float]:
        """A measured part of the candidate's traced step next to the whole, as evidence."""
        return {name: self.candidate.metrics[name] for name in (part, STEP)}


def part_of_compute_ms(profile: Profile, metric: str) -> float | None:
    """Milliseconds of a step behind a metric that is a percentage of compute time; None where not measured."""
    total_ms, percent = compute_ms(profile), profile.metrics.get(metric)
    return None if total_ms is None or percent is None else total_ms * percent / 100


def time_by_type(operations: Iterable[Operation]) -> dict[str, float]:
    """Self time in milliseconds a step, summed by type of operation, whichever library computed it."""
    times: dict[str, float] = {}
    for operation in operations:
        times[operation.kind] = times.get(operation.kind, 0.0) + operation.self_time_ms_per_step
    return times


def longest(times_ms: dict[str, float], count: int) -> list[dict[str, Any]]:
    """The longest of times by type, as evidence."""
    ordered = sorted(times_ms, key=lambda kind: -times_ms[kind])[:count]
    return [{"type": kind, "time_ms": times_ms[kind]} for kind in ordered]


def times_text(times_ms: dict[str, float], count: int) -> str:
    """The longest of times by type in words, as `softmax 1.2 ms, optimizer 0.3 ms`."""
    return ", ".join(f"{row['type']} {row['time_ms']:.3g} ms" for row in longest(times_ms, count))
