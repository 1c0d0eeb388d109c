"""A small real measurement: worker processes run interleaved rounds and are traced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from halfstep.errors import ProfileError
from halfstep.machine import fingerprint
from halfstep.params.schema import ModelParams, ProfileParams, TaskParams, TrainParams, Variant
from halfstep.profile.arms import Arms
from halfstep.profile.differences import bridging_arms
from halfstep.profile.extras import find_trace
from halfstep.profile.records import ArmRecord, ArmSettings, FirstStep, Measurement
from halfstep.profile.repeats import Repeats, amounts
from halfstep.profile.runner import MeasurementContext, measure
from halfstep.profile.summary import summarize
from halfstep.profile.trace import Trace, read_trace
from halfstep.profile.worker import COMPILING_STEPS, Worker, serve
from halfstep.profile.worker_process import STOP_TIMEOUT_S, WorkerProcess
from halfstep.results.profile import (
    TABLES,
    InForce,
    InputRound,
    Protocol,
    RawTimes,
    Round,
    Step,
    read_profile,
    write_profile,
)
from halfstep.stats.speedup import final_confidence
from halfstep.system import files
from halfstep.tasks.images import models
from halfstep.tasks.images.arrays import open_prepared
from halfstep.tasks.trial import Trial
from halfstep.tensorflow_import import tf
from tests.fake_nvml import FakeNvml
from tests.nvml_recordings import a100
from tests.profile.arm_records import ARMS, BRIDGE, ENTRIES
from tests.profile.fake_worker import children

pytestmark = pytest.mark.slow  # test_measure.py measures with workers that answer at once
PROTOCOL = ProfileParams(
    processes=2,
    rounds=3,
    steps_per_round=2,
    warmup_steps=1,
    trace_steps=3,
    inference_batch_sizes=(1, 50),
    inference_calls_per_round=2,
    seed=2,
)
ROUNDS = 2 * 3  # repeats, rounds in each
PROTOCOL_RESULT = Protocol(processes=2, rounds=4, steps_per_round=2, timing_seconds=1.0, target_precision=0.02)


def config(entry: Variant, batch_size: int = 8) -> Trial:
    return Trial(TaskParams(), ModelParams(), TrainParams(batch_size=batch_size), entry, seed=0)


def run(configs: dict[str, Trial], folder: Path, trained: Path | None = None) -> Measurement:
    """Measures with the first arm as the baseline; nothing is known of an earlier measurement."""
    kept = Repeats(Path(tempfile.mkdtemp(dir=folder)), amounts(PROTOCOL, 1.05))
    context = MeasurementContext(trained={3: trained} if trained else {})
    return measure(configs, next(iter(configs)), PROTOCOL, context, kept)


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The folder of a training of the baseline, with its weights."""
    prepared = open_prepared()
    model = models.build(ModelParams(), prepared.image_shape, len(prepared.classes))
    (folder / "trained").mkdir()
    model.save(folder / "trained" / "model.keras")
    predictions = np.array(model(np.asarray(prepared.test.images), training=False))
    np.save(folder / "trained" / "predictions.npy", predictions)
    files.write_manifest(folder / "trained")
    return folder / "trained"


@pytest.fixture(scope="module")
def measurement(folder: Path, trained: Path) -> Measurement:
    configs = {name: config(entry) for name, entry in ENTRIES.items()}
    configs[files.CONTROL] = configs["float32"]
    return run(configs, folder, trained)


@pytest.fixture(scope="module")
def records(measurement: Measurement) -> dict[str, ArmRecord]:
    return measurement.records


@pytest.fixture(scope="module")
def traces(records: dict[str, ArmRecord]) -> dict[str, Trace]:
    taken = {name: record.trace for name, record in records.items() if record.trace is not None}
    return {name: read_trace(find_trace(trace.directory), trace.graph_dtypes) for name, trace in taken.items()}


