"""Worker processes on a GPU: cycle, memory that grows on demand, one arm measured at a time, largest batch.

The first two have run on an H100 (docs/gpus.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import NoneType

import pytest

from halfstep.params.schema import DataParams, ModelParams, ProfileParams, TaskParams, TrainParams, Variant
from halfstep.prepare.images.pipeline import prepare
from halfstep.profile.max_batch import largest_batch
from halfstep.profile.records import ArmSettings, Calibration, FirstStep, Measurement, TraceRecord
from halfstep.profile.repeats import Repeats, amounts
from halfstep.profile.runner import MeasurementContext, measure
from halfstep.profile.summary import summarize
from halfstep.profile.trace import Trace, read_trace
from halfstep.profile.worker_process import WorkerProcess, serve_worker
from halfstep.system import files
from halfstep.system.fork_server import stop_servers
from halfstep.tasks.trial import Trial

pytestmark = pytest.mark.gpu

MIB = 2**20
# oneDNN has no effect on a GPU: without it, no arm would get a process of its own for that.
FLOAT32 = Variant(policy="float32", xla=False)
MIXED = Variant(policy="mixed_float16", xla=False)
PROTOCOL = ProfileParams(
    processes=2, rounds=3, steps_per_round=5, warmup_steps=5, trace_steps=3, inference_batch_sizes=(32,)
)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """ResNet-20 on synthetic images of the size of CIFAR-10."""
    folder, before = tmp_path_factory.mktemp("gpu"), Path.cwd()
    prepare(DataParams(source="synthetic", synthetic_images=2048, image_size=32), folder / files.PREPARED)
    os.chdir(folder)
    train = TrainParams(batch_size=256, epochs=0, require_gpu=True)
    yield Trial(TaskParams(), ModelParams(name="resnet20"), train, FLOAT32, 0)
    os.chdir(before)
    stop_servers()


@pytest.fixture(scope="module")
def measurement(trial: Trial, tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """The baseline, its second copy and a candidate, on one GPU."""
    configs = {"float32": trial, "mixed_float16": replace(trial, variant=MIXED)}
    configs[files.CONTROL] = configs["float32"]
    context = MeasurementContext()
    kept = Repeats(tmp_path_factory.mktemp("measured"), amounts(PROTOCOL, context.min_speedup))
    return measure(configs, "float32", PROTOCOL, context, kept)


@pytest.fixture(scope="module")
def traces(measurement: Measurement) -> dict[str, Trace]:
    taken = {name: record.trace for name, record in measurement.records.items() if record.trace is not None}
    return {name: read_trace(trace.directory, trace.graph_dtypes) for name, trace in taken.items()}


def test_cycle_of_a_worker(trial: Trial, tmp_path: Path) -> None:
    with closing(WorkerProcess("float32", trial, serve_worker)) as worker:
        settings = worker.call(ArmSettings, "settings")
        assert settings.configuration.device == "GPU"
        assert (settings.in_force.policy, settings.in_force.xla, settings.in_force.tf32) == ("float32", False, True)
        worker.call(FirstStep, "warm_up", 3)
        calibration = worker.call(Calibration, "calibrate", (1, 32))
        assert calibration.step_time_ms is not None
        assert calibration.step_time_ms > 0
        assert set(calibration.latency_ms) == set(calibration.cold_calls) == {1, 32}
        assert worker.call(float, "train_round", 5, 1) > 0
        assert len(worker.call(list[float], "train_steps", 3)) == 3
        worker.call(NoneType, "prepare_cached")
        assert worker.call(float, "train_round_cached", 5) > 0
        assert all(latency_ms > 0 for latency_ms in worker.call(list[float], "infer", 32, 3))
        trace = worker.call(TraceRecord, "trace", tmp_path, 3)
        assert trace.marked_steps >= 3


def test_memory_grows_on_demand(trial: Trial) -> None:
    """Without memory growth the first process would take nearly the whole device."""
    with closing(WorkerProcess("float32", trial, serve_worker)) as worker:
        worker.call(FirstStep, "warm_up", 3)
        before_mib, total_mib = _used_mib()
        peak_mib = worker.call(Calibration, "calibrate", ()).peak_mib
        assert 0 < (peak_mib or 0) < total_mib / 2
        with closing(WorkerProcess("second", replace(trial, variant=MIXED), serve_worker)) as second:
            second.call(FirstStep, "warm_up", 3)
            assert second.call(Calibration, "calibrate", ()).peak_memory_bytes
            assert _used_mib()[0] > before_mib
    assert before_mib < 0.9 * total_mib


def _used_mib() -> tuple[float, float]:
    import pynvml

    pynvml.nvmlInit()
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
        return memory.used / MIB, memory.total / MIB
    finally:
        pynvml.nvmlShutdown()


def test_arms_are_measured_one_at_a_time(measurement: Measurement) -> None:
    assert measurement.protocol.interleaved is False
    assert set(measurement.records) == {"float32", "mixed_float16", files.CONTROL}
    for record in measurement.records.values():
        assert record.settings.configuration.device == "GPU"
        assert len(record.times.rounds) == 2 * 3
        assert all(row.round_time_ms > 0 for row in record.times.rounds)
        assert record.calibration is not None
        assert record.calibration.peak_memory_bytes is not None
    assert measurement.records["mixed_float16"].settings.in_force.policy == "mixed_float16"


def test_traces_have_kernels_of_a_known_type(traces: dict[str, Trace]) -> None:
    for trace in traces.values():
        assert trace.device_type == "GPU"
        assert len(trace.steps) >= 3
        assert trace.kernels
        metrics = trace.metrics()
        assert metrics["profiler/device_compute_ms"] > 0
        assert metrics["profiler/compute_unknown_percent"] < 10, trace.warnings
        assert metrics["profiler/tensor_core_unknown_percent"] < 10, trace.warnings
    # xla: false, so every kernel has a name that shows its type
    assert traces["mixed_float16"].metrics()["profiler/compute_16bit_percent"] > 30
    assert traces["float32"].metrics()["profiler/compute_16bit_percent"] < 1


def test_traces_agree_with_the_timing(measurement: Measurement, traces: dict[str, Trace]) -> None:
    """A step in the trace takes as long as a timed one and the profiler's overhead, within the noise."""
    for name, record in measurement.records.items():
        summary = summarize(name, measurement, traces[name])
        assert [warning for warning in summary.warnings if "use the trace's shares" in warning] == []
        kernels_ms = sum(kernel.self_time_us for kernel in traces[name].kernels) / 1e3
        assert record.trace is not None
        assert kernels_ms / record.trace.marked_steps <= 1.05 * summary.metrics["profiler/step_time_ms"]


def test_largest_batch_is_where_the_memory_ends(trial: Trial) -> None:
    """A network whose batches of the largest size do not fit any GPU: 224 px, ResNet-50."""
    large = Path("large")
    prepare(DataParams(source="synthetic", synthetic_images=64, image_size=224), large / files.PREPARED)
    big = replace(
        trial,
        variant=MIXED,
        model=ModelParams(name="resnet50"),
        train=trial.train.model_copy(update={"batch_size": 64}),
        directory=(large / files.PREPARED).resolve(),
    )
    largest = largest_batch(big, PROTOCOL, "GPU")
    assert largest.batch_size >= 8
    assert largest.limit_mib is None
    assert largest.peak_mib is not None
    assert any(not fits for _, fits in largest.tried)
    assert largest.peak_mib > 0.5 * _used_mib()[1]
