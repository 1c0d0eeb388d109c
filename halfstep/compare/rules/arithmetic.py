"""What runs in 16 bit, on which hardware, and whether it is faster there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from halfstep.compare.case import STEP, Case
from halfstep.compare.explain.account import layers_of, slower_types
from halfstep.compare.explain.hardware import (
    MEMORY_TRAFFIC_RATIO,
    gpu_name,
    instruction_sets,
    peak_ratios,
    tensor_cores_from,
)
from halfstep.compare.explain.limit import best_speedup, is_matrix, limit_if_compute_faster, work_of
from halfstep.compare.ratio_text import interval_text, ratio_text
from halfstep.compare.reason import (
    change_text,
    changes_of,
    interval_evidence,
    longest,
    part_of_compute_ms,
    time_by_type,
    times_text,
)
from halfstep.compare.rules.layer_sets import slower_sets
from halfstep.compare.rules.settings import odd_sizes
from halfstep.results.comparison import Reason, Remedy
from halfstep.results.profile import AccountRow
from halfstep.words.policies import FLOAT16, POLICIES
from halfstep.words.text import joined, ms_text, number_text

EMULATION_RATIO = 1.2  # hardware with 16-bit arithmetic is not slower at all
GAINING_RATIO = 0.9  # of the time before; above it, an operation has not become notably faster
SLOWER_SHARE = 0.05  # of the step, by which one type of operation is slower in 16 bit
FEW_16BIT_PERCENT = 10.0  # below it the profiler itself recommends 16 bit
MOSTLY_PERCENT = MEMORY_BOUND_PERCENT = 50.0
IDLE_SHARE = 0.25  # of the time of matrix operations
IDLE_PERCENT = 25.0  # of compute, between matrix work and what tensor cores do or may do
MIN_CLASSIFIED_SHARE = 0.5  # of the time of matrix work; with less, nothing is said about idle tensor cores
NEAR_LIMIT = 0.90
_SHOWN, _CLASSES_SHOWN = 3, 2
_STAY_32BIT = {"norm": "normalization", "softmax": "softmax"}
_ASSUMED = f" (assuming that memory-bound work becomes at most {MEMORY_TRAFFIC_RATIO:g} times as fast)"


def slow_in_16bit(case: Case) -> Reason | None:
    """Why operations are slow in 16 bit: the first that holds says why the others would, too.

    Instruction sets do not decide about emulation. TensorFlow's kernels convert each number to float32 and back, even
    on processors with AVX512_FP16; oneDNN takes the forward convolution there but runs its gradients as reference code.
    """
    precision = case.precision
    if precision is None or not case.is_16bit:
        return None if case.lacks_instructions else _one_slower_type(case)
    change, rows = case.moved or (None, [])
    dtype, side = case.compute.name, case.side(precision)
    runs = f"a training step runs at {precision.ratio:.2f}× the speed ({interval_text(precision)})"
    measured = {"speedup_train": precision.ratio, "low": precision.low, "high": precision.high}
    slower_ms = precision.candidate_time_ms - precision.baseline_time_ms  # a reason never explains more
    to_try = case.policy_to_try and f"try {case.policy_to_try}, for which it has instructions."
    in_float16 = not case.on_gpu and case.compute is FLOAT16
    is_slower = change is not None and change.low > 0 and change.candidate_ms >= EMULATION_RATIO * change.baseline_ms
    if change and is_slower and in_float16 and precision.high < 1:
        although = ", although it has float16 instructions" if case.has_instructions else ""
        return Reason(
            code="emulated_float16",
            text=f"This CPU emulates float16{although}: {runs}, and the operations that moved to float16 take "
            f"{change_text(change)} a step ({_types_text(rows)}).",
            evidence=measured | {"operations": rows[:_SHOWN]} | interval_evidence(change),
            advice=f"Measure float16 on a GPU.{f' On this CPU {to_try}' if to_try else ''}",
            time_ms=min(change.delta, slower_ms),
            change=_other_policy(case),
        )
    if case.lacks_instructions and case.baseline is not None and side == "below":
        sets = sorted(instruction_sets(case.environment))
        return Reason(
            code="no_16bit_instructions",
            text=f"This CPU has no {dtype} instructions ({', '.join(sets)}), so it converts every number to float32 "
            f"and back: {runs}.",
            evidence={"instruction_sets": sets} | measured,
            advice=f"Keep {case.baseline.policy} on this CPU, or measure on one with instructions for {dtype}."
            f"{f' Here {to_try}' if to_try else ''}",
            time_ms=max(0.0, slower_ms),
            change=_other_policy(case),
        )
    if case.lacks_instructions:
        return None
    if change and side == "below" and change.low >= (GAINING_RATIO - 1) * change.baseline_ms:
        return Reason(
            code="slow_16bit_ops",
            text=f"The operations that moved to 16 bit take {ms_text(change.candidate_ms)} a step, "
            f"{change_text(change)} ({_types_text(rows)}). 16 bit gains little there.",
            evidence={"operations": rows[:_SHOWN]} | measured | interval_evidence(change),
            advice="Larger layers, images and batches gain more from 16 bit; otherwise keep the baseline.",
            time_ms=max(0.0, min(change.delta, slower_ms)),
            **changes_of(slower_sets(case)),
        )
    return _one_slower_type(case)


def _one_slower_type(case: Case) -> Reason | None:
    """One type of operation takes a notable part of the step longer in 16 bit, whatever the others gain."""
    accounts = case.by_operation
    if not case.is_16bit or accounts is None:
        return None
    least_ms = SLOWER_SHARE * accounts.step[0]["candidate_ms"].iloc[0]
    slower = [(op_type, change) for op_type, change in slower_types(accounts) if change.delta >= least_ms]
    if not slower:
        return None
    op_type, change = slower[0]
    layers = layers_of(accounts, op_type)
    where = f" (of {joined(layers[:_CLASSES_SHOWN])})" if layers else ""
    bias = "A layer before a normalization needs no bias (use_bias=False). " if op_type == "BiasAddGrad" else ""
    has_xla = case.candidate.summary.in_force.xla
    xla = "" if has_xla else "XLA (xla: true in both entries of variants) compiles other code for it. "
    rows = [
        {"type": name, "baseline_ms": one.baseline_ms, "candidate_ms": one.candidate_ms}
        for name, one in slower[:_SHOWN]
    ]
    return Reason(
        code="slower_in_16bit",
        text=f"{op_type}{where} takes {ms_text(change.candidate_ms)} a step in {case.compute.name}, "
        f"{change_text(change)}.",
        evidence={"operations": rows} | interval_evidence(change),
        advice=f"{bias}{xla}Or keep such layers in float32 (float32_layers).",
        time_ms=change.delta,
        change=None if has_xla else case.changed("xla", True),
    )


def _types_text(rows: Sequence[dict[str, Any]]) -> str:
    return ", ".join(
        f"{row['type']} {number_text(row['baseline_ms'])} → {ms_text(row['candidate_ms'])}" for row in rows[:_SHOWN]
    )


def _other_policy(case: Case) -> Remedy | None:
    """The policy to try here, and what it may bring over this variant by the limit of the baseline's trace."""
    if case.policy_to_try is None or case.baseline is None or case.speedup is None:
        return None
    ratios = peak_ratios(POLICIES[case.policy_to_try].compute, case.environment, on_gpu=case.on_gpu)
    work = work_of(case.baseline)
    return case.changed(
        "policy", case.policy_to_try, best_speedup(work, ratios) / case.speedup.ratio if work and ratios else None
    )


