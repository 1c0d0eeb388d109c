"""Computes the metrics of an arm from its raw times and its trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from halfstep.profile.records import ArmRecord, Calibration, Measurement, TraceRecord
from halfstep.profile.trace import Trace
from halfstep.results.profile import InferenceCall, InputRound, LargestBatch, ProfileSummary, RawTimes

NOISE_STANDARD_DEVIATIONS = 2
PEAK_MEMORY, ALLOCATOR_PEAK = "memory/peak_mib", "memory/allocator_peak_mib"
STARTUP = "startup_s"  # processor seconds
COMPILED, LOADED = "first_step/compiled_s", "first_step/loaded_s"


def summarize(
    name: str,
    measurement: Measurement,
    trace: Trace | None,
    largest_batch: LargestBatch | None = None,
    examples_word: str = "images",
) -> ProfileSummary:
    """Computes the content of `summary.json`.

    Args:
        name: the arm's name.
        measurement: with its raw measurements.
        trace: its trace; None for a bridging arm, which is not traced. One without any step is not used.
        largest_batch: with `profile.find_max_batch`.
        examples_word: what the examples are called in the names of metrics.
    """
    record = measurement.records[name]
    metrics = timing_metrics(record.times, record.settings.in_force.batch_size)
    metrics |= _start_metrics(record) | _cost_metrics(record.calibration, largest_batch)
    warnings: tuple[str, ...] = ()
    if trace is not None and record.trace is not None:
        warnings = tuple(missing_steps(trace, measurement.trace_steps))
        if trace.marked_steps:
            metrics = _traced(trace) | metrics | _trace_metrics(record.trace, trace)
            warnings += (*trace.warnings, *_disagreement(trace, record.times, metrics))
    metrics = {key.replace("images_per_s", f"{examples_word}_per_s"): value for key, value in metrics.items()}
    return ProfileSummary(
        variant=name,
        entry=record.entry,
        configuration=record.settings.configuration,
        in_force=record.settings.in_force,
        protocol=measurement.protocol,
        metrics=dict(sorted(metrics.items())),
        warnings=warnings,
        largest_batch=largest_batch,
        resumed=measurement.resumed or None,
    )


def missing_steps(trace: Trace, trace_steps: int) -> Iterator[str]:
    """Yields a line if a trace has fewer than `trace_steps` steps."""
    if not trace.marked_steps:
        yield f"the trace has none of the {trace_steps} steps of profile.trace_steps, so it is not used"
    elif len(trace.steps) < trace_steps:
        yield (
            f"the trace has {len(trace.steps)} of the {trace_steps} steps of profile.trace_steps: "
            "lower profile.trace_steps if the profiler drops events"
        )


def timing_metrics(times: RawTimes, train_batch_size: int) -> dict[str, float]:
    """Step time, throughput and latency, from what counts; without what was not measured, as of a bridging arm.

    The mean step time and the throughput come from whole rounds, which run like a training. The percentiles come from
    turns that synchronise the device after every step, which takes a little time itself.

    Args:
        times: of the arm.
        train_batch_size: images a step.
    """
    metrics: dict[str, float] = {}
    if rounds := [row for row in times.rounds if row.counted]:
        mean_ms = sum(row.round_time_ms for row in rounds) / sum(row.steps for row in rounds)
        metrics |= {"step_time_ms/mean": mean_ms, "train_images_per_s": train_batch_size * 1e3 / mean_ms}
    if steps_ms := [row.step_time_ms for row in times.steps]:
        metrics |= {f"step_time_ms/p{rank}": _percentile(steps_ms, rank) for rank in (50, 95)}
    for batch_size in sorted({call.batch_size for call in times.calls}):
        metrics |= _latency_metrics(batch_size, times.calls)
    return metrics | _input_metrics(times.input_rounds)


def _input_metrics(rounds: Sequence[InputRound]) -> dict[str, float]:
    """Mean step time with the input pipeline and on one cached batch, from turns side by side."""
    names = {"pipeline": "step_time_ms/with_input", "cached": "step_time_ms/cached_batch"}
    times_ms = {kind: [row.round_time_ms / row.steps for row in rounds if row.batches == kind] for kind in names}
    return {names[kind]: float(np.mean(values_ms)) for kind, values_ms in times_ms.items() if values_ms}


def _latency_metrics(batch_size: int, calls: Sequence[InferenceCall]) -> dict[str, float]:
    """Latencies of the steady state, and of the first call of a turn, which follows those of other processes."""
    of_size = [call for call in calls if call.batch_size == batch_size]
    latencies_ms = [call.latency_ms for call in of_size if call.counted]
    mean_ms = float(np.mean(latencies_ms))
    prefix = f"inference/b{batch_size}"
    metrics = {f"{prefix}/p{rank}_ms": _percentile(latencies_ms, rank) for rank in (50, 95, 99)}
    metrics |= {f"{prefix}/mean_ms": mean_ms, f"{prefix}/images_per_s": batch_size * 1e3 / mean_ms}
    return metrics | {f"{prefix}/cold_ms": _percentile([call.latency_ms for call in of_size if call.call == 0], 50)}


def _cost_metrics(calibration: Calibration | None, largest: LargestBatch | None) -> dict[str, float]:
    """Memory of an arm, as far as it is known."""
    metrics = {} if largest is None else {"memory/max_batch_size": float(largest.batch_size)}
    if largest is not None and largest.examples_per_s is not None:
        metrics |= {"memory/max_batch_examples_per_s": largest.examples_per_s}
    if calibration is None:
        return metrics
    return metrics if calibration.peak_mib is None else metrics | {PEAK_MEMORY: calibration.peak_mib}


def _start_metrics(record: ArmRecord) -> dict[str, float]:
    """How long a process takes to its first step; and where XLA compiled it, that step compiled and loaded."""
    metrics = {} if record.first_step is None else {STARTUP: record.first_step.cpu_s}
    if record.loaded_s is not None:
        metrics |= {} if record.first_step is None else {COMPILED: record.first_step.seconds}
        metrics |= {LOADED: record.loaded_s}
    return metrics


def _traced(trace: Trace) -> dict[str, float]:
    """The metrics of the trace. Its peak memory counts what the profiler's view of an allocator shows."""
    metrics = trace.metrics()
    return {ALLOCATOR_PEAK if name == PEAK_MEMORY else name: value for name, value in metrics.items()}


def overhead_percent(traced: TraceRecord) -> float:
    """Overhead of the profiler: step time with it / step time without it - 1, in percent."""
    return 100 * (traced.traced_step_time_ms / traced.plain_step_time_ms - 1)


def _trace_metrics(traced: TraceRecord, trace: Trace) -> dict[str, float]:
    metrics = {"profiler/overhead_percent": overhead_percent(traced)}
    if (cast_ms := trace.cast_ms(trace.marked_steps)) is not None:
        metrics["profiler/cast_ms"] = cast_ms
    return metrics


def _disagreement(trace: Trace, times: RawTimes, metrics: Mapping[str, float]) -> Iterator[str]:
    """Yields a line if the overhead and the noise do not explain the difference between traced and timed steps."""
    timed_ms = metrics.get("step_time_ms/mean")
    if not trace.steps or timed_ms is None:
        return
    traced_ms = metrics["profiler/step_time_ms"]
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
