"""Reasons about the operations that moved to 16 bit: their times before and after, by type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stages.compare.explain.evidence import Evidence, time_by_type
from stages.compare.explain.hardware import instruction_sets
from stages.operations.op_types import is_cast
from stages.policies import FLOAT16, SIXTEEN_BIT
from stages.results.comparison import Reason
from stages.results.profile import Profile
from stages.stats.speedup import Speedup
from stages.text import ms_text, number_text

EMULATION_RATIO = 1.2  # hardware with 16-bit arithmetic is not slower at all
GAINING_RATIO = 0.9  # of the time before; above it, an operation has not become notably faster
OPERATIONS_SHOWN = 3


def emulated_float16(data: Evidence) -> Reason | None:
    """On a CPU, the operations that moved to float16 take longer than before, and so does training.

    Instruction sets do not decide this. TensorFlow's kernels convert each number to float32 and back, even on
    processors with AVX512_FP16; oneDNN takes the forward convolution there but runs its gradients as reference code.
    """
    if data.on_gpu or data.compute is not FLOAT16 or data.baseline is None:
        return None
    precision, moved = data.precision, _moved(data.baseline, data.candidate)
    if precision is None or precision.high >= 1 or moved.total_after_ms < EMULATION_RATIO * moved.total_before_ms:
        return None
    lost_ms = data.explained_ms(moved.lost_ms, moved.before_ms)
    if not moved.before_ms or lost_ms is None or lost_ms <= data.floor_ms:
        return None
    although = ", although it has float16 instructions" if data.has_instructions else ""
    return Reason(
        code="emulated_float16",
        text=f"float16 is emulated on this CPU{although}: in the traces the operations that moved to float16 take "
        f"longer than before ({moved.slowest_text()} a step), and float16 makes a training step run at "
        f"{precision.ratio:.2f}× the speed ({precision.low:.2f} to {precision.high:.2f}).",
        evidence={"speedup_train": precision.ratio, "low": precision.low, "high": precision.high}
        | {"operations": moved.slowest("float16_ms"), "lost_ms": moved.lost_ms},
        advice="Judge float16 on a GPU."
        + (f" On this CPU try {data.policy_to_try}, for which it has instructions." if data.policy_to_try else ""),
        time_ms=min(lost_ms, _slower_ms(precision)),
    )


def no_16bit_instructions(data: Evidence) -> Reason | None:
    """The CPU has no instructions for the candidate's type, so that each number is converted, and nothing is gained."""
    precision = data.precision
    if not data.lacks_instructions or data.baseline is None or precision is None:
        return None
    if precision.high >= data.min_speedup:
        return None
    dtype = data.compute.name
    found = sorted(instruction_sets(data.environment))
    return Reason(
        code="no_16bit_instructions",
        text=f"This CPU has no instructions for {dtype} ({', '.join(found)}), so it computes {dtype} by way of "
        f"float32: a training step runs at {precision.ratio:.2f}× the speed ({precision.low:.2f} to "
        f"{precision.high:.2f}).",
        evidence={"instruction_sets": found, "speedup_train": precision.ratio}
        | {"low": precision.low, "high": precision.high},
        advice=f"Keep {data.baseline.policy} on this CPU, or measure on one with instructions for {dtype}.",
        time_ms=max(0.0, _slower_ms(precision)),
    )


def slow_16bit_ops(data: Evidence) -> Reason | None:
    """The operations that moved to 16 bit are not notably faster than before, and training does not gain enough."""
    if data.baseline is None or not data.is_16bit or data.lacks_instructions:
        return None
    precision, moved = data.precision, _moved(data.baseline, data.candidate)
    if precision is None or precision.high >= data.min_speedup or not moved.before_ms:
        return None
    lost_ms = data.explained_ms(moved.lost_ms, moved.before_ms)
    if lost_ms is None or data.reconciliation is None:
        return None
    notable_ms = (1 - GAINING_RATIO) * moved.total_before_ms * data.reconciliation.scale
    if lost_ms - data.floor_ms < -notable_ms:
        return None
    return Reason(
        code="slow_16bit_ops",
        text=f"In the traces the operations that moved to 16 bit take {ms_text(moved.total_after_ms)} a step, and "
        f"{ms_text(moved.total_before_ms)} in the baseline ({moved.slowest_text()}). 16 bit gains little there.",
        evidence={"baseline_ms": moved.total_before_ms, "candidate_ms": moved.total_after_ms}
        | {"operations": moved.slowest("candidate_ms"), "speedup_train": precision.ratio}
        | {"low": precision.low, "high": precision.high},
        advice="Larger layers, images and batches gain more from 16 bit; otherwise keep the baseline.",
        time_ms=max(0.0, min(lost_ms, _slower_ms(precision))),
    )


def _slower_ms(speedup: Speedup) -> float:
    """How much longer a step takes; a reason never explains more."""
    return speedup.candidate_time_ms - speedup.baseline_time_ms


@dataclass(frozen=True)
class _Moved:
    """Operations that the candidate computes in 16 bit: milliseconds a step by type, before and after."""

    before_ms: dict[str, float]
    after_ms: dict[str, float]

    @property
    def total_before_ms(self) -> float:
        return math.fsum(self.before_ms.values())

    @property
    def total_after_ms(self) -> float:
        return math.fsum(self.after_ms.values())

    @property
    def lost_ms(self) -> float:
        return self.total_after_ms - self.total_before_ms

    def _by_loss(self) -> list[str]:
        return sorted(self.before_ms, key=lambda op_type: self.before_ms[op_type] - self.after_ms[op_type])[
            :OPERATIONS_SHOWN
        ]

    def slowest(self, after_name: str) -> list[dict[str, Any]]:
        """Those that lost most, as evidence; `after_name` is the key of the time after."""
        return [
            {"type": op_type, "baseline_ms": self.before_ms[op_type], after_name: self.after_ms[op_type]}
            for op_type in self._by_loss()
        ]

    def slowest_text(self) -> str:
        """Those that lost most, as text."""
        return ", ".join(
            f"{op_type} {number_text(self.before_ms[op_type])} → {ms_text(self.after_ms[op_type])}"
            for op_type in self._by_loss()
        )


def _moved(baseline: Profile, candidate: Profile) -> _Moved:
    after = time_by_type(op for op in candidate.operations if op.dtype in SIXTEEN_BIT and not is_cast(op.type))
    before = {op_type: ms for op_type, ms in time_by_type(baseline.operations).items() if op_type in after}
    return _Moved(before, {op_type: after[op_type] for op_type in before})