def no_tensor_cores(case: Case) -> Reason | None:
    """The GPU has no tensor cores, or none for bfloat16."""
    precision = case.compute if case.is_16bit else FLOAT16  # which the oldest tensor cores multiply
    if not case.on_gpu or case.has_hardware_for(precision) is not False or not case.is_about_16bit:
        return None
    dtype, gpu = "16 bit" if precision is FLOAT16 else precision.name, gpu_name(case.environment)
    ratios = peak_ratios(precision, case.environment, on_gpu=True)
    matrix = f"{ratios.matrix:g} times faster at most" if ratios and ratios.matrix > 1 else "no faster"
    return Reason(
        code="no_tensor_cores",
        text=f"This GPU has no tensor cores for {dtype} ({gpu}): matrix work becomes {matrix}.",
        evidence={"gpu": gpu, "compute_capability": case.compute_capability},
        advice=f"Keep float32 on this GPU, or measure on one with tensor cores for {dtype} (compute capability "
        f"{tensor_cores_from(precision):g} or higher).",
        time_ms=part_of_compute_ms(case.candidate, "profiler/matrix_percent"),
    )


def tensor_cores_idle(case: Case) -> Reason | None:
    """The GPU has tensor cores and the candidate is 16-bit, but matrix operations do not use them.

    What the kernels' names do not show counts as neither used nor idle; with too much of it there is no reason. Where
    the trace names no matrix operations, the shares of all kernels count.
    """
    if not case.on_gpu or not case.is_16bit or not case.has_hardware_for(case.compute):
        return None
    matrix = [op for op in case.operations if is_matrix(op)]
    if matrix:
        idle = [op for op in matrix if op.tensor_core is False]
        idle_ms, matrix_ms = _time_ms(idle), _time_ms(matrix)
        unknown_ms = _time_ms(op for op in matrix if op.tensor_core is None)
        if not idle or idle_ms < IDLE_SHARE * matrix_ms or unknown_ms > (1 - MIN_CLASSIFIED_SHARE) * matrix_ms:
            return None
        by_type, in_16bit = time_by_type(idle), [op for op in idle if op.dtype != "float32"]
        depthwise = [op for op in in_16bit if op.operation.startswith("Depthwise")]
        float32_ms = _time_ms(op for op in idle if op.dtype == "float32")
        parts = {"float32_ms": float32_ms, "depthwise_ms": _time_ms(depthwise)}
        rest_ms = _time_ms(op for op in in_16bit if op not in depthwise)
        seen = f"{number_text(idle_ms)} of {ms_text(matrix_ms)} of matrix operations run without tensor cores "
        seen += f"({times_text(by_type, _SHOWN)})" + (f"; of {ms_text(unknown_ms)} it is unknown" if unknown_ms else "")
        evidence: dict[str, Any] = {"idle_ms": idle_ms, "matrix_ms": matrix_ms, "unknown_ms": unknown_ms}
        evidence |= {name: value for name, value in parts.items() if value} | {"operations": longest(by_type, _SHOWN)}
        time_ms: float | None = idle_ms
    else:
        names = [f"profiler/{name}_percent" for name in ("matrix", "tensor_core", "tensor_core_unknown")]
        evidence = {name: case.candidate.metrics[name] for name in names if name in case.candidate.metrics}
        if len(evidence) < len(names):
            return None
        whole, used, unknown = evidence.values()
        parts, rest_ms = {}, whole - used - unknown
        if rest_ms < IDLE_PERCENT or unknown > (1 - MIN_CLASSIFIED_SHARE) * whole:
            return None
        seen = f"Matrix work takes {whole:.0f} % of the compute time, and tensor cores only {used:.0f} %"
        seen += f", or up to {used + unknown:.0f} %, as the use is unknown for some kernels" if unknown else ""
        time_ms = None if case.compute_ms is None else case.compute_ms * rest_ms / 100
    return Reason(
        code="tensor_cores_idle",
        text=f"{seen}, although this GPU has tensor cores for 16 bit.",
        evidence=evidence,
        advice=_idle_advice(case, rest_ms, **parts),
        time_ms=time_ms,
    )


