"""Reasons about the operations that moved to 16 bit: their times before and after, by type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stages.compare.explain.evidence import Evidence, time_by_type
from stages.op_types import SIXTEEN_BIT, is_cast
from stages.results.comparison import Reason
from stages.results.profile import Profile

EMULATION_RATIO = 1.2  # hardware with 16-bit arithmetic is not slower at all
GAINING_RATIO = 0.9  # of the time before; above it an operation has not become notably faster
OPERATIONS_SHOWN = 3


def emulated_float16(data: Evidence) -> Reason | None:
    """On a CPU, the operations that moved to float16 take longer than before.

    Instruction sets do not decide this. TensorFlow's kernels convert each number to float32 and back, even on
    processors with AVX512_FP16; oneDNN takes the forward convolution there but runs its gradients as reference code.
    """
    if data.on_gpu or not data.is_float16:
        return None
    if data.baseline is None or data.speedup is None or data.speedup.high >= 1:
        return None
    moved = _moved(data.baseline, data.candidate)
    if not moved.before_ms or moved.total_after_ms < EMULATION_RATIO * moved.total_before_ms:
        return None
    although = ", although it has float16 instructions" if data.float16_instructions else ""
    return Reason(
        code="emulated_float16",
        text=f"float16 is emulated on this CPU{although}: the operations that moved to float16 take longer than "
        f"before ({moved.slowest_text()} a step), and training runs at {data.speedup.ratio:.2f}× the speed.",
        evidence={"speedup_train": data.speedup.ratio, "operations": moved.slowest("float16_ms")}
        | {"lost_ms": moved.lost_ms},
        advice="Judge float16 on a GPU. On a CPU try mixed_bfloat16, which many CPUs support in hardware.",
        time_ms=moved.lost_ms,
    )


def slow_16bit_ops(data: Evidence) -> Reason | None:
    """The operations that moved to 16 bit are hardly faster than before, and neither is training."""
    if data.baseline is None or data.speedup is None or not data.is_16bit or data.speedup.low > 1:
        return None
    moved = _moved(data.baseline, data.candidate)
    if not moved.before_ms or moved.total_after_ms < GAINING_RATIO * moved.total_before_ms or emulated_float16(data):
        return None
    return Reason(
        code="slow_16bit_ops",
        text=f"The operations that moved to 16 bit take {moved.total_after_ms:.3g} ms a step; in the baseline they "
        f"take {moved.total_before_ms:.3g} ms ({moved.slowest_text()}). They gain nothing on this machine.",
        evidence={"baseline_ms": moved.total_before_ms, "candidate_ms": moved.total_after_ms}
        | {"operations": moved.slowest("candidate_ms")},
        advice="Larger layers, images and batches gain more from 16 bit; otherwise keep the baseline.",
        time_ms=max(moved.lost_ms, 0.0),
    )


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
            f"{op_type} {self.before_ms[op_type]:.3g} → {self.after_ms[op_type]:.3g} ms" for op_type in self._by_loss()
        )


def _moved(baseline: Profile, candidate: Profile) -> _Moved:
    after = time_by_type(op for op in candidate.operations if op.dtype in SIXTEEN_BIT and not is_cast(op.type))
    before = {op_type: ms for op_type, ms in time_by_type(baseline.operations).items() if op_type in after}
    return _Moved(before, {op_type: after[op_type] for op_type in before})