def test_every_arm_has_all_times(records: dict[str, ArmRecord]) -> None:
    assert list(records) == ARMS
    for record in (records[name] for name in ENTRIES):
        assert [(row.process, row.round) for row in record.times.rounds] == [(p, r) for p in range(2) for r in range(3)]
        assert {row.steps for row in record.times.rounds} == {2}
        assert [(row.process, row.step) for row in record.times.steps] == [(p, s) for p in range(2) for s in range(2)]
        assert Counter(row.batch_size for row in record.times.calls) == {1: 2 * ROUNDS, 50: 2 * ROUNDS}
        times_ms = [
            *(row.round_time_ms for row in record.times.rounds),
            *(row.step_time_ms for row in record.times.steps),
        ]
        assert all(time_ms > 0 for time_ms in [*times_ms, *(row.latency_ms for row in record.times.calls)])


def test_arms_differ_only_in_their_entries(records: dict[str, ArmRecord]) -> None:
    first, *others = (record.settings.configuration for record in records.values())
    assert all(other == first for other in others)
    assert [records[name].settings.in_force.policy for name in ENTRIES] == list(ENTRIES)
    assert first.input_shape == (8, 8, 3)
    assert {record.settings.in_force.batch_size for record in records.values()} == {8}
    assert first.parameters > 1000


def test_bridging_arm_has_the_xla_that_is_in_force_where_the_entry_leaves_it_to_keras() -> None:
    """With `null`, Keras would choose for the baseline's policy, and so as for the baseline."""
    entries = {"float32": Variant(policy="float32"), "mixed_float16": Variant(policy="mixed_float16")}
    records = {}
    for name, xla in (("float32", True), ("mixed_float16", False)):
        in_force = InForce(policy=name, xla=xla, tf32=True, onednn=True, batch_size=8)
        settings: Any = SimpleNamespace(in_force=in_force, configuration=SimpleNamespace(device="GPU"))
        records[name] = ArmRecord(entries[name], settings)
    arms = bridging_arms({name: config(entry) for name, entry in entries.items()}, records, "float32")
    variants = {name: arm.variant for name, arm in arms.items()}
    assert variants == {"_bridge_xla_off": Variant(policy="float32", xla=False)}


@pytest.mark.parametrize(
    ("xla", "found"),
    [
        (None, bool(fingerprint.gpus())),
        (True, True),
    ],
)
def test_xla_in_force_is_recorded(folder: Path, xla: bool | None, found: bool) -> None:
    """Keras does not choose XLA on a CPU."""
    with closing(WorkerProcess("float32", config(Variant(policy="float32", xla=xla)))) as worker:
        assert worker.call(ArmSettings, "settings").in_force.xla is found
        worker.call(FirstStep, "warm_up", 1)
        worker.call(NoneType, "prepare_cached")
        assert worker.call(float, "train_round_cached", 1) > 0
        assert worker.call(list[float], "infer", 1, 1)[0] > 0


@pytest.mark.parametrize("in_force", [False, True])
def test_prediction_is_compiled_as_the_training_step(in_force: bool) -> None:
    worker: Any = object.__new__(Worker)
    worker._model = SimpleNamespace(jit_compile=in_force)
    assert worker._prediction(worker._model)._jit_compile is in_force


def test_one_bridging_arm_serves_all_candidates_with_the_same_settings() -> None:
    entries = {
        "float32": Variant(policy="float32"),
        "mixed_float16": Variant(policy="mixed_float16", onednn=False),
        "mixed_bfloat16": Variant(policy="mixed_bfloat16", onednn=False),
        "float32_onednn_off": Variant(policy="float32", onednn=False),
    }
    records = {}
    for name, entry in entries.items():
        in_force = InForce(policy=entry.policy, xla=False, tf32=True, onednn=name == "float32", batch_size=8)
        settings: Any = SimpleNamespace(in_force=in_force, configuration=SimpleNamespace(device="CPU"))
        records[name] = ArmRecord(entry, settings)
    arms = bridging_arms({name: config(entry) for name, entry in entries.items()}, records, "float32")
    assert {name: arm.variant for name, arm in arms.items()} == {
        BRIDGE: Variant(policy="float32", onednn=False, xla=False)
    }


