"""The metrics in `summary.json`, computed from raw times and a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from halfstep.params.schema import Variant
from halfstep.profile import summary
from halfstep.profile.records import ArmRecord, Calibration, FirstStep, Measurement, TraceRecord
from halfstep.profile.trace import Operation, StepBreakdown, Trace
from halfstep.results.profile import (
    InferenceCall,
    InputRound,
    LargestBatch,
    ProfileSummary,
    RawTimes,
    Round,
    Step,
)
from tests.profile.arm_records import arm_record
from tests.profile.test_plan import plan
from tests.small_study import PROTOCOL

TRACE_RECORD = TraceRecord(Path("x"), 10, plain_step_time_ms=20.0, traced_step_time_ms=25.0, graph_dtypes={})


@pytest.fixture
def record() -> ArmRecord:
    """Ten rounds of 4 steps in 10 … 100 ms, steps of 1 … 101 ms, and latencies of 2 … 102 ms at batch size 8."""
    times = RawTimes(
        rounds=[Round(0, number, 0, 4, 10.0 * (number + 1)) for number in range(10)],
        steps=[Step(0, 0, number, 1.0 + number) for number in range(101)],
        calls=[InferenceCall(0, 0, 8, number, 2.0 + number) for number in range(101)]
        + [InferenceCall(0, 0, 1, 0, 0.5)],
    )
    return replace(arm_record(), times=times, trace=TRACE_RECORD)


def timing(record: ArmRecord) -> dict[str, float]:
    return summary.timing_metrics(record.times, train_batch_size=16)


def test_mean_step_time_and_throughput_come_from_whole_rounds(record: ArmRecord) -> None:
    metrics = timing(record)
    assert metrics["step_time_ms/mean"] == pytest.approx(550 / 40)
    assert metrics["train_images_per_s"] == pytest.approx(16 * 40 / 0.55)


def test_rounds_are_weighted_by_their_number_of_steps(record: ArmRecord) -> None:
    record.times.rounds = [Round(0, 0, 0, 1, 10.0), Round(0, 1, 0, 9, 10.0)]
    assert timing(record)["step_time_ms/mean"] == pytest.approx(2.0)


def test_percentiles_come_from_single_steps(record: ArmRecord) -> None:
    metrics = timing(record)
    assert (metrics["step_time_ms/p50"], metrics["step_time_ms/p95"]) == (51.0, 96.0)


def test_every_batch_size_has_latency_percentiles_and_throughput(record: ArmRecord) -> None:
    metrics = timing(record)
    ranks = [metrics[f"inference/b8/p{rank}_ms"] for rank in (50, 95, 99)]
    assert ranks == [52.0, 97.0, 101.0]
    assert metrics["inference/b8/images_per_s"] == pytest.approx(8 * 1000 / 52)
    assert metrics["inference/b1/images_per_s"] == pytest.approx(2000)
    assert metrics["inference/b8/mean_ms"] == pytest.approx(52.0)
    assert (metrics["inference/b8/cold_ms"], metrics["inference/b1/cold_ms"]) == (2.0, 0.5)
    assert len(metrics) == 4 + 2 * 6


def test_only_what_counts_enters_the_metrics(record: ArmRecord) -> None:
    record.times.rounds += [Round(1, 0, 0, 4, 1e6, counted=False)]
    record.times.calls = [replace(call, counted=call.call > 0) for call in record.times.calls if call.batch_size == 8]
    metrics = timing(record)
    assert metrics["step_time_ms/mean"] == pytest.approx(550 / 40)
    assert metrics["inference/b8/mean_ms"] == pytest.approx(52.5)
    assert metrics["inference/b8/cold_ms"] == 2.0


def test_overhead_is_in_percent() -> None:
    assert summary.overhead_percent(TRACE_RECORD) == pytest.approx(25.0)


def trace(steps: int = 2, peak: int | None = 2**20, step_time_ms: float = 14.0) -> Trace:
    operations = (Operation("Conv2D", "model/conv", "Host", 20, 5000.0, dtype="float32"),)
    step = StepBreakdown(step_time_ms, host_compute_ms=2.0, other_ms=step_time_ms - 2)
    return Trace("CPU", (step,) * steps, operations, (), peak, marked_steps=10)


def summarized(record: ArmRecord, trace: Trace | None) -> ProfileSummary:
    return summary.summarize("float32", measurement(record), trace)


def measurement(record: ArmRecord) -> Measurement:
    return Measurement({}, plan(8.0, {"trace_steps": 2}), records={"float32": record}, ended=PROTOCOL)


def test_summary_combines_timings_and_trace(record: ArmRecord) -> None:
    profile = summarized(record, trace())
    assert profile.metrics["profiler/step_time_ms"] == 14.0
    assert profile.metrics["profiler/overhead_percent"] == pytest.approx(25.0)
    assert profile.metrics["memory/allocator_peak_mib"] == 1.0
    assert "memory/peak_mib" not in profile.metrics
    assert "profiler/kernel_launch_ms" not in profile.metrics  # not applicable is absent, never 0
    assert profile.warnings == ()
    assert profile.entry == Variant(policy="float32")


def test_peak_memory_of_the_process_is_beside_that_of_the_allocator(record: ArmRecord) -> None:
    record.calibration = Calibration(20.0, 1.0, 2, 3 * 2**20, {}, {})
    record.first_step = FirstStep(1.5, 6.5)
    metrics = summarized(record, trace()).metrics
    assert metrics["startup_s"] == 6.5
    assert (metrics["memory/peak_mib"], metrics["memory/allocator_peak_mib"]) == (3.0, 1.0)


def test_times_on_several_gpus_are_per_gpu(record: ArmRecord) -> None:
    on_device = Operation("Cast", "model/cast", "Device", 20, 8000.0, dtype="float16", tensor_core=False)
    kernel = on_device._replace(kernel="cast_gpu_dt_float_dt_half_kernel")
    taken = replace(trace(), device_type="GPU", operations=(on_device,), kernels=(kernel,), device_count=2)
    profile = summarized(record, taken)
    assert profile.metrics["profiler/cast_ms"] == pytest.approx(0.4)


def test_trace_with_too_few_steps_causes_a_warning(record: ArmRecord) -> None:
    profile = summarized(record, trace(steps=1))
    (warning,) = profile.warnings
    assert warning.startswith("the trace has 1 of the 2 steps of profile.trace_steps")
    assert profile.metrics["profiler/step_time_ms"] == 14.0


def test_trace_without_any_step_is_not_used(record: ArmRecord) -> None:
    profile = summarized(record, replace(trace(steps=0), marked_steps=0, warnings=("the trace has no step markers",)))
    assert profile.warnings == ("the trace has none of the 2 steps of profile.trace_steps, so it is not used",)
    assert not [name for name in profile.metrics if name.startswith("profiler/") or "allocator" in name]
    assert profile.metrics["step_time_ms/mean"] == pytest.approx(13.75)


def test_arm_without_a_round_that_counts_has_no_step_time(record: ArmRecord) -> None:
    record.times.rounds = [replace(row, counted=False) for row in record.times.rounds]
    profile = summarized(record, trace())
    assert "step_time_ms/mean" not in profile.metrics
    assert profile.metrics["profiler/step_time_ms"] == 14.0


def test_step_time_without_parts_is_used(record: ArmRecord) -> None:
    profile = summarized(record, replace(trace(), steps=(StepBreakdown(14.0),) * 2))
    assert profile.metrics["profiler/step_time_ms"] == 14.0
    assert not [name for name in profile.metrics if name.startswith("profiler/") and name.endswith("compute_ms")]
    assert profile.warnings == ()


@pytest.mark.parametrize(("traced_ms", "warned"), [(13.75, False), (17.0, False), (60.0, True), (2.0, True)])
def test_difference_between_trace_and_timing_causes_a_warning(
    record: ArmRecord, traced_ms: float, warned: bool
) -> None:
    record.times.rounds = [Round(0, number, 0, 4, 55.0 + number % 3) for number in range(30)]
    warnings = str(summarized(record, trace(step_time_ms=traced_ms)).warnings)
    assert ("ms in the trace and" in warnings) == warned


def test_input_rounds_give_step_times_with_input_and_cached(record: ArmRecord) -> None:
    for number, (pipeline_ms, cached_ms) in enumerate([(20.0, 12.0), (24.0, 16.0), (28.0, 20.0)]):
        record.times.input_rounds.append(InputRound(7, number, "pipeline", 4, pipeline_ms))
        record.times.input_rounds.append(InputRound(7, number, "cached", 4, cached_ms))
    metrics = timing(record)
    assert (metrics["step_time_ms/with_input"], metrics["step_time_ms/cached_batch"]) == (6.0, 4.0)


def test_summary_includes_what_was_measured_once(record: ArmRecord) -> None:
    largest = LargestBatch(batch_size=512, limit_mib=1024, peak_mib=900.0, examples_per_s=3000.0)
    profile = summary.summarize("float32", measurement(record), None, largest)
    assert (profile.largest_batch, profile.protocol) == (largest, PROTOCOL)
    assert profile.metrics["memory/max_batch_size"] == 512
    assert profile.metrics["memory/max_batch_examples_per_s"] == 3000


def test_bridging_arm_is_not_traced(record: ArmRecord) -> None:
    profile = summarized(record, None)
    assert profile.warnings == ()
    assert not any(name.startswith("profiler/") for name in profile.metrics)
