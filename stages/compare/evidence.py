"""What a reason may look at, and what a reason is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stages.compare.arms import Operation, Profile, Training
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
    """Both profiles, the candidate's trainings, the speed-up of training, and the machine."""

    baseline: Profile
    candidate: Profile
    trainings: tuple[Training, ...]
    speedup: Speedup
    environment: dict[str, Any]

    @property
    def policy(self) -> str:
        """Keras dtype policy of the candidate."""
        return str(self.candidate.entry.get("policy", ""))

    @property
    def is_16bit(self) -> bool:
        """Whether the candidate asks for float16 or bfloat16."""
        return "float16" in self.policy  # bfloat16 holds the word too

    @property
    def is_float16(self) -> bool:
        """Whether the candidate asks for float16 proper."""
        return re.search(r"(?<!b)float16", self.policy) is not None

    @property
    def float16_instructions(self) -> bool | None:
        """Whether the CPU computes float16 in hardware; None where its instruction sets are not known."""
        known = self.environment.get("cpu", {}).get("instruction_sets")
        return bool(_FLOAT16_INSTRUCTIONS & set(known)) if known else None

    def share_of_step(self, part: str) -> float | None:
        """Share of the candidate's traced step that a part takes, None where either is not measured."""
        step_ms, part_ms = self.candidate.metrics.get(STEP), self.candidate.metrics.get(part)
        return None if not step_ms or part_ms is None else part_ms / step_ms

    def part_of_step(self, part: str) -> dict[str, float]:
        """A measured part of the candidate's traced step next to the whole, as evidence."""
        return {name: self.candidate.metrics[name] for name in (part, STEP)}


def time_by_type(operations: Iterable[Operation]) -> dict[str, float]:
    """Self time in milliseconds a step, summed by type of operation, whichever library computed it."""
    times: dict[str, float] = {}
    for operation in operations:
        times[operation.kind] = times.get(operation.kind, 0.0) + operation.self_time_ms_per_step
    return times