def _idle_advice(case: Case, rest_ms: float, float32_ms: float = 0.0, depthwise_ms: float = 0.0) -> str:
    """What to do about the causes that the trace and the configuration show."""
    sentences = []
    if float32_ms:
        sentences.append(
            f"Remove dtypes that are set on single layers: {ms_text(float32_ms)} of it compute in float32."
        )
    if depthwise_ms:
        sentences.append(f"Depthwise convolutions ({ms_text(depthwise_ms)}) have no kernels for tensor cores.")
    if rest_ms > 0:
        batch_size, widths = odd_sizes(case, 8)
        sizes = [*([f"the batch size {batch_size}"] if batch_size else []), *map(str, widths)]
        shown = f" (now {', '.join(sizes)})" if sizes else ""
        sentences.append(f"Make channels and train.batch_size multiples of 8{shown}.")
    return " ".join(sentences)


def _time_ms(operations: Iterable[AccountRow]) -> float:
    return math.fsum(operation.time_ms for operation in operations)


def no_16bit_ops(case: Case) -> Reason | None:
    """The trace shows almost no 16-bit compute, although the policy or the hardware would allow it."""
    metrics = case.candidate.metrics
    percent = metrics.get("profiler/compute_16bit_percent")
    unknown = metrics.get("profiler/compute_unknown_percent", 0.0) if case.is_16bit else 0.0
    if percent is None or percent + unknown >= FEW_16BIT_PERCENT or not (case.is_16bit or case.policy_to_try):
        return None
    if case.baseline is not None and not case.is_16bit:
        return None  # a candidate in float32 is not slower because of that; the baseline's own reasons say it
    if case.is_16bit:
        most = f" to {percent + unknown:.1f}" if unknown else ""
        text = f"Only {percent:.1f}{most} % of the compute time is 16-bit although the policy is {case.policy}."
        advice = "Remove dtypes that are set on single layers: those layers do not follow the policy."
    else:
        known = case.policy_to_try and case.has_hardware_for(POLICIES[case.policy_to_try].compute)
        text = f"{percent:.1f} % of the compute time is 16-bit, and this {'GPU' if case.on_gpu else 'CPU'} "
        text += f"{'has' if known else 'may have'} hardware for 16 bit."
        advice = f"Try a variant with policy: {case.policy_to_try}."
    evidence: dict[str, Any] = {"profiler/compute_16bit_percent": percent, "threshold_percent": FEW_16BIT_PERCENT}
    evidence |= {"profiler/compute_unknown_percent": unknown} if unknown else {}
    step_ms, compute_ms = metrics.get(STEP), case.compute_ms
    if case.on_gpu and step_ms and compute_ms is not None and compute_ms < step_ms:
        names = {"3_times": 3.0, "8_times": 8.0, "free": math.inf}
        limits = {name: limit_if_compute_faster(step_ms, compute_ms, times) for name, times in names.items()}
        evidence |= {"profiler/device_compute_ms": compute_ms, STEP: step_ms, "speedup_if_compute_faster": limits}
        text += f" If the computation were 3 times faster, the step would run at {limits['3_times']:.2f}× the speed, "
        text += f"with 8 times at {limits['8_times']:.1f}×, and at {limits['free']:.1f}× at most."
    return Reason(code="no_16bit_ops", text=text, evidence=evidence, advice=advice, time_ms=compute_ms)