def test_protocol_describes_the_measurement(measurement: Measurement) -> None:
    protocol = measurement.protocol
    counted = sum(row.counted for row in measurement.records["float32"].times.rounds)
    assert (protocol.processes, protocol.rounds) == (2, counted)
    assert {ending.ended_by for ending in protocol.endings["mixed_bfloat16"].values()} <= {"rounds", "target_precision"}
    assert protocol.confidence_of("mixed_bfloat16", "train") == final_confidence(0)
    assert protocol.steps_per_round == 2
    assert 0 < protocol.timing_seconds < (protocol.stage_seconds or 0)


def test_peak_memory_is_that_of_every_arm(records: dict[str, ArmRecord]) -> None:
    costs = [records[name].calibration for name in [*ENTRIES, files.CONTROL]]
    assert all(cost and 100 < (cost.peak_memory_bytes or 0) / 2**20 < 8192 for cost in costs)
    first = [records[name].first_step for name in [*ENTRIES, files.CONTROL]]
    assert all(step and step.seconds > 0 and 1 < step.cpu_s < 120 for step in first)
    assert all(cost and set(cost.latency_ms) == {1, 50} for cost in costs)


def test_turn_after_one_on_a_cached_batch_waits_for_its_input_as_a_training_does(folder: Path) -> None:
    """While a process trains on a cached batch, its pipeline fills buffers, which a training never finds full."""
    worker = Worker(config(ENTRIES["float32"]))
    worker.warm_up(1)
    batch = next(worker._batches)

    def wait(number: np.int64) -> np.int64:
        time.sleep(0.03)
        return number

    def load(number: tf.Tensor) -> Any:
        waited = tf.numpy_function(wait, [number], tf.int64)
        with tf.control_dependencies([waited]):
            return tf.nest.map_structure(tf.identity, batch)

    worker._batches = iter(tf.data.Dataset.range(1000).map(load).prefetch(3))
    worker.prepare_cached()

    def step_ms(buffered_batches: int) -> float:
        cached_ms = worker.train_round_cached(4) / 4
        time.sleep(0.2)
        assert cached_ms < 15
        return worker.train_round(4, 1, buffered_batches) / 4

    assert step_ms(4) == pytest.approx(30, rel=0.3)
    assert step_ms(0) < 20
    assert worker.train_round(4, 1, 1000) / 4 == pytest.approx(30, rel=0.3)  # after a turn of training it uses up none


def test_warm_up_lasts_until_an_update_is_applied(folder: Path) -> None:
    """Loss scaling skips updates while gradients overflow; a GPU loads code for the first one that is applied."""
    worker = Worker(config(Variant(policy="mixed_float16")))
    scaled = worker._model.optimizer
    scaled.dynamic_scale.assign(2.0**30)
    worker.warm_up(2)
    assert int(scaled.inner_optimizer.iterations) == 1
    assert float(scaled.dynamic_scale) < 2.0**28


def test_cached_batch_passes_through_the_training_step_that_was_compiled(folder: Path) -> None:
    """A training step that takes a tensor is called in another way, which is 10 % faster for a small network."""
    worker = Worker(config(ENTRIES["float32"]))
    worker.warm_up(1)
    steps = int(worker._model.optimizer.iterations)
    traced = Counter[str]()
    worker._model.train_step = lambda data: traced.update(["again"])
    worker.prepare_cached()
    worker.train_round_cached(2)
    assert int(worker._model.optimizer.iterations) == steps + COMPILING_STEPS + 1 + 2
    assert not traced


