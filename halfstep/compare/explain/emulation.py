"""Reasons about the operations that moved to 16 bit: their times before and after, by type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfstep.compare.explain.account import layers_of, slower_types
from halfstep.compare.explain.evidence import Evidence, change_text, changes_of, interval_evidence
from halfstep.compare.explain.hardware import instruction_sets, peak_ratios
from halfstep.compare.explain.layer_sets import slower_sets
from halfstep.compare.explain.limit import best_speedup, work_of
from halfstep.compare.text import interval_text
from halfstep.policies import FLOAT16, POLICIES
from halfstep.results.comparison import PartChange, Reason, Remedy
from halfstep.stats.speedup import Speedup
from halfstep.text import joined, ms_text, number_text

EMULATION_RATIO = 1.2  # hardware with 16-bit arithmetic is not slower at all
GAINING_RATIO = 0.9  # of the time before; above it, an operation has not become notably faster
SLOWER_SHARE = 0.05  # of the step, by which one type of operation is slower in 16 bit
OPERATIONS_SHOWN, CLASSES_SHOWN = 3, 2


def operations_in_16bit(data: Evidence) -> Reason | None:
    """Why operations are slow in 16 bit: the first of the rules below that holds says why the others would, too."""
    return emulated_float16(data) or no_16bit_instructions(data) or slow_16bit_ops(data) or slower_in_16bit(data)


def emulated_float16(data: Evidence) -> Reason | None:
    """On a CPU, the operations that moved to float16 take longer than before, and so does training.

    Instruction sets do not decide this. TensorFlow's kernels convert each number to float32 and back, even on
    processors with AVX512_FP16; oneDNN takes the forward convolution there but runs its gradients as reference code.
    """
    precision = data.precision
    if data.on_gpu or data.compute is not FLOAT16 or precision is None or precision.high >= 1 or data.moved is None:
        return None
    change, rows = data.moved
    if change.low <= 0 or change.candidate_ms < EMULATION_RATIO * change.baseline_ms:
        return None
    although = ", although it has float16 instructions" if data.has_instructions else ""
    return Reason(
        code="emulated_float16",
        text=f"This CPU emulates float16{although}: a training step runs at {precision.ratio:.2f}× the speed "
        f"({interval_text(precision)}), and the operations that moved to float16 take "
        f"{change_text(change)} a step ({_longest_text(rows)}).",
        evidence={"speedup_train": precision.ratio, "low": precision.low, "high": precision.high}
        | {"operations": rows[:OPERATIONS_SHOWN]}
        | interval_evidence(change),
        advice="Measure float16 on a GPU."
        + (f" On this CPU try {data.policy_to_try}, for which it has instructions." if data.policy_to_try else ""),
        time_ms=min(change.delta, _slower_ms(precision)),
        change=_other_policy(data),
    )


def _other_policy(data: Evidence) -> Remedy | None:
    """The policy to try here, and what it may bring over this variant by the limit of the baseline's trace."""
    if data.policy_to_try is None or data.baseline is None or data.speedup is None:
        return None
    ratios = peak_ratios(POLICIES[data.policy_to_try].compute, data.environment, on_gpu=data.on_gpu)
    work = work_of(data.baseline)
    at_most = best_speedup(work, ratios) / data.speedup.ratio if work and ratios else None
    return data.changed("policy", data.policy_to_try, at_most)


def no_16bit_instructions(data: Evidence) -> Reason | None:
    """The CPU has no instructions for the candidate's type, so that each number is converted, and nothing is gained."""
    precision = data.precision
    if not data.lacks_instructions or data.baseline is None or precision is None:
        return None
    if precision.side(data.min_speedup) != "below":
        return None
    dtype = data.compute.name
    sets = sorted(instruction_sets(data.environment))
    return Reason(
        code="no_16bit_instructions",
        text=f"This CPU has no {dtype} instructions ({', '.join(sets)}), so it converts every number to float32 and "
        f"back: a training step runs at {precision.ratio:.2f}× the speed "
        f"({interval_text(precision)}).",
        evidence={"instruction_sets": sets, "speedup_train": precision.ratio}
        | {"low": precision.low, "high": precision.high},
        advice=f"Keep {data.baseline.policy} on this CPU, or measure on one with instructions for {dtype}."
        + (f" Here try {data.policy_to_try}, for which it has instructions." if data.policy_to_try else ""),
        time_ms=max(0.0, _slower_ms(precision)),
        change=_other_policy(data),
    )


def slow_16bit_ops(data: Evidence) -> Reason | None:
    """The operations that moved to 16 bit are not notably faster than before, and training does not gain enough."""
    precision, moved = data.precision, data.moved
    if not data.is_16bit or data.lacks_instructions or precision is None or moved is None:
        return None
    change, rows = moved
    if precision.side(data.min_speedup) != "below" or change.low < (GAINING_RATIO - 1) * change.baseline_ms:
        return None
    return Reason(
        code="slow_16bit_ops",
        text=f"The operations that moved to 16 bit take {ms_text(change.candidate_ms)} a step, {change_text(change)} "
        f"({_longest_text(rows)}). 16 bit gains little there.",
        evidence={"operations": rows[:OPERATIONS_SHOWN], "speedup_train": precision.ratio}
        | {"low": precision.low, "high": precision.high}
        | interval_evidence(change),
        advice="Larger layers, images and batches gain more from 16 bit; otherwise keep the baseline.",
        time_ms=max(0.0, min(change.delta, _slower_ms(precision))),
        **changes_of(slower_sets(data)),
    )


def slower_in_16bit(data: Evidence) -> Reason | None:
    """One type of operation takes a notable part of the step longer in 16 bit than before, whatever the others gain."""
    accounts = data.by_operation
    if not data.is_16bit or data.lacks_instructions or accounts is None:
        return None
    least_ms = SLOWER_SHARE * accounts.traced[0]["candidate_ms"].iloc[0]
    slower = [(op_type, change) for op_type, change in slower_types(accounts) if change.delta >= least_ms]
    if not slower:
        return None
    op_type, change = slower[0]
    layers = layers_of(accounts, op_type)
    where = f" (of {joined(layers[:CLASSES_SHOWN])})" if layers else ""
    bias = "A layer before a normalization needs no bias (use_bias=False). " if op_type == "BiasAddGrad" else ""
    has_xla = data.candidate.summary.in_force.xla
    return Reason(
        code="slower_in_16bit",
        text=f"{op_type}{where} takes {ms_text(change.candidate_ms)} a step in {data.compute.name}, "
        f"{change_text(change)}.",
        evidence={"operations": [_row(*item) for item in slower[:OPERATIONS_SHOWN]]} | interval_evidence(change),
        advice=bias
        + ("" if has_xla else "XLA (xla: true in both entries of variants) compiles other code for it. ")
        + "Or keep such layers in float32 (float32_layers).",
        time_ms=change.delta,
        change=None if has_xla else data.changed("xla", True),
    )


def _row(op_type: str, change: PartChange) -> dict[str, Any]:
    return {"type": op_type, "baseline_ms": change.baseline_ms, "candidate_ms": change.candidate_ms}


def _slower_ms(speedup: Speedup) -> float:
    """How much longer a step takes; a reason never explains more."""
    return speedup.candidate_time_ms - speedup.baseline_time_ms


def _longest_text(rows: Sequence[dict[str, Any]]) -> str:
    """The operations that lost most."""
    return ", ".join(
        f"{row['type']} {number_text(row['baseline_ms'])} → {ms_text(row['candidate_ms'])}"
        for row in rows[:OPERATIONS_SHOWN]
    )
