from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stages.errors import ProfileError
from stages.params import Variant
from stages.profile import summary
from stages.profile.memory import LargestBatch
from stages.profile.records import ArmRecord, Call, InputRound, Protocol, Round, SameWeights, Step, TraceTaken
from stages.profile.trace import Operation, StepBreakdown, Trace


@pytest.fixture
def record() -> ArmRecord:
    """Ten rounds of 4 steps in 10 … 100 ms, steps of 1 … 101 ms, and latencies of 2 … 102 ms at batch size 8."""
    return ArmRecord(
        rounds=[Round(0, number, 0, 4, 10.0 * (number + 1)) for number in range(10)],
        steps=[Step(0, 0, number, 1.0 + number) for number in range(101)],
        calls=[Call(0, 0, 8, number, 2.0 + number) for number in range(101)] + [Call(0, 0, 1, 0, 0.5)],
        configuration={"device": "CPU", "batch_size": 16},
    )


def test_the_mean_step_and_throughput_come_from_whole_rounds(record: ArmRecord) -> None:
    metrics = summary.timing_metrics(record)
    assert metrics["step_time_ms/mean"] == pytest.approx(550 / 40)
    assert metrics["train_images_per_s"] == pytest.approx(16 * 40 / 0.55)


def test_rounds_of_different_lengths_weigh_by_their_steps(record: ArmRecord) -> None:
    record.rounds = [Round(0, 0, 0, 1, 10.0), Round(0, 1, 0, 9, 10.0)]
    assert summary.timing_metrics(record)["step_time_ms/mean"] == pytest.approx(2.0)


def test_percentiles_come_from_single_steps(record: ArmRecord) -> None:
    metrics = summary.timing_metrics(record)
    assert (metrics["step_time_ms/p50"], metrics["step_time_ms/p95"]) == (51.0, 96.0)


def test_latency_has_percentiles_and_throughput_at_each_batch_size(record: ArmRecord) -> None:
    metrics = summary.timing_metrics(record)
    ranks = [metrics[f"inference/b8/p{rank}_ms"] for rank in (50, 95, 99)]
    assert ranks == [52.0, 97.0, 101.0]
    assert metrics["inference/b8/images_per_s"] == pytest.approx(8 * 1000 / 52)
    assert metrics["inference/b1/images_per_s"] == pytest.approx(2000)
    assert len(metrics) == 4 + 2 * 4


def test_overhead_is_in_percent(record: ArmRecord) -> None:
    record.trace = TraceTaken(Path("x"), 10, plain_step_time_ms=20.0, traced_step_time_ms=25.0, graph_dtypes={})
    assert summary.overhead_percent(record) == pytest.approx(25.0)
    record.trace = None
    with pytest.raises(ValueError, match="was not traced"):
        summary.overhead_percent(record)


PROTOCOL = Protocol(0.965, 8, 240, 30.0, "max_seconds", 0.02, 4)


def trace(steps: int = 2, peak: int | None = 2**20, step_time_ms: float = 14.0) -> Trace:
    operations = (Operation("Conv2D", "model/conv", "Host", 20, 5000.0, dtype="float32"),)
    step = StepBreakdown(step_time_ms, host_compute_ms=2.0, other_ms=step_time_ms - 2)
    return Trace("CPU", (step,) * steps, operations, (), peak)


def summarized(record: ArmRecord, found: Trace | None) -> dict[str, object]:
    return summary.summarize("float32", Variant(policy="float32"), record, summary.Circumstances(PROTOCOL, 2), found)