def mostly_32bit_ops(case: Case) -> Reason | None:
    """Under a 16-bit policy most compute time stays 32-bit: normalization, softmax, loss, optimizer."""
    metrics, stayed = case.candidate.metrics, dict[str, float]()
    percent = metrics.get("profiler/compute_32bit_percent")
    if percent is None or percent < MOSTLY_PERCENT or not case.is_16bit or case.is_account_void:
        return None
    if metrics.get("profiler/compute_16bit_percent", 0.0) < FEW_16BIT_PERCENT:
        return None  # no_16bit_ops explains it
    for operation in case.operations:
        if operation.dtype == "float32" and operation.kind != "cast":
            stayed[_part(operation)] = stayed.get(_part(operation), 0.0) + operation.time_ms
    shown = f" ({times_text(stayed, _SHOWN)} a step)" if stayed else ""
    return Reason(
        code="mostly_32bit_ops",
        text=f"{percent:.0f} % of the compute time stays 32-bit under {case.policy}{shown} and does not become faster.",
        evidence={"profiler/compute_32bit_percent": percent, "operations": longest(stayed, 2 * _SHOWN)}
        | ({"in_32bit": interval_evidence(case.stayed)} if case.stayed else {}),
        advice="Normalization, softmax, loss and optimizer stay 32-bit to keep the accuracy: wider layers or a larger "
        "train.batch_size increase the 16-bit share.",
        time_ms=part_of_compute_ms(case.candidate, "profiler/compute_32bit_percent"),
    )


