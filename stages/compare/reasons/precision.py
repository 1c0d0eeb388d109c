"""Reasons in the arithmetic: what ran in 16 bit, and on which hardware."""

from __future__ import annotations

import math
from typing import Any

from stages.compare.arms import Operation
from stages.compare.evidence import STEP, Measurements, Reason, longest, part_of_compute_ms, time_by_type, times_text
from stages.compare.limit import compute_operations, is_matrix, limit_if_compute_faster
from stages.compare.machine import tensor_cores_from

FEW_16BIT_PERCENT = 10.0  # below it the profiler itself recommends 16 bit
MOSTLY_PERCENT = 50.0
IDLE_SHARE = 0.25  # of the time of matrix operations
IDLE_PERCENT = 25.0  # of compute, between matrix work and what tensor cores do
OPERATIONS_SHOWN = 3
_STAY_32BIT = {"norm": "normalization", "softmax": "softmax", "loss": "loss"}
_OPTIMIZERS = ("adam", "sgd", "rmsprop", "momentum", "optimizer", "apply")


def no_tensor_cores(seen: Measurements) -> Reason | None:
    """The GPU is older than tensor cores, or than those that take bfloat16."""
    capability, needed = seen.compute_capability, tensor_cores_from(seen.policy)
    if capability is None or capability >= needed or not seen.is_about_16bit:
        return None
    dtype = "16 bit" if needed < 8 else "bfloat16"
    return Reason(
        code="no_tensor_cores",
        text=f"This GPU has no tensor cores for {dtype} (compute capability {capability:g}, from {needed:g} on): "
        "matrix work does not get faster in it, only reading and writing memory may.",
        evidence={"compute_capability": capability, "needed_compute_capability": needed},
        advice=f"Stay with float32 here, or measure on a GPU of compute capability {needed:g} or higher.",
        time_ms=part_of_compute_ms(seen.candidate, "profiler/matrix_percent"),
    )


def tensor_cores_idle(seen: Measurements) -> Reason | None:
    """The GPU has tensor cores, the candidate is in 16 bit, and matrix operations run beside them."""
    capability = seen.compute_capability
    if not seen.on_gpu or not seen.is_16bit or (capability is not None and capability < tensor_cores_from(seen.policy)):
        return None
    return _idle_operations(seen) or _idle_percent(seen)


def _idle_operations(seen: Measurements) -> Reason | None:
    matrix = [op for op in compute_operations(seen.candidate) if is_matrix(op)]
    idle_ms = time_by_type(op for op in matrix if not op.tensor_core)
    total_ms, matrix_ms = sum(idle_ms.values()), sum(op.self_time_ms_per_step for op in matrix)
    if not matrix or total_ms < IDLE_SHARE * matrix_ms:
        return None
    return _idle(
        f"{total_ms:.3g} of {matrix_ms:.3g} ms of matrix operations run without tensor cores "
        f"({times_text(idle_ms, OPERATIONS_SHOWN)})",
        {"idle_ms": total_ms, "matrix_ms": matrix_ms, "operations": longest(idle_ms, OPERATIONS_SHOWN)},
        total_ms,
    )


def _idle_percent(seen: Measurements) -> Reason | None:
    names = ("profiler/matrix_percent", "profiler/tensor_core_percent")
    matrix, used = (seen.candidate.metrics.get(name) for name in names)
    told_by_operations = any(is_matrix(op) for op in compute_operations(seen.candidate))
    if matrix is None or used is None or told_by_operations or matrix - used < IDLE_PERCENT:
        return None
    total_ms = seen.compute_ms
    return _idle(
        f"Matrix work is {matrix:.0f} % of the compute time and tensor cores do {used:.0f} %",
        dict(zip(names, (matrix, used), strict=True)),
        None if total_ms is None else total_ms * (matrix - used) / 100,
    )


def _idle(found: str, evidence: dict[str, Any], time_ms: float | None) -> Reason:
    return Reason(
        code="tensor_cores_idle",
        text=f"{found}, although this GPU has them for 16 bit.",
        evidence=evidence,
        advice="Make channels and train.batch_size multiples of 8, and look for layers with a dtype of their own; "
        "depthwise convolutions have no kernels for tensor cores.",
        time_ms=time_ms,
    )


