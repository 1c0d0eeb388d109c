"""Reasons in what moved to 16 bit: the same operations before and after, by type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stages.compare.arms import Profile
from stages.compare.evidence import Measurements, Reason, time_by_type

SIXTEEN_BIT = frozenset({"float16", "bfloat16"})
EMULATION_RATIO = 1.2  # hardware that computes in 16 bit is not slower at all
GAINING_RATIO = 0.9  # of the time before: what stays above it has gained nothing to speak of
OPERATIONS_SHOWN = 3


def emulated_float16(seen: Measurements) -> Reason | None:
    """On a CPU: what moved to float16 takes longer than it did before.

    Instruction sets do not decide it. TensorFlow's kernels convert each number to float32 and back, also on processors
    with AVX512_FP16; and where oneDNN takes the forward convolution there, its gradients run as reference code.
    """
    if seen.candidate.device_type != "CPU" or not seen.is_float16:
        return None
    if seen.baseline is None or seen.speedup is None or seen.speedup.high >= 1:
        return None
    moved = _moved(seen.baseline, seen.candidate)
    if not moved.before_ms or moved.total_after_ms < EMULATION_RATIO * moved.total_before_ms:
        return None
    return Reason(
        code="emulated_float16",
        text=f"float16 is emulated on this CPU{_although(seen)}: the operations that moved to float16 take "
        f"longer than before ({moved.slowest_text()} a step), and training runs at {seen.speedup.ratio:.2f}× the "
        "speed.",
        evidence={"speedup_train": seen.speedup.ratio, "operations": moved.slowest("float16_ms")}
        | {"lost_ms": moved.lost_ms},
        advice="Judge float16 on a GPU. On a CPU try mixed_bfloat16, which many compute in hardware.",
        time_ms=moved.lost_ms,
    )


def slow_16bit_ops(seen: Measurements) -> Reason | None:
    """What moved to 16 bit is hardly faster there than before, and training is not faster either."""
    if seen.baseline is None or seen.speedup is None or not seen.is_16bit or seen.speedup.low > 1:
        return None
    moved = _moved(seen.baseline, seen.candidate)
    if not moved.before_ms or moved.total_after_ms < GAINING_RATIO * moved.total_before_ms or emulated_float16(seen):
        return None
    return Reason(
        code="slow_16bit_ops",
        text=f"What moved to 16 bit takes {moved.total_after_ms:.3g} ms a step there, and {moved.total_before_ms:.3g} "
        f"ms before ({moved.slowest_text()}): it gains nothing on this machine.",
        evidence={"baseline_ms": moved.total_before_ms, "candidate_ms": moved.total_after_ms}
        | {"operations": moved.slowest("candidate_ms")},
        advice="Larger layers, images and batches gain more from 16 bit; else stay with the baseline.",
        time_ms=max(moved.lost_ms, 0.0),
    )


@dataclass(frozen=True)
class _Moved:
    """Operations that compute in 16 bit now: milliseconds a step by type, before and after."""

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
        return sorted(self.before_ms, key=lambda kind: self.before_ms[kind] - self.after_ms[kind])[:OPERATIONS_SHOWN]

    def slowest(self, name: str) -> list[dict[str, Any]]:
        """Those that lost most, as evidence; `name` is that of the time after."""
        return [
            {"type": kind, "baseline_ms": self.before_ms[kind], name: self.after_ms[kind]} for kind in self._by_loss()
        ]

    def slowest_text(self) -> str:
        """Those that lost most, in words."""
        return ", ".join(
            f"{kind} {self.before_ms[kind]:.3g} → {self.after_ms[kind]:.3g} ms" for kind in self._by_loss()
        )


def _moved(baseline: Profile, candidate: Profile) -> _Moved:
    after = time_by_type(op for op in candidate.operations if op.dtype in SIXTEEN_BIT and op.type != "Cast")
    before = {kind: ms for kind, ms in time_by_type(baseline.operations).items() if kind in after}
    return _Moved(before, {kind: after[kind] for kind in before})


def _although(seen: Measurements) -> str:
    return ", although it has float16 instructions" if seen.float16_instructions else ""