def _part(operation: AccountRow) -> str:
    """The part of the network that a 32-bit operation belongs to; its op type if it is none of the known parts."""
    if operation.kind == "optimizer":
        return operation.kind
    name = f"{operation.layer}/{operation.layer_class}/{operation.operation}".lower()
    return next((part for word, part in _STAY_32BIT.items() if word in name), operation.operation)


def memory_bound(case: Case) -> Reason | None:
    """Most of the baseline's compute time reads and writes memory: half the bytes take half the time."""
    percent = case.before.metrics.get("profiler/memory_bound_percent")
    if percent is None or percent < MEMORY_BOUND_PERCENT or not case.is_about_16bit or case.is_account_void:
        return None
    change = case.kind("memory")
    return Reason(
        code="memory_bound",
        text=f"{percent:.0f} % of the compute time{' of the baseline' if case.baseline else ''} reads and writes "
        "memory (activations, normalization, updates). 16 bit halves the bytes, which is assumed to make that "
        f"{MEMORY_TRAFFIC_RATIO:g} times faster at most.",
        evidence={"profiler/memory_bound_percent": percent, "threshold_percent": MEMORY_BOUND_PERCENT}
        | {"assumed_memory_ratio": MEMORY_TRAFFIC_RATIO}
        | ({"kind_memory": interval_evidence(change)} if change else {}),
        advice="Fewer or smaller such layers. XLA already fuses these operations."
        if case.before.summary.in_force.xla
        else "XLA (xla: true in both entries of variants) fuses such operations, so that memory is read less often.",
        time_ms=part_of_compute_ms(case.before, "profiler/memory_bound_percent"),
        change=None if case.candidate.summary.in_force.xla else case.changed("xla", True),
    )


def at_limit(case: Case) -> Reason | None:
    """The lower end of the speed-up has reached the limit, or the limit is below what is required."""
    limit, speedup, required = case.limit, case.speedup, case.min_speedup
    if limit is None or speedup is None or (speedup.low < NEAR_LIMIT * limit and limit >= required):
        return None
    text = f"The speed-up of {ratio_text(speedup)} is near the limit of this step, {limit:.2f}×{_ASSUMED}."
    advice = "A lower precision cannot bring much more here: no precision makes the rest of the step faster."
    if limit < required:
        text = f"At best, 16 bit makes this step {limit:.2f}× as fast{_ASSUMED}, and you asked for {required:g}×."
        advice = "Lower compare.min_speedup if this is worth having; otherwise make the rest of the step faster first."
    step_ms = case.before.metrics.get(STEP)
    return Reason(
        code="at_limit",
        text=text,
        evidence={"limit": limit, "speedup": speedup.ratio, "low": speedup.low, "high": speedup.high}
        | {"min_speedup": required, "assumed_memory_ratio": MEMORY_TRAFFIC_RATIO},
        advice=advice,
        time_ms=None if step_ms is None else step_ms / limit,
    )
