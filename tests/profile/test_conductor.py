"""A real measurement, tiny: processes are started, take turns, are traced and end."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stages import files, models
from stages.dataset import open_prepared
from stages.errors import ProfileError
from stages.params import ModelParams, ProfileParams, TrainParams, Variant
from stages.profile.arm import Arm
from stages.profile.conductor import Extras, measure
from stages.profile.records import ArmRecord, Measurement, Task
from stages.profile.results import trace_in, write_results
from stages.profile.summary import Circumstances, summarize
from stages.profile.trace import Trace, read_trace

PROTOCOL = ProfileParams(
    processes=2,
    rounds=3,
    steps_per_round=2,
    warmup_steps=1,
    single_step_rounds=1,
    trace_steps=3,
    inference_batch_sizes=(1, 50),
    inference_calls_per_round=2,
    seed=2,
)
ENTRIES = {"float32": Variant(policy="float32"), "mixed_bfloat16": Variant(policy="mixed_bfloat16")}
ROUNDS = PROTOCOL.processes * PROTOCOL.rounds


def task(entry: Variant, batch_size: int = 8) -> Task:
    return Task(ModelParams(), TrainParams(batch_size=batch_size), entry, seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, prepared_template: Path) -> Iterator[Path]:
    folder, before = tmp_path_factory.mktemp("profile"), Path.cwd()
    shutil.copytree(prepared_template, folder / files.PREPARED)
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """A training's folder: weights, and what they predict in float32, but for one image's class."""
    prepared = open_prepared()
    model = models.build(ModelParams(), prepared.image_shape, len(prepared.classes))
    (folder / "trained").mkdir()
    model.save(folder / "trained" / "model.keras")
    predictions = np.array(model(np.asarray(prepared.test.images), training=False))
    predictions[0] = np.roll(np.eye(len(prepared.classes))[predictions[0].argmax()], 1)
    np.save(folder / "trained" / "predictions.npy", predictions)
    files.write_manifest(folder / "trained")
    return folder / "trained"


def extras(folder: Path, traced: frozenset[str] = frozenset()) -> Extras:
    return Extras(traced, folder / "scratch", trained={})


@pytest.fixture(scope="module")
def measurement(folder: Path, trained: Path) -> Measurement:
    tasks = {name: task(entry) for name, entry in ENTRIES.items()}
    once = Extras(frozenset(ENTRIES), folder / "scratch", {"mixed_bfloat16": trained})
    return measure(tasks, "float32", PROTOCOL, once)


@pytest.fixture(scope="module")
def records(measurement: Measurement) -> dict[str, ArmRecord]:
    return measurement.records


@pytest.fixture(scope="module")
def traces(records: dict[str, ArmRecord]) -> dict[str, Trace]:
    taken = {name: record.trace for name, record in records.items() if record.trace is not None}
    return {name: read_trace(trace_in(trace.directory), trace.graph_dtypes) for name, trace in taken.items()}


def test_every_arm_has_all_its_times(records: dict[str, ArmRecord]) -> None:
    assert list(records) == list(ENTRIES)
    for record in records.values():
        assert [(row.process, row.round) for row in record.rounds] == [(p, r) for p in range(2) for r in range(3)]
        assert {row.steps for row in record.rounds} == {2}
        assert [(row.process, row.step) for row in record.steps] == [(p, s) for p in range(2) for s in range(2)]
        assert Counter(row.batch_size for row in record.calls) == {1: 2 * ROUNDS, 50: 2 * ROUNDS}
        times_ms = [*(row.round_time_ms for row in record.rounds), *(row.step_time_ms for row in record.steps)]
        assert all(time_ms > 0 for time_ms in [*times_ms, *(row.latency_ms for row in record.calls)])


def test_in_every_round_each_arm_has_one_turn(records: dict[str, ArmRecord]) -> None:
    orders = [tuple(records[name].rounds[turn].position for name in records) for turn in range(ROUNDS)]
    assert all(sorted(order) == [0, 1] for order in orders)
    assert len(set(orders)) > 1


def test_arms_differ_by_their_entries_alone(records: dict[str, ArmRecord]) -> None:
    configurations = [record.configuration for record in records.values()]
    assert configurations[0] == configurations[1]
    assert [record.in_force["policy"] for record in records.values()] == list(ENTRIES)
    assert configurations[0]["batch_size"] == 8
    assert configurations[0]["input_shape"] == [8, 8, 3]
    assert configurations[0]["parameters"] > 1000


def test_how_it_was_measured_is_told(measurement: Measurement) -> None:
    protocol = measurement.protocol
    assert (protocol.processes, protocol.rounds, protocol.ended_by) == (2, ROUNDS, "rounds")
    assert protocol.confidence == 0.95
    assert 0 < protocol.timing_seconds < PROTOCOL.max_seconds


def test_input_is_told_from_compute(records: dict[str, ArmRecord]) -> None:
    for record in records.values():
        assert Counter(row.batches for row in record.input_rounds) == {"pipeline": 6, "device": 6}
        assert all(row.round_time_ms > 0 and row.steps == 2 for row in record.input_rounds)


def test_the_same_weights_are_computed_with_in_the_baselines_precision(measurement: Measurement) -> None:
    found = measurement.same_weights["mixed_bfloat16"]
    images = len(open_prepared().test)
    assert found.images == images
    assert found.agreement == pytest.approx((images - 1) / images)
    assert 0.5 < found.max_probability_difference <= 1


def test_a_trace_holds_the_steps_that_were_asked_for(traces: dict[str, Trace]) -> None:
    assert all(len(trace.steps) >= PROTOCOL.trace_steps for trace in traces.values())
    for step in (step for trace in traces.values() for step in trace.steps):
        assert sum(step.parts().values()) == pytest.approx(step.step_time_ms, rel=0.02)


@pytest.mark.skipif(bool(Path("/dev/nvidia0").exists()), reason="kernels are told from the trace on a GPU")
def test_16_bit_shows_in_the_trace(traces: dict[str, Trace]) -> None:
    shares = {name: trace.metrics()["profiler/compute_16bit_percent"] for name, trace in traces.items()}
    assert shares["float32"] == 0
    assert 5 < shares["mixed_bfloat16"] < 100
    assert all((trace.matched_percent or 0) > 80 for trace in traces.values())


def test_the_files_are_those_of_the_contract(measurement: Measurement, traces: dict[str, Trace], folder: Path) -> None:
    record = measurement.records["float32"]
    assert record.trace is not None
    circumstances = Circumstances(measurement.protocol, PROTOCOL.trace_steps)
    summary = summarize("float32", ENTRIES["float32"], record, circumstances, traces["float32"])
    digest = write_results(record, summary, trace_in(record.trace.directory), "float32")
    directory = files.profile_dir("float32")
    assert files.check_manifest(directory) == digest
    columns = {
        "rounds.csv": ["process", "round", "position", "steps", "round_time_ms"],
        "input_rounds.csv": ["process", "round", "batches", "steps", "round_time_ms"],
        "timings.csv": ["process", "round", "step", "step_time_ms"],
        "inference.csv": ["process", "round", "batch_size", "call", "latency_ms"],
    }
    tables = {name: pd.read_csv(directory / name) for name in columns}
    assert {name: list(table.columns) for name, table in tables.items()} == columns
    assert {name: len(table) for name, table in tables.items()} == {
        "rounds.csv": ROUNDS,
        "input_rounds.csv": 12,
        "timings.csv": 4,
        "inference.csv": 4 * ROUNDS,
    }
    assert read_trace(files.trace_file("float32")).device_type == traces["float32"].device_type
    written = files.read_json(directory / "summary.json")
    assert {"step_time_ms/p50", "step_time_ms/p95", "step_time_ms/mean", "train_images_per_s"} <= set(
        written["metrics"]
    )
    assert {"profiler/step_time_ms", "profiler/overhead_percent", "inference/b50/p99_ms"} <= set(written["metrics"])


def test_the_control_has_the_same_files_without_a_trace(measurement: Measurement, folder: Path) -> None:
    record = replace(measurement.records["float32"], trace=None)
    circumstances = Circumstances(measurement.protocol, PROTOCOL.trace_steps)
    summary = summarize(files.CONTROL, ENTRIES["float32"], record, circumstances, None)
    write_results(record, summary, None, files.CONTROL)
    names = {path.name for path in files.profile_dir(files.CONTROL).iterdir()}
    assert names == {"rounds.csv", "input_rounds.csv", "timings.csv", "inference.csv", "summary.json", "manifest.json"}


def test_a_worker_that_refuses_is_one_line_and_none_is_left(folder: Path) -> None:
    tasks = {"bad": task(ENTRIES["float32"], batch_size=4096)}
    with pytest.raises(ProfileError, match=r"^profile: bad: train\.batch_size is 4096") as caught:
        measure(tasks, "bad", PROTOCOL, extras(folder))
    assert "\n" not in str(caught.value)
    assert multiprocessing.active_children() == []


def test_arms_that_differ_in_more_than_their_entries_are_refused(folder: Path) -> None:
    tasks = {"float32": task(ENTRIES["float32"]), "larger": task(ENTRIES["float32"], batch_size=16)}
    with pytest.raises(ProfileError, match=r"'larger' does not run as 'float32' does \(batch_size 16 instead of 8\)"):
        measure(tasks, "float32", PROTOCOL, extras(folder))
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_at_its_work_is_one_line(folder: Path) -> None:
    arm = Arm("float32", task(ENTRIES["float32"]))
    try:
        arm.send("train_round", 10_000)
        assert arm._process.pid is not None
        os.kill(arm._process.pid, signal.SIGKILL)
        with pytest.raises(ProfileError, match=r"^profile: the process of float32 ended with status -9") as caught:
            arm.answer()
        assert "\n" not in str(caught.value)
        with pytest.raises(ProfileError, match="ended with status -9"):
            arm.ask("train_round", 1)
    finally:
        arm.stop()
    assert multiprocessing.active_children() == []


def test_onednn_is_off_in_the_workers_that_ask_for_it(folder: Path) -> None:
    """TensorFlow reads the setting at its import; that it is off is proven when the worker compiles its model."""
    arm = Arm("mixed_float16", task(Variant(policy="mixed_float16", onednn=False)))
    try:
        assert arm.ask("configuration")["batch_size"] == 8
        assert arm.ask("train_round", 1) > 0
    finally:
        arm.stop()
    assert "TF_ENABLE_ONEDNN_OPTS" not in os.environ


def test_one_trace_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="wrote 0 traces"):
        trace_in(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.xplane.pb").write_text("")
    with pytest.raises(ProfileError, match="wrote 2 traces"):
        trace_in(tmp_path)
