"""From the raw times and the trace of a variant to the numbers that are compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stages.errors import ProfileError
from stages.params import Variant
from stages.profile.memory import LargestBatch
from stages.profile.records import ArmRecord, Call, InputRound, Protocol, SameWeights, TraceTaken
from stages.profile.trace import Operation, Trace

TOP_OPERATIONS = 1000
NOISE_STANDARD_DEVIATIONS = 2
MIB = 2**20


@dataclass(frozen=True)
class Circumstances:
    """What the arms of a measurement share with an arm's numbers, and what was found out about the arm beside them."""

    protocol: Protocol
    trace_steps: int
    same_weights: SameWeights | None = None
    largest_batch: LargestBatch | None = None


def summarize(
    name: str, variant: Variant, record: ArmRecord, circumstances: Circumstances, trace: Trace | None
) -> dict[str, Any]:
    """The contents of `summary.json`.

    Args:
        name: the variant's name, or that of the control.
        variant: its entry.
        record: its raw times.
        circumstances: how the measurement went.
        trace: its trace as numbers; None for the control, which is not traced.

    Returns:
        `variant`, `entry`, `configuration` (equal in all arms), `in_force` (what the entry set, as it was found),
        `device_type`, `protocol`, `metrics` (name to number; what does not apply is absent), `operations` (longest
        first, in milliseconds a step), `warnings`, and where they were taken `same_weights` and `largest_batch`.

    Raises:
        ProfileError: the trace holds fewer steps than were asked for.
    """
    metrics = timing_metrics(record) | _memory_metrics(record, circumstances.largest_batch)
    if trace is not None and record.trace is not None:
        refuse_short_trace(name, trace, circumstances.trace_steps)
        metrics = trace.metrics() | metrics | _trace_metrics(record, record.trace, trace)
    once = {"same_weights": circumstances.same_weights, "largest_batch": circumstances.largest_batch}
    return {
        "variant": name,
        "entry": variant.model_dump(),
        "configuration": record.configuration,
        "in_force": record.in_force,
        "device_type": record.configuration["device"],
        "protocol": asdict(circumstances.protocol),
        "metrics": dict(sorted(metrics.items())),
        "operations": [_operation(row, record) for row in _operations(trace)[:TOP_OPERATIONS]] if trace else [],
        "warnings": list(_warnings(trace, record, metrics)) if trace else [],
        **{key: asdict(value) for key, value in once.items() if value is not None},
    }


def refuse_short_trace(name: str, trace: Trace, trace_steps: int) -> None:
    """Refuses a trace with fewer steps than were asked for.

    Raises:
        ProfileError: the profiler lost some.
    """
    if len(trace.steps) < trace_steps:
        told = f" ({trace.warnings[0]})" if trace.warnings else ""
        raise ProfileError(
            f"profile: the trace of {name} holds {len(trace.steps)} of the {trace_steps} steps of profile.trace_steps"
            f"{told}: lower profile.trace_steps, or run `dvc repro` again"
        )


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
    return metrics | _input_metrics(record.input_rounds)


def _input_metrics(rounds: Sequence[InputRound]) -> dict[str, float]:
    """A step on one batch held on the device, and one on the input pipeline beside it: medians over the rounds."""
    names = {"pipeline": "step_time_ms/mean_beside_it", "device": "step_time_ms/batch_on_device"}
    times_ms = {kind: [row.round_time_ms / row.steps for row in rounds if row.batches == kind] for kind in names}
    return {names[kind]: _percentile(found, 50) for kind, found in times_ms.items() if found}


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


def _memory_metrics(record: ArmRecord, largest: LargestBatch | None) -> dict[str, float]:
    found = {} if record.peak_device_bytes is None else {"memory/peak_mib": record.peak_device_bytes / MIB}
    return found if largest is None else found | {"memory/max_batch_size": float(largest.batch_size)}


def _trace_metrics(record: ArmRecord, taken: TraceTaken, trace: Trace) -> dict[str, float]:
    found = {"profiler/overhead_percent": overhead_percent(record)}
    if trace.cast_time_us is None:
        return found
    return found | {"profiler/cast_ms": trace.cast_time_us / 1e3 / taken.marked_steps / (trace.device_count or 1)}


def _operations(trace: Trace) -> list[Operation]:
    """Those of the device, where there is one: what the host does for them is launching."""
    on_device = [operation for operation in trace.operations if operation.host_or_device == "Device"]
    return on_device or list(trace.operations)


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


def _warnings(trace: Trace, record: ArmRecord, metrics: Mapping[str, float]) -> Iterator[str]:
    yield from trace.warnings
    yield from _disagreement(trace, record, metrics)
    if "memory/peak_mib" not in metrics:
        yield "peak memory is not known: on a CPU only the allocator of oneDNN counts what it hands out"


def _disagreement(trace: Trace, record: ArmRecord, metrics: Mapping[str, float]) -> Iterator[str]:
    """A line where a step in the trace is another one than a step without it: by more than overhead and noise."""
    if not trace.steps:
        return
    traced_ms, timed_ms = metrics["profiler/step_time_ms"], metrics["step_time_ms/mean"]
    overhead = metrics["profiler/overhead_percent"] / 100
    per_step_ms = [row.round_time_ms / row.steps for row in record.rounds]
    noise = _spread(per_step_ms) + _spread(trace.step_time_ms) / math.sqrt(len(trace.steps))
    if abs(traced_ms / timed_ms - 1) > abs(overhead) + NOISE_STANDARD_DEVIATIONS * noise:
        yield (
            f"a step takes {traced_ms:.3g} ms in the trace and {timed_ms:.3g} ms without it, more than the profiler's "
            f"cost ({100 * overhead:.1f} %) and the noise explain: trust the trace's shares, not its times"
        )


def _spread(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 of a single value."""
    return float(np.std(values, ddof=1) / np.mean(values)) if len(values) > 1 else 0.0


def _percentile(values: Sequence[float], rank: float) -> float:
    return float(np.percentile(np.asarray(values), rank))
