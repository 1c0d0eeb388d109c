"""Computes the metrics of an arm from its raw times and its trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stages.errors import ProfileError
from stages.params import Variant
from stages.profile.records import ArmRecord, TraceRecord
from stages.profile.trace import Operation, Trace
from stages.results.profile import (
    Call,
    InputRound,
    LargestBatch,
    OperationTime,
    ProfileSummary,
    Protocol,
    RawTimes,
    SameWeights,
)

MAX_OPERATIONS = 1000
NOISE_STANDARD_DEVIATIONS = 2
MIB = 2**20


@dataclass(frozen=True)
class Context:
    """The protocol that all arms share, and what was measured only once for this arm."""

    protocol: Protocol
    trace_steps: int
    same_weights: SameWeights | None = None
    largest_batch: LargestBatch | None = None


def summarize(name: str, entry: Variant, record: ArmRecord, context: Context, trace: Trace | None) -> ProfileSummary:
    """Computes the content of `summary.json`.

    Args:
        name: the variant's name, or that of the control.
        entry: its entry of `variants`.
        record: its raw measurements.
        context: the protocol, and what was measured only once.
        trace: its trace; None for the control, which is not traced.

    Raises:
        ProfileError: the trace has fewer steps than `profile.trace_steps`.
    """
    metrics = timing_metrics(record.times, record.settings.configuration.batch_size)
    metrics |= _memory_metrics(record.settings.peak_memory_bytes, context.largest_batch)
    operations: tuple[OperationTime, ...] = ()
    warnings: tuple[str, ...] = ()
    if trace is not None and record.trace is not None:
        check_traced_steps(name, trace, context.trace_steps)
        metrics = trace.metrics() | metrics | _trace_metrics(record.trace, trace)
        rows = _operations(trace)[:MAX_OPERATIONS]
        operations = tuple(_operation(row, trace, record.trace.marked_steps) for row in rows)
        warnings = tuple(_warnings(trace, record.times, metrics))
    return ProfileSummary(
        variant=name,
        entry=entry,
        configuration=record.settings.configuration,
        in_force=record.settings.in_force,
        protocol=context.protocol,
        metrics=dict(sorted(metrics.items())),
        operations=operations,
        warnings=warnings,
        same_weights=context.same_weights,
        largest_batch=context.largest_batch,
    )


def check_traced_steps(name: str, trace: Trace, trace_steps: int) -> None:
    """Checks that a trace has at least `trace_steps` steps.

    Raises:
        ProfileError: the profiler dropped some.
    """
    if len(trace.steps) < trace_steps:
        cause = f" ({trace.warnings[0]})" if trace.warnings else ""
        raise ProfileError(
            f"profile: the trace of {name} has {len(trace.steps)} of the {trace_steps} steps of profile.trace_steps"
            f"{cause}: lower profile.trace_steps, or run `dvc repro` again"
        )


def timing_metrics(times: RawTimes, train_batch_size: int) -> dict[str, float]:
    """Step time, throughput and latency.

    The mean step time and the throughput come from whole rounds, which run like a training. The percentiles come from
    separate rounds that synchronise the device after every step, which takes a little time itself.
    """
    mean_ms = sum(row.round_time_ms for row in times.rounds) / sum(row.steps for row in times.rounds)
    step_times_ms = [row.step_time_ms for row in times.steps]
    metrics = {
        "step_time_ms/mean": mean_ms,
        "step_time_ms/p50": _percentile(step_times_ms, 50),
        "step_time_ms/p95": _percentile(step_times_ms, 95),
        "train_images_per_s": train_batch_size * 1e3 / mean_ms,
    }
    for batch_size in sorted({call.batch_size for call in times.calls}):
        metrics |= _latency_metrics(batch_size, times.calls)
    return metrics | _input_metrics(times.input_rounds)


def _input_metrics(rounds: Sequence[InputRound]) -> dict[str, float]:
    """Median step time with the input pipeline and on one cached batch, from interleaved rounds."""
    names = {"pipeline": "step_time_ms/with_input", "cached": "step_time_ms/cached_batch"}
    times_ms = {kind: [row.round_time_ms / row.steps for row in rounds if row.batches == kind] for kind in names}
    return {names[kind]: _percentile(found, 50) for kind, found in times_ms.items() if found}


def _latency_metrics(batch_size: int, calls: Sequence[Call]) -> dict[str, float]:
    latencies_ms = [call.latency_ms for call in calls if call.batch_size == batch_size]
    prefix = f"inference/b{batch_size}"
    percentiles = {f"{prefix}/p{rank}_ms": _percentile(latencies_ms, rank) for rank in (50, 95, 99)}
    return percentiles | {f"{prefix}/images_per_s": batch_size * 1e3 / float(np.mean(latencies_ms))}


def _memory_metrics(peak_memory_bytes: int | None, largest: LargestBatch | None) -> dict[str, float]:
    found = {} if peak_memory_bytes is None else {"memory/peak_mib": peak_memory_bytes / MIB}
    return found if largest is None else found | {"memory/max_batch_size": float(largest.batch_size)}


def overhead_percent(traced: TraceRecord) -> float:
    """Overhead of the profiler: step time with it / step time without it - 1, in percent."""
    return 100 * (traced.traced_step_time_ms / traced.plain_step_time_ms - 1)


def _trace_metrics(traced: TraceRecord, trace: Trace) -> dict[str, float]:
    found = {"profiler/overhead_percent": overhead_percent(traced)}
    if (cast_ms := trace.cast_ms(traced.marked_steps)) is not None:
        found["profiler/cast_ms"] = cast_ms
    return found


def _operations(trace: Trace) -> list[Operation]:
    """The operations of the device if there is one: the host only launches them."""
    on_device = [operation for operation in trace.operations if operation.host_or_device == "Device"]
    return on_device or list(trace.operations)


def _operation(operation: Operation, trace: Trace, marked_steps: int) -> OperationTime:
    occurrences, self_time_ms = trace.operation_per_step(operation, marked_steps)
    return OperationTime(
        type=operation.type,
        name=operation.name,
        occurrences=occurrences,
        self_time_ms_per_step=self_time_ms,
        dtype=operation.dtype,
        tensor_core=operation.tensor_core,
    )


def _warnings(trace: Trace, times: RawTimes, metrics: Mapping[str, float]) -> Iterator[str]:
    yield from trace.warnings
    yield from _disagreement(trace, times, metrics)
    if "memory/peak_mib" not in metrics:
        yield "the peak memory is unknown: on a CPU only oneDNN's allocator counts what it allocates"


def _disagreement(trace: Trace, times: RawTimes, metrics: Mapping[str, float]) -> Iterator[str]:
    """Yields a line if the overhead and the noise do not explain the difference between traced and timed steps."""
    if not trace.steps:
        return
    traced_ms, timed_ms = metrics["profiler/step_time_ms"], metrics["step_time_ms/mean"]
    overhead = metrics["profiler/overhead_percent"] / 100
    noise = _relative_sd([row.round_time_ms / row.steps for row in times.rounds])
    noise += _relative_sd(trace.step_time_ms) / math.sqrt(len(trace.steps))
    if abs(traced_ms / timed_ms - 1) > abs(overhead) + NOISE_STANDARD_DEVIATIONS * noise:
        yield (
            f"a step takes {traced_ms:.3g} ms in the trace and {timed_ms:.3g} ms without the profiler; overhead "
            f"({100 * overhead:.1f} %) and noise do not explain the difference: use the trace's shares, not its times"
        )


def _relative_sd(values: Sequence[float]) -> float:
    """Standard deviation / mean; 0 for a single value."""
    return float(np.std(values, ddof=1) / np.mean(values)) if len(values) > 1 else 0.0


def _percentile(values: Sequence[float], rank: float) -> float:
    return float(np.percentile(np.asarray(values), rank))
