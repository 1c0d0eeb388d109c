"""From the raw times and the trace of a variant to the numbers that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stages.params import ProfileParams, Variant
from stages.profile.records import ArmRecord, Call
from stages.profile.trace import Operation, Trace

TOP_OPERATIONS = 60
MIB = 2**20


def summarize(
    name: str, variant: Variant, record: ArmRecord, profile: ProfileParams, trace: Trace | None
) -> dict[str, Any]:
    """The contents of `summary.json`.

    Args:
        name: the variant's name, or that of the control.
        variant: its entry.
        record: its raw times.
        profile: the timing protocol.
        trace: its trace as numbers; None for the control, which is not traced.

    Returns:
        `variant`, `entry`, `configuration`, `device_type`, `metrics` (name to number; what does not apply is absent),
        `operations` (longest first, in milliseconds a step) and `warnings`.
    """
    metrics = timing_metrics(record) | _memory_metrics(record)
    if trace is not None:
        metrics = trace.metrics() | metrics
    if record.trace is not None:
        metrics["profiler/overhead_percent"] = overhead_percent(record)
    return {
        "variant": name,
        "entry": variant.model_dump(),
        "configuration": record.configuration,
        "device_type": record.configuration["device"],
        "protocol": {"confidence": 0.95},
        "metrics": dict(sorted(metrics.items())),
        "operations": [_operation(row, record) for row in trace.operations[:TOP_OPERATIONS]] if trace else [],
        "warnings": _warnings(trace, profile, metrics) if trace else [],
    }


def timing_metrics(record: ArmRecord) -> dict[str, float]:
    """Step time, throughput and latency.

    The mean step and the throughput come from whole rounds, as a training runs; the percentiles from rounds in which
    the device is waited for after every step, which costs a little itself.
    """
    mean_ms = sum(row.round_time_ms for row in record.rounds) / sum(row.steps for row in record.rounds)
    step_times_ms = [row.step_time_ms for row in record.steps]
    metrics = {
        "step_time_ms/mean": mean_ms,
        "step_time_ms/p50": _percentile(step_times_ms, 50),
        "step_time_ms/p95": _percentile(step_times_ms, 95),
        "train_images_per_s": record.configuration["batch_size"] * 1e3 / mean_ms,
    }
    for batch_size in sorted({call.batch_size for call in record.calls}):
        metrics |= _latency_metrics(batch_size, record.calls)
    return metrics


def overhead_percent(record: ArmRecord) -> float:
    """What attaching the profiler costs: time of a step with it over that without it, taken in turns, minus one.

    Raises:
        ValueError: the arm was not traced.
    """
    if record.trace is None:
        raise ValueError("the arm was not traced")
    return 100 * (record.trace.traced_step_time_ms / record.trace.plain_step_time_ms - 1)


def _latency_metrics(batch_size: int, calls: Sequence[Call]) -> dict[str, float]:
    latencies_ms = [call.latency_ms for call in calls if call.batch_size == batch_size]
    prefix = f"inference/b{batch_size}"
    percentiles = {f"{prefix}/p{rank}_ms": _percentile(latencies_ms, rank) for rank in (50, 95, 99)}
    return percentiles | {f"{prefix}/images_per_s": batch_size * 1e3 / float(np.mean(latencies_ms))}


def _memory_metrics(record: ArmRecord) -> dict[str, float]:
    if record.peak_device_bytes is None:
        return {}
    return {"memory/peak_mib": record.peak_device_bytes / MIB}


def _operation(operation: Operation, record: ArmRecord) -> dict[str, Any]:
    marked = record.trace.marked_steps if record.trace else 1
    return {
        "type": operation.type,
        "name": operation.name,
        "occurrences": operation.occurrences / marked,
        "self_time_ms_per_step": operation.self_time_us / 1e3 / marked,
        "dtype": operation.dtype,
        "tensor_core": operation.tensor_core,
    }


def _warnings(trace: Trace, profile: ProfileParams, metrics: Mapping[str, float]) -> list[str]:
    lines = list(trace.warnings)
    if len(trace.steps) < profile.trace_steps:
        lines.append(f"the trace holds {len(trace.steps)} of the {profile.trace_steps} steps of profile.trace_steps")
    if "memory/peak_mib" not in metrics:
        lines.append("peak memory is not known: on a CPU only the allocator of oneDNN counts what it hands out")
    return lines


def _percentile(values: Sequence[float], rank: float) -> float:
    return float(np.percentile(np.asarray(values), rank))