def test_a_summary_holds_the_timings_and_the_trace(record: ArmRecord) -> None:
    record.trace = TraceTaken(Path("x"), 10, 20.0, 25.0, {})
    found = summarized(record, trace())
    metrics = found["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["profiler/step_time_ms"] == 14.0
    assert metrics["profiler/overhead_percent"] == pytest.approx(25.0)
    assert metrics["memory/peak_mib"] == 1.0
    assert "profiler/kernel_launch_ms" not in metrics  # not applicable is absent, never 0
    assert found["operations"] == [
        {
            "type": "Conv2D",
            "name": "model/conv",
            "occurrences": 2.0,
            "self_time_ms_per_step": 0.5,
            "dtype": "float32",
            "tensor_core": None,
        }
    ]
    assert found["warnings"] == []
    assert found["entry"] == Variant(policy="float32").model_dump()


def test_the_peak_of_the_allocator_goes_before_that_of_the_trace(record: ArmRecord) -> None:
    record.trace = TraceTaken(Path("x"), 10, 20.0, 25.0, {})
    record.peak_device_bytes = 3 * 2**20
    metrics = summarized(record, trace())["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["memory/peak_mib"] == 3.0


def test_on_a_gpu_the_operations_are_those_of_the_device(record: ArmRecord) -> None:
    record.trace = TraceTaken(Path("x"), 10, 20.0, 25.0, {})
    on_device = Operation("Conv2D", "model/conv", "Device", 10, 800.0, dtype="float16", tensor_core=True)
    taken = replace(trace(), operations=(*trace().operations, on_device))
    operations = summarized(record, taken)["operations"]
    assert isinstance(operations, list)
    assert [row["dtype"] for row in operations] == ["float16"]


def test_a_trace_with_too_few_steps_is_refused(record: ArmRecord) -> None:
    record.trace = TraceTaken(Path("x"), 10, 20.0, 25.0, {})
    with pytest.raises(ProfileError, match=r"the trace of float32 holds 1 of the 2 steps of profile\.trace_steps"):
        summarized(record, trace(steps=1))


def test_a_peak_that_is_not_known_is_said(record: ArmRecord) -> None:
    record.trace = TraceTaken(Path("x"), 10, 20.0, 25.0, {})
    assert "peak memory is not known" in str(summarized(record, trace(peak=None))["warnings"])


@pytest.mark.parametrize(("traced_ms", "warned"), [(13.75, False), (17.0, False), (60.0, True), (2.0, True)])
def test_a_trace_that_disagrees_with_the_timing_is_said(record: ArmRecord, traced_ms: float, warned: bool) -> None:
    record.rounds = [Round(0, number, 0, 4, 55.0 + number % 3) for number in range(30)]
    record.trace = TraceTaken(Path("x"), 10, 20.0, 25.0, {})
    warnings = str(summarized(record, trace(step_time_ms=traced_ms))["warnings"])
    assert ("ms in the trace and" in warnings) == warned


def test_input_rounds_become_two_step_times(record: ArmRecord) -> None:
    for number, (pipeline_ms, device_ms) in enumerate([(20.0, 12.0), (24.0, 16.0), (400.0, 20.0)]):
        record.input_rounds.append(InputRound(7, number, "pipeline", 4, pipeline_ms))
        record.input_rounds.append(InputRound(7, number, "device", 4, device_ms))
    metrics = summary.timing_metrics(record)
    assert (metrics["step_time_ms/mean_beside_it"], metrics["step_time_ms/batch_on_device"]) == (6.0, 4.0)


def test_what_was_found_out_once_is_in_the_summary(record: ArmRecord) -> None:
    circumstances = summary.Circumstances(
        PROTOCOL, 2, SameWeights(539, 0.99, 0.02, 0.97), LargestBatch(512, 1024, 900.0, ((512, True),))
    )
    found = summary.summarize("float32", Variant(policy="float32"), record, circumstances, None)
    assert found["same_weights"]["agreement"] == 0.99
    assert found["metrics"]["memory/max_batch_size"] == 512
    assert found["protocol"]["confidence"] == 0.965


def test_the_control_is_not_traced(record: ArmRecord) -> None:
    found = summarized(record, None)
    assert (found["operations"], found["warnings"]) == ([], [])
    assert not any(name.startswith("profiler/") for name in found["metrics"])  # type: ignore[attr-defined]