def test_weights_of_the_baseline_are_evaluated_in_the_precision_of_each_candidate(
    measurement: Measurement, trained: Path
) -> None:
    expected = np.load(trained / "predictions.npy")
    assert {name for name, record in measurement.records.items() if record.same_weights} == {*ENTRIES} - {"float32"}
    for name in ("mixed_bfloat16", "mixed_float16"):
        ((seed, path),) = measurement.records[name].same_weights.items()
        predictions = np.load(path)
        assert seed == 3
        assert predictions.shape == expected.shape
        assert predictions.dtype == np.float32
        assert 0 < np.abs(predictions - expected).max() < 0.02  # the same weights, in another precision


def test_trace_has_the_requested_steps(traces: dict[str, Trace]) -> None:
    assert all(len(trace.steps) >= 3 for trace in traces.values())
    for step in (step for trace in traces.values() for step in trace.steps):
        assert sum(step.parts().values()) == pytest.approx(step.step_time_ms, rel=0.02)


@pytest.mark.skipif(bool(Path("/dev/nvidia0").exists()), reason="the bounds are those of a CPU")
def test_trace_shows_16_bit_compute(traces: dict[str, Trace]) -> None:
    shares = {name: trace.metrics()["profiler/compute_16bit_percent"] for name, trace in traces.items()}
    assert shares["float32"] == 0
    assert 5 < shares["mixed_bfloat16"] < 100
    assert all((trace.matched_percent or 0) > 80 for trace in traces.values())


def test_files_have_the_documented_columns(measurement: Measurement, traces: dict[str, Trace], folder: Path) -> None:
    record = measurement.records["float32"]
    assert record.trace is not None
    summary = summarize("float32", measurement, traces["float32"])
    digest = write_profile("float32", summary, record.times, find_trace(record.trace.directory))
    directory = files.profile_dir("float32")
    assert files.verify_manifest(directory) == digest
    columns = {
        "rounds.csv": ["process", "round", "position", "steps", "round_time_ms", "counted"],
        "input_rounds.csv": ["process", "round", "batches", "steps", "round_time_ms"],
        "timings.csv": ["process", "round", "step", "step_time_ms"],
        "inference.csv": ["process", "round", "batch_size", "call", "latency_ms", "counted"],
    }
    tables = {name: pd.read_csv(directory / name) for name in columns}
    assert {name: list(table.columns) for name, table in tables.items()} == columns
    assert {name: len(table) for name, table in tables.items()} == {
        "rounds.csv": ROUNDS,
        "input_rounds.csv": len(record.times.input_rounds),
        "timings.csv": 4,
        "inference.csv": 4 * ROUNDS,
    }
    assert read_trace(files.trace_file("float32")).device_type == traces["float32"].device_type
    assert {"step_time_ms/p50", "step_time_ms/p95", "step_time_ms/mean", "train_images_per_s"} <= set(summary.metrics)
    assert {"profiler/step_time_ms", "profiler/overhead_percent", "inference/b50/p99_ms"} <= set(summary.metrics)
    profile = read_profile("float32")
    assert profile.summary == summary
    assert profile.rounds["round_time_ms"].tolist() == pytest.approx([row.round_time_ms for row in record.times.rounds])


def test_bridging_arm_has_all_files_except_the_trace(measurement: Measurement, folder: Path) -> None:
    record = measurement.records[BRIDGE]
    assert record.trace is None
    summary = summarize(BRIDGE, measurement, None)
    write_profile(BRIDGE, summary, record.times, None)
    names = {path.name for path in files.profile_dir(BRIDGE).iterdir()}
    tables = {name for name, _ in TABLES.values()} - {"account.csv"}
    assert names == tables | {"summary.json", "manifest.json"}