def no_16bit_ops(seen: Measurements) -> Reason | None:
    """The trace shows almost no 16-bit compute: where it was asked for, or where this machine has it to offer."""
    percent = seen.candidate.metrics.get("profiler/compute_16bit_percent")
    if percent is None or percent >= FEW_16BIT_PERCENT or not (seen.is_16bit or seen.policy_to_try):
        return None
    faster = _if_compute_was_faster(seen)
    if seen.is_16bit:
        text = f"Only {percent:.1f} % of the compute time is 16-bit although the policy is {seen.policy}."
        advice = "Look for layers with a dtype of their own: those do not follow the policy."
    else:
        text = (
            f"{percent:.1f} % of the compute time is 16-bit, which this {seen.candidate.device_type} has hardware for."
        )
        advice = f"Try a variant with policy: {seen.policy_to_try}."
    evidence = {"profiler/compute_16bit_percent": percent, "threshold_percent": FEW_16BIT_PERCENT}
    return Reason("no_16bit_ops", text + _in_words(faster), evidence | faster, advice, seen.compute_ms)


def _if_compute_was_faster(seen: Measurements) -> dict[str, Any]:
    """What the whole step would gain, were the computation on a GPU alone 3 times or 8 times faster, or free."""
    step_ms, compute_ms = seen.candidate.metrics.get(STEP), seen.compute_ms
    if not seen.on_gpu or not step_ms or compute_ms is None or compute_ms >= step_ms:
        return {}
    names = {"3_times": 3.0, "8_times": 8.0, "free": math.inf}
    limits = {name: limit_if_compute_faster(step_ms, compute_ms, times) for name, times in names.items()}
    return {"profiler/device_compute_ms": compute_ms, STEP: step_ms, "speedup_if_compute_faster": limits}


def _in_words(faster: dict[str, Any]) -> str:
    if not faster:
        return ""
    limits = faster["speedup_if_compute_faster"]
    return (
        f" With its computation 3 times faster the step would run at {limits['3_times']:.2f}× the speed, "
        f"with 8 times at {limits['8_times']:.1f}×, and at {limits['free']:.1f}× at most."
    )


def mostly_32bit_ops(seen: Measurements) -> Reason | None:
    """Under a 16-bit policy most compute time is in what stays 32-bit: normalization, softmax, loss, optimizer."""
    metrics = seen.candidate.metrics
    percent = metrics.get("profiler/compute_32bit_percent")
    some_16bit = metrics.get("profiler/compute_16bit_percent", 0.0) >= FEW_16BIT_PERCENT  # else no_16bit_ops says it
    if percent is None or percent < MOSTLY_PERCENT or not seen.is_16bit or not some_16bit:
        return None
    stayed: dict[str, float] = {}
    for operation in compute_operations(seen.candidate):
        if operation.dtype == "float32" and operation.kind != "Cast":
            stayed[_part(operation)] = stayed.get(_part(operation), 0.0) + operation.self_time_ms_per_step
    shown = f" ({times_text(stayed, OPERATIONS_SHOWN)} a step)" if stayed else ""
    return Reason(
        code="mostly_32bit_ops",
        text=f"{percent:.0f} % of the compute time stays 32-bit under {seen.policy}{shown}, and gains nothing.",
        evidence={"profiler/compute_32bit_percent": percent, "operations": longest(stayed, 2 * OPERATIONS_SHOWN)},
        advice="Normalization, softmax, loss and optimizer stay 32-bit for accuracy's sake: wider layers or a larger "
        "train.batch_size give the 16-bit part more weight.",
        time_ms=part_of_compute_ms(seen.candidate, "profiler/compute_32bit_percent"),
    )


def _part(operation: Operation) -> str:
    """What a 32-bit operation belongs to, as people call it; its type where it is none of what is known to stay."""
    name = f"{operation.name}/{operation.kind}".lower()
    if any(word in scope for scope in name.split("/") for word in _OPTIMIZERS):
        return "optimizer"
    return next((part for word, part in _STAY_32BIT.items() if word in name), operation.kind)
