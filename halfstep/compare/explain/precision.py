"""Reasons about the arithmetic: what runs in 16 bit, and on which hardware."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from halfstep.compare.explain.evidence import (
    STEP,
    Evidence,
    interval_evidence,
    longest,
    part_of_compute_ms,
    time_by_type,
    times_text,
)
from halfstep.compare.explain.hardware import gpu_name, peak_ratios, tensor_cores_from
from halfstep.compare.explain.limit import is_matrix, limit_if_compute_faster
from halfstep.compare.explain.settings import odd_sizes
from halfstep.policies import FLOAT16, POLICIES
from halfstep.results.comparison import Reason
from halfstep.results.profile import AccountRow
from halfstep.text import ms_text, number_text

FEW_16BIT_PERCENT = 10.0  # below it the profiler itself recommends 16 bit
MOSTLY_PERCENT = 50.0
IDLE_SHARE = 0.25  # of the time of matrix operations
IDLE_PERCENT = 25.0  # of compute, between matrix work and what tensor cores do or may do
MIN_CLASSIFIED_SHARE = 0.5  # of the time of matrix work; with less, nothing is said about idle tensor cores
OPERATIONS_SHOWN = 3
_STAY_32BIT = {"norm": "normalization", "softmax": "softmax"}


def no_tensor_cores(data: Evidence) -> Reason | None:
    """The GPU has no tensor cores, or none for bfloat16."""
    precision = data.compute if data.is_16bit else FLOAT16  # which the oldest tensor cores multiply
    capability, required = data.compute_capability, tensor_cores_from(precision)
    if not data.on_gpu or data.has_hardware_for(precision) is not False or not data.is_about_16bit:
        return None
    dtype = "16 bit" if precision is FLOAT16 else precision.name
    ratios = peak_ratios(precision, data.environment, on_gpu=True)
    matrix = f"{ratios.matrix:g} times faster at most" if ratios and ratios.matrix > 1 else "no faster"
    return Reason(
        code="no_tensor_cores",
        text=f"This GPU has no tensor cores for {dtype} ({gpu_name(data.environment)}): matrix work becomes {matrix}.",
        evidence={"gpu": gpu_name(data.environment), "compute_capability": capability},
        advice=f"Keep float32 on this GPU, or measure on one with tensor cores for {dtype} (compute capability "
        f"{required:g} or higher).",
        time_ms=part_of_compute_ms(data.candidate, "profiler/matrix_percent"),
    )


def tensor_cores_idle(data: Evidence) -> Reason | None:
    """The GPU has tensor cores and the candidate is 16-bit, but matrix operations do not use them.

    What the kernels' names do not show counts as neither used nor idle. With too much of it there is no reason.
    """
    if not data.on_gpu or not data.is_16bit or not data.has_hardware_for(data.compute):
        return None
    return _idle_operations(data) or _idle_percent(data)


def _idle_operations(data: Evidence) -> Reason | None:
    matrix = [op for op in data.operations if is_matrix(op)]
    idle = [op for op in matrix if op.tensor_core is False]
    idle_ms, total_ms, matrix_ms = time_by_type(idle), _time_ms(idle), _time_ms(matrix)
    unknown_ms = _time_ms(op for op in matrix if op.tensor_core is None)
    if not idle or total_ms < IDLE_SHARE * matrix_ms or unknown_ms > (1 - MIN_CLASSIFIED_SHARE) * matrix_ms:
        return None
    unknown = f"; of {ms_text(unknown_ms)} it is unknown" if unknown_ms else ""
    in_16bit = [op for op in idle if op.dtype != "float32"]
    causes = {"float32_ms": _time_ms(op for op in idle if op.dtype == "float32")}
    causes["depthwise_ms"] = _time_ms(op for op in in_16bit if _is_depthwise(op))
    causes["rest_ms"] = _time_ms(op for op in in_16bit if not _is_depthwise(op))
    return _idle(
        f"{number_text(total_ms)} of {ms_text(matrix_ms)} of matrix operations run without tensor cores "
        f"({times_text(idle_ms, OPERATIONS_SHOWN)}){unknown}",
        {"idle_ms": total_ms, "matrix_ms": matrix_ms, "unknown_ms": unknown_ms}
        | {name: causes[name] for name in ("float32_ms", "depthwise_ms") if causes[name]}
        | {"operations": longest(idle_ms, OPERATIONS_SHOWN)},
        total_ms,
        advice=_idle_advice(data, **causes),
    )


def _idle_percent(data: Evidence) -> Reason | None:
    """By shares of all kernels, where the trace names no matrix operations."""
    names = [f"profiler/{name}_percent" for name in ("matrix", "tensor_core", "tensor_core_unknown")]
    percentages = {name: data.candidate.metrics[name] for name in names if name in data.candidate.metrics}
    if len(percentages) < len(names) or any(is_matrix(op) for op in data.operations):
        return None
    matrix, used, unknown = percentages.values()
    idle = matrix - used - unknown
    if idle < IDLE_PERCENT or unknown > (1 - MIN_CLASSIFIED_SHARE) * matrix:
        return None
    total_ms = data.compute_ms
    return _idle(
        f"Matrix work takes {matrix:.0f} % of the compute time, and tensor cores only {used:.0f} %"
        + (f", or up to {used + unknown:.0f} %, as the use is unknown for some kernels" if unknown else ""),
        percentages,
        None if total_ms is None else total_ms * idle / 100,
        advice=_idle_advice(data, rest_ms=idle),
    )


def _idle(observation: str, evidence: dict[str, Any], time_ms: float | None, advice: str) -> Reason:
    return Reason(
        code="tensor_cores_idle",
        text=f"{observation}, although this GPU has tensor cores for 16 bit.",
        evidence=evidence,
        advice=advice,
        time_ms=time_ms,
    )


def _idle_advice(data: Evidence, rest_ms: float, float32_ms: float = 0.0, depthwise_ms: float = 0.0) -> str:
    """What to do about the causes that the trace and the configuration show."""
    sentences = []
    if float32_ms:
        sentences.append(
            f"Remove dtypes that are set on single layers: {ms_text(float32_ms)} of it compute in float32."
        )
    if depthwise_ms:
        sentences.append(f"Depthwise convolutions ({ms_text(depthwise_ms)}) have no kernels for tensor cores.")
    if rest_ms > 0:
        batch_size, widths = odd_sizes(data, 8)
        sizes = [*([f"the batch size {batch_size}"] if batch_size else []), *map(str, widths)]
        shown = f" (now {', '.join(sizes)})" if sizes else ""
        sentences.append(f"Make channels and train.batch_size multiples of 8{shown}.")
    return " ".join(sentences)


def _is_depthwise(operation: AccountRow) -> bool:
    return operation.operation.startswith("Depthwise")


def _time_ms(operations: Iterable[AccountRow]) -> float:
    return math.fsum(operation.time_ms for operation in operations)


def no_16bit_ops(data: Evidence) -> Reason | None:
    """The trace shows almost no 16-bit compute, although the policy or the hardware would allow it."""
    percent = data.candidate.metrics.get("profiler/compute_16bit_percent")
    unknown = data.candidate.metrics.get("profiler/compute_unknown_percent", 0.0) if data.is_16bit else 0.0
    if percent is None or percent + unknown >= FEW_16BIT_PERCENT or not (data.is_16bit or data.policy_to_try):
        return None
    if data.baseline is not None and not data.is_16bit:
        return None  # a candidate in float32 is not slower because of that; the baseline's own reasons say it
    faster = _speedups_if_compute_faster(data)
    if data.is_16bit:
        most = f" to {percent + unknown:.1f}" if unknown else ""
        text = f"Only {percent:.1f}{most} % of the compute time is 16-bit although the policy is {data.policy}."
        advice = "Remove dtypes that are set on single layers: those layers do not follow the policy."
    else:
        known = data.policy_to_try and data.has_hardware_for(POLICIES[data.policy_to_try].compute)
        device = "GPU" if data.on_gpu else "CPU"
        text = f"{percent:.1f} % of the compute time is 16-bit, and this {device} {'has' if known else 'may have'} "
        text += "hardware for 16 bit."
        advice = f"Try a variant with policy: {data.policy_to_try}."
    evidence = {"profiler/compute_16bit_percent": percent, "threshold_percent": FEW_16BIT_PERCENT}
    evidence |= {"profiler/compute_unknown_percent": unknown} if unknown else {}
    return Reason(
        code="no_16bit_ops",
        text=text + _as_text(faster),
        evidence=evidence | faster,
        advice=advice,
        time_ms=data.compute_ms,
    )


def _speedups_if_compute_faster(data: Evidence) -> dict[str, Any]:
    """Speed-ups of the whole step if only the computation on the GPU were 3 or 8 times faster, or free."""
    step_ms, compute_ms = data.candidate.metrics.get(STEP), data.compute_ms
    if not data.on_gpu or not step_ms or compute_ms is None or compute_ms >= step_ms:
        return {}
    names = {"3_times": 3.0, "8_times": 8.0, "free": math.inf}
    limits = {name: limit_if_compute_faster(step_ms, compute_ms, times) for name, times in names.items()}
    return {"profiler/device_compute_ms": compute_ms, STEP: step_ms, "speedup_if_compute_faster": limits}


def _as_text(faster: dict[str, Any]) -> str:
    if not faster:
        return ""
    limits = faster["speedup_if_compute_faster"]
    return (
        f" If the computation were 3 times faster, the step would run at {limits['3_times']:.2f}× the speed, "
        f"with 8 times at {limits['8_times']:.1f}×, and at {limits['free']:.1f}× at most."
    )


def mostly_32bit_ops(data: Evidence) -> Reason | None:
    """Under a 16-bit policy most compute time stays 32-bit: normalization, softmax, loss, optimizer."""
    metrics = data.candidate.metrics
    percent = metrics.get("profiler/compute_32bit_percent")
    if percent is None or percent < MOSTLY_PERCENT or not data.is_16bit or data.is_account_void:
        return None
    if metrics.get("profiler/compute_16bit_percent", 0.0) < FEW_16BIT_PERCENT:
        return None  # no_16bit_ops explains it
    stayed: dict[str, float] = {}
    for operation in data.operations:
        if operation.dtype == "float32" and operation.kind != "cast":
            stayed[_part(operation)] = stayed.get(_part(operation), 0.0) + operation.time_ms
    shown = f" ({times_text(stayed, OPERATIONS_SHOWN)} a step)" if stayed else ""
    change = data.stayed
    return Reason(
        code="mostly_32bit_ops",
        text=f"{percent:.0f} % of the compute time stays 32-bit under {data.policy}{shown} and does not become faster.",
        evidence={"profiler/compute_32bit_percent": percent, "operations": longest(stayed, 2 * OPERATIONS_SHOWN)}
        | ({"in_32bit": interval_evidence(change)} if change else {}),
        advice="Normalization, softmax, loss and optimizer stay 32-bit to keep the accuracy: wider layers or a larger "
        "train.batch_size increase the 16-bit share.",
        time_ms=part_of_compute_ms(data.candidate, "profiler/compute_32bit_percent"),
    )


def _part(operation: AccountRow) -> str:
    """The part of the network that a 32-bit operation belongs to; its op type if it is none of the known parts."""
    if operation.kind == "optimizer":
        return operation.kind
    name = f"{operation.layer}/{operation.layer_class}/{operation.operation}".lower()
    return next((part for word, part in _STAY_32BIT.items() if word in name), operation.operation)