def test_summary_has_the_settings_in_force_in_the_worker(folder: Path) -> None:
    """`compare` explains by the settings in force, not by those that the entry requests."""
    with closing(WorkerProcess("float32", config(Variant(policy="float32", onednn=False)))) as worker:
        settings = worker.call(ArmSettings, "settings")
        worker.call(FirstStep, "warm_up", 1)
        time_ms = worker.call(float, "train_round", 1)
    times = RawTimes(
        rounds=[Round(0, 0, 0, 1, time_ms)],
        input_rounds=[InputRound(0, 0, "pipeline", 1, time_ms)],
        steps=[Step(0, 0, 0, time_ms)],
    )
    record = ArmRecord(ENTRIES["float32"], settings, times=times)
    summary = summarize("float32", Measurement({}, records={"float32": record}, ended=PROTOCOL_RESULT), None)
    write_profile("in_force", summary, times, None)
    assert summary.entry.onednn is None
    assert read_profile("in_force").summary.in_force.onednn is False
    assert "TF_ENABLE_ONEDNN_OPTS" not in os.environ  # TensorFlow reads it at import: a fork server of its own has it


def test_rounds_of_a_gpu_are_read_and_marked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is a simulated one, and the workers compute on the CPU."""
    device = a100()
    device.set_flags("HwThermalSlowdown")
    library = FakeNvml(device)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(Arms, "device", lambda _: "GPU")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    measurement = run(
        {"float32": config(ENTRIES["float32"]), "mixed_bfloat16": config(ENTRIES["mixed_bfloat16"])}, folder
    )
    times = measurement.records["float32"].times
    assert {row.throttled for row in times.rounds} == {row.throttled for row in times.calls} == {True}
    assert {row.process for row in times.rounds if row.counted} == {0, 1}  # there is no other time
    (gpu,) = measurement.protocol.gpus
    assert gpu.uuid == device.uuid
    assert gpu.throttled == 1
    assert gpu.readings >= 2 * len(times.rounds)  # of training and of inference
    assert [line for line in measurement.protocol.warnings if line.startswith(f"{device.name} was throttled")] != []
    assert library.depth == 0


def test_error_of_a_worker_is_one_line_and_ends_all_workers(folder: Path) -> None:
    configs = {"bad": config(ENTRIES["float32"], batch_size=4096)}
    with pytest.raises(ProfileError, match=r"^profile: bad: train\.batch_size is 4096") as caught:
        run(configs, folder)
    assert "\n" not in str(caught.value)
    assert children() == []


def test_too_little_memory_is_answered_with_the_numbers() -> None:
    def make(_: Trial) -> Worker:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    connection = Mock()
    connection.recv.side_effect = [("settings", ()), EOFError]
    serve(connection, make, config(ENTRIES["float32"], batch_size=8))
    assert re.fullmatch(
        r"train\.batch_size is 8, too large for the memory, of which [\d,]+ MiB were used "
        r"\(OOM when allocating tensor\); reduce it",
        connection.send.call_args.args[0],
    )


def test_killed_worker_is_reported_in_one_line(folder: Path) -> None:
    with closing(WorkerProcess("float32", config(ENTRIES["float32"]))) as worker:
        worker.call(FirstStep, "warm_up", 1)
        worker.send("train_round", 10_000)
        assert worker._process.pid is not None
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(ProfileError, match=r"^profile: the process of float32 ended with status -9") as caught:
            worker.receive(float)
        assert "\n" not in str(caught.value)
        with pytest.raises(ProfileError, match="ended with status -9"):
            worker.call(float, "train_round", 1)
    assert children() == []


def test_temporary_folder_may_have_a_long_path_and_is_left_empty(folder: Path, root: Path, tmp_path: Path) -> None:
    """The path of a socket may have 107 bytes. AutoGraph writes a file for each function, which a worker leaves."""
    temporary = tmp_path / ("t" * 150)
    temporary.mkdir()
    check = (
        "from contextlib import closing; from halfstep.profile.worker_process import WorkerProcess\n"
        "from halfstep.profile.records import FirstStep\n"
        "from tests.profile.test_runner import ENTRIES, config\n"
        "with closing(WorkerProcess('float32', config(ENTRIES['float32']))) as worker:\n"
        "    worker.call(FirstStep, 'warm_up', 1)\n"
        "    print(worker.call(float, 'train_round', 1) > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check],
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert not list(temporary.iterdir())


def test_busy_worker_is_ended_at_once(folder: Path) -> None:
    with closing(WorkerProcess("float32", config(ENTRIES["float32"]))) as worker:
        worker.call(FirstStep, "warm_up", 1)
        worker.send("train_round", 100_000)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < STOP_TIMEOUT_S / 2
    assert children() == []


def test_ctrl_c_does_not_reach_a_worker(folder: Path) -> None:
    with closing(WorkerProcess("float32", config(ENTRIES["float32"]))) as worker:
        assert worker._process.pid is not None
        worker.call(FirstStep, "warm_up", 1)
        os.kill(worker._process.pid, signal.SIGINT)
        assert worker.call(float, "train_round", 1) > 0


@pytest.mark.parametrize("alone", [True, False], ids=["a worker", "the stage"])
def test_stop_is_in_no_time(alone: bool, folder: Path, root: Path) -> None:
    """A round in which a worker was stopped is repeated. Ctrl-Z does not reach a worker, which ends its turn."""
    measuring = subprocess.Popen(
        [sys.executable, "-c", MEASURING],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert measuring.stdout is not None
    pid = int(measuring.stdout.readline())
    time.sleep(1)  # the rounds have begun
    stop, target = (os.kill, pid) if alone else (os.killpg, measuring.pid)
    stop(target, signal.SIGSTOP)
    time.sleep(3)
    stop(target, signal.SIGCONT)
    output, _ = measuring.communicate(timeout=60)
    *numbers, warning = output.split(maxsplit=3)
    largest_ms, repetitions, rows = map(float, numbers)
    assert (f"rounds dropped and repeated: {repetitions:.0f};" in warning) is alone
    assert largest_ms < 2500
    assert (repetitions >= 1) is alone
    assert rows == 1


MEASURING = """
import time
from collections import Counter
from pathlib import Path
from halfstep.profile.arms import Arms
from halfstep.profile.records import Measurement
from halfstep.profile.worker_process import serve_worker
from tests.profile.test_plan import plan
from tests.profile.test_runner import ENTRIES, PROTOCOL, config

measurement = Measurement({})
arms = Arms({"float32": config(ENTRIES["float32"])}, "float32", PROTOCOL, measurement, serve_worker)
planned = plan(3.0, {"steps_per_round": 20, "inference_calls_per_round": 2})
with arms.repeat(0):
    arms.start({"float32": {"train", "inference_b1", "inference_b32"}})
    print(arms.workers[0]._process.pid, flush=True)
    ends_s, number = time.monotonic() + 6, 0
    while time.monotonic() < ends_s:
        arms.train(number, planned)
        arms.infer(number, planned)
        number += 1
    times = measurement.records["float32"].times
    times_ms = [row.round_time_ms for row in times.rounds] + [row.latency_ms for row in times.calls]
    warning = next(arms.warnings(), "")
    print(max(times_ms), arms.repeated, max(Counter(row.round for row in times.rounds).values()), repr(warning))
"""


def test_variables_of_an_entry_are_set_in_its_workers_alone(folder: Path) -> None:
    variant = Variant.model_validate({"policy": "float32", "env": {"TF_NUM_INTEROP_THREADS": 1, "OF_NOBODY": "a b"}})
    with closing(WorkerProcess("float32", config(variant))) as worker:
        assert worker.call(ArmSettings, "settings").in_force.env == "OF_NOBODY=a b TF_NUM_INTEROP_THREADS=1"
    assert "OF_NOBODY" not in os.environ


def test_folder_must_contain_exactly_one_trace(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="wrote 0 traces"):
        find_trace(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.xplane.pb").write_text("")
    with pytest.raises(ProfileError, match="wrote 2 traces"):
        find_trace(tmp_path)
