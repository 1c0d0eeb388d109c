"""Arms that do not fit into the memory of a GPU at once: pairs, and one after the other.

The worker processes are real. Most of them answer at once, without TensorFlow; those of the slow tests train.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from stages.profile.device_memory import DeviceMemory

from stages import files
from stages.errors import ProfileError
from stages.gpus import cuda
from stages.params import ModelParams, ProfileParams, TaskParams, TrainParams
from stages.profile import fork_server, runner
from stages.profile.__main__ import _write
from stages.profile.arms import Arms
from stages.profile.plan import Costs, Plan, make_plan
from stages.profile.records import ArmConfig, Measurement
from stages.profile.runner import Extras, measure
from stages.profile.stopping_rule import speedups
from stages.profile.summary import Context
from stages.profile.worker_process import Serve, serve_worker
from stages.profile.xla_choices import digest
from stages.results.profile import XLA_CHOICES, read_profile
from stages.stats.speedup import ALONE, PAIRS
from stages.tasks.spec import TaskSpec
from tests.fake_nvml import FakeNvml
from tests.nvml_recordings import mixed
from tests.profile import fake_worker
from tests.profile.arm_records import ARMS, BRIDGE, ENTRIES
from tests.profile.fake_worker import (
    CHOICES_READ,
    FOLDER,
    GIB,
    alive_workers,
    serve_always_out_of_memory,
    serve_dies_beside_another,
    serve_fake,
    serve_out_of_memory_beside_two,
    serve_short_of_memory,
)

PROCESSES, ROUNDS = 3, 2
PROTOCOL = ProfileParams(
    processes=PROCESSES,
    rounds=ROUNDS,
    steps_per_round=2,
    warmup_steps=1,
    trace_steps=2,
    inference_batch_sizes=(1,),
    inference_calls_per_round=2,
    seed=1,
)
PAIRS_OF_ARMS = 5  # the baseline with each other arm, and the bridging arm with its candidate


def configs() -> dict[str, ArmConfig]:
    spec = TaskSpec(TaskParams(), ModelParams(), TrainParams(batch_size=8))
    found = {name: ArmConfig(spec, entry, 0) for name, entry in ENTRIES.items()}
    return found | {files.CONTROL: found["float32"]}


class Device:
    """A GPU that holds so many arms of 1 GiB, later fewer; each worker process that lives is one."""

    def __init__(self, arms: float, later: float | None = None, starts: int = 0) -> None:
        self.arms, self.later, self.starts = arms, later, starts
        self.most_alive = 0
        self._seen: set[int] = set()

    def read(self) -> DeviceMemory:
        alive = [process.pid or 0 for process in multiprocessing.active_children()]
        self._seen.update(alive)
        self.most_alive = max(self.most_alive, len(alive))
        arms = self.arms if self.later is None or len(self._seen) <= self.starts else self.later
        return DeviceMemory(16 * GIB, int((arms - len(alive)) * GIB))


def unlimited() -> DeviceMemory:
    return DeviceMemory(80 * GIB, 80 * GIB)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


@pytest.fixture
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All processes of a test are forked from the same interpreters, which have not imported TensorFlow."""
    monkeypatch.setattr(fork_server, "PRELOADED", [fake_worker.__name__])
    monkeypatch.setattr(Arms, "_server_name", lambda *_: "fake")
    monkeypatch.setattr(runner, "stop_servers", lambda: None)
    yield
    fork_server.stop_servers()


def processes(measured: Measurement, name: str) -> set[int]:
    return {row.process for row in measured.records[name].times.rounds}


def check_complete(measured: Measurement, count: int = PROCESSES) -> None:
    """Every arm has all that is measured of it, in `count` processes."""
    assert list(measured.records) == ARMS
    assert measured.protocol.processes == count
    assert {name for name, record in measured.records.items() if record.trace is not None} == {*ARMS} - {BRIDGE}
    assert set(measured.same_weights) == {"mixed_bfloat16", "mixed_float16"}
    for name, record in measured.records.items():
        assert record.peak_memory_bytes
        for rows in (record.times.rounds, record.times.calls):
            found = [(row.process, row.round) for row in rows if getattr(row, "call", 0) == 0]
            assert sorted(found) == sorted({*found})  # no process number has the rounds of two processes
        assert {row.process for row in record.times.calls} == processes(measured, name)
        assert {row.process for row in record.times.steps} == processes(measured, name)
        assert bool(record.times.input_rounds) == files.is_variant(name)
    assert multiprocessing.active_children() == []


def check_choices(measured: Measurement) -> None:
    """What XLA chose is known of every process of every arm."""
    for name, record in measured.records.items():
        assert set(record.xla_choices) == processes(measured, name)
        assert {*record.xla_choices.values()} == {CHOICES_READ.format(config=record.entry.policy)}


def check_pairs(measured: Measurement, count: int = PROCESSES) -> None:
    check_complete(measured, count)
    assert measured.protocol.arms_at_once == PAIRS
    own = {name: processes(measured, name) for name in ARMS}
    assert set.union(*own.values()) == set(range(PAIRS_OF_ARMS * count))
    for name in ARMS[1:]:
        assert len(own["float32"] & own[name]) == count
    assert len(own[BRIDGE] & own["mixed_float16"]) == count
    for one, other in ((files.CONTROL, "mixed_bfloat16"), (files.CONTROL, BRIDGE), (BRIDGE, "mixed_bfloat16")):
        assert not own[one] & own[other]


def check_alone(measured: Measurement, count: int = PROCESSES) -> None:
    check_complete(measured, count)
    assert measured.protocol.arms_at_once == ALONE
    tables = {name: [(row.process, row.round) for row in measured.records[name].times.rounds] for name in ARMS}
    expected = [(process, number) for process in range(count) for number in range(ROUNDS)]
    assert all(table == expected for table in tables.values())


def measured_on(device: Any, folder: Path, serve: Serve = serve_fake) -> Measurement:
    return measure(configs(), "float32", PROTOCOL, Extras(folder / "scratch", {3: folder}), serve, device)


@pytest.mark.usefixtures("without_tensorflow")
def test_arms_that_fit_start_one_after_the_other_and_live_at_once(folder: Path) -> None:
    device = Device(arms=8)
    measured = measured_on(device.read, folder)
    check_complete(measured)
    assert measured.protocol.arms_at_once is None
    assert "arms_at_once" not in measured.protocol.model_dump(exclude_none=True)
    check_choices(measured)
    assert device.most_alive == len(ARMS)
    assert all(processes(measured, name) == set(range(PROCESSES)) for name in ARMS)
    events = [line for line in (folder / "log").read_text().splitlines() if line in ("begin", "end")]
    assert events == ["begin", "end"] * len(ARMS) * PROCESSES


@pytest.mark.usefixtures("without_tensorflow")
def test_cuda_is_asked_once_which_gpu_it_uses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several GPUs of different models; asking takes seconds."""
    machine, asked = mixed(), list[Any]()

    def ask(variables: Any) -> list[str]:
        asked.append(variables)
        return [machine[1].uuid[4:]]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*machine))
    monkeypatch.setattr(cuda, "ask", ask)
    measured = measure(configs(), "float32", PROTOCOL, Extras(), serve_fake)
    assert len(asked) == 1
    assert measured.protocol.processes == PROCESSES


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("arms", [2.5, 4.5])
def test_pairs_live_at_once_where_not_all_arms_fit(
    arms: float, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Device(arms)
    measured = measured_on(device.read, folder)
    check_pairs(measured)
    check_choices(measured)
    assert device.most_alive == (2 if arms < 3 else 3)  # of 4.5 arms, the fourth one would use the reserve
    found = speedups({name: record.times for name, record in measured.records.items()}, "float32", 0.95, PAIRS)
    assert {name: ratios["train"].ratio for name, ratios in found.items()} == {"mixed_bfloat16": 2, "mixed_float16": 4}
    assert all(ratios["train"].processes == PROCESSES for ratios in found.values())
    printed = capsys.readouterr().out
    assert "do not fit on the GPU at once" in printed
    assert f"{len(ARMS)} arms in pairs, in turns of 2 training steps; at most {PROCESSES} processes" in printed


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("has_gpu", [True, False])
def test_what_xla_chose_is_in_the_folder_of_an_arm(
    has_gpu: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    device = unlimited if has_gpu else lambda: None
    measured = measure(
        {"float32": configs()["float32"]}, "float32", PROTOCOL, Extras(folder / "scratch"), serve_fake, device
    )
    record = replace(measured.records["float32"], trace=None)
    _write("float32", record, Context(measured.protocol, 2), {})
    found = read_profile("float32").summary.xla_choices
    path = files.profile_dir("float32") / XLA_CHOICES
    assert path.exists() is has_gpu
    assert found == (dict.fromkeys(range(PROCESSES), digest(path.read_text())) if has_gpu else None)


@pytest.mark.usefixtures("without_tensorflow")
def test_order_of_the_pairs_is_random(folder: Path) -> None:
    measured = measured_on(Device(2.5).read, folder)
    orders = {
        tuple(
            next(iter(processes(measured, name) & set(range(first, first + PAIRS_OF_ARMS)))) - first
            for name in ARMS[1:]
        )
        for first in range(0, PAIRS_OF_ARMS * PROCESSES, PAIRS_OF_ARMS)
    }
    assert len(orders) > 1


@pytest.mark.usefixtures("without_tensorflow")
def test_arms_live_one_after_the_other_where_no_two_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = Device(1.5)
    measured = measured_on(device.read, folder)
    check_alone(measured)
    check_choices(measured)
    assert device.most_alive == 1
    assert "one after the other, in random order" in capsys.readouterr().out
    traces = [line for line in (folder / "log").read_text().splitlines() if line.startswith("trace")]
    assert len(traces) == len(ARMS) - 1


@pytest.mark.usefixtures("without_tensorflow")
def test_worker_that_runs_out_of_memory_beside_others_leads_to_pairs(folder: Path) -> None:
    check_pairs(measured_on(unlimited, folder, serve_out_of_memory_beside_two))


@pytest.mark.usefixtures("without_tensorflow")
def test_worker_that_dies_beside_another_leads_to_one_after_the_other(folder: Path) -> None:
    check_alone(measured_on(unlimited, folder, serve_dies_beside_another))


@pytest.mark.usefixtures("without_tensorflow")
def test_rounds_before_the_memory_became_short_do_not_count(folder: Path) -> None:
    """From the second process of every arm on, other programs leave room for two."""
    measured = measured_on(Device(8, later=2.5, starts=len(ARMS) + 2).read, folder)
    check_pairs(measured)
    check_choices(measured)


def short(folder: Path, method: str, most: int) -> Serve:
    (folder / "short").write_text(f"{method} {most}")
    return serve_short_of_memory


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("method", ["prepare_cached", "infer"])
def test_turn_that_runs_out_of_memory_beside_others_leads_to_pairs(
    method: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_pairs(measured_on(unlimited, folder, short(folder, method, 2)))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "ran out of memory" in line]
    assert f" ran out of memory beside {'float32, ' if 'float32 ran' not in line else ''}" in line
    assert line.endswith(f"(OOM in {method}); what was timed so far does not count")


@pytest.mark.usefixtures("without_tensorflow")
def test_turn_that_runs_out_of_memory_beside_another_leads_to_one_after_the_other(folder: Path) -> None:
    check_alone(measured_on(unlimited, folder, short(folder, "train_round", 1)))


@pytest.mark.usefixtures("without_tensorflow")
def test_turn_that_runs_out_of_memory_where_the_memory_of_the_gpu_is_unknown(folder: Path) -> None:
    (folder / "gpu").touch()
    measured = measured_on(lambda: None, folder, short(folder, "train_round", 2))
    assert measured.protocol.arms_at_once == PAIRS
    assert list(measured.records) == [*ENTRIES, files.CONTROL]  # oneDNN is no setting of a GPU, so there is no bridge


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("method", ["train_round", "same_weights"])
def test_arm_that_runs_out_of_memory_alone_ends_the_stage_with_the_numbers(method: str, folder: Path) -> None:
    with pytest.raises(ProfileError, match=r"^profile: \w+ does not fit on the GPU: it used 3,072 MiB") as raised:
        measured_on(unlimited, folder, short(folder, method, 0))
    assert "\n" not in str(raised.value)
    assert f"OOM in {method}" in str(raised.value)
    assert "lower train.batch_size (8)" in str(raised.value)
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("method", ["trace", "same_weights"])
def test_trace_and_weights_for_which_the_memory_is_too_short_beside_others_follow_alone(
    method: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = measured_on(unlimited, folder, short(folder, method, 1))
    check_complete(measured)
    assert measured.protocol.arms_at_once is None  # what was timed counts
    assert all(processes(measured, name) == set(range(PROCESSES)) for name in ARMS)
    assert capsys.readouterr().out.count("ran out of memory after its timing") == 1
    assert list((folder / "scratch").rglob("half*")) == []
    log = (folder / "log").read_text().splitlines()
    alone = len(ARMS) - 1 if method == "trace" else len(ENTRIES) - 1
    assert log.count("begin") == len(ARMS) * PROCESSES + alone


@pytest.mark.usefixtures("without_tensorflow")
def test_trace_that_does_not_fit_beside_another_follows_the_pairs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_pairs(measured_on(Device(2.5).read, folder, short(folder, "trace", 1)))
    assert capsys.readouterr().out.count("ran out of memory after its timing") == 1  # and is not tried again


@pytest.mark.usefixtures("without_tensorflow")
def test_measurement_that_was_dropped_does_not_shorten_the_next_one(folder: Path) -> None:
    """Other programs take the memory in the last process; a measurement then begins anew, with all of its time."""
    device, plans = Device(8, later=2.5, starts=(PROCESSES - 1) * len(ARMS) + 2), list[Plan]()

    def recorded(profile: ProfileParams, costs: Costs) -> Plan:
        plans.append(make_plan(profile, costs))
        return plans[-1]

    began_s = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.profile.runner.make_plan", recorded)
        check_pairs(measured_on(device.read, folder))
    first, second = plans
    assert first.at_once is None
    assert second.at_once == PAIRS
    assert second.spent_s < 0.1 < time.monotonic() - began_s


@pytest.mark.usefixtures("without_tensorflow")
def test_arm_that_does_not_fit_alone_ends_the_stage(folder: Path) -> None:
    with pytest.raises(ProfileError, match=r"^profile: float32 does not fit on the GPU: it used 3,072 MiB") as raised:
        measured_on(Device(8).read, folder, serve_always_out_of_memory)
    assert "\n" not in str(raised.value)
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("without_tensorflow")
def test_baseline_and_control_that_do_not_fit_at_once_are_measured_one_after_the_other(folder: Path) -> None:
    pair = {name: config for name, config in configs().items() if name in ("float32", files.CONTROL)}
    measured = measure(pair, "float32", PROTOCOL, Extras(), serve_fake, Device(1.5).read)
    assert measured.protocol.arms_at_once == ALONE
    measured = measure(configs(), "absent", PROTOCOL, Extras(), serve_fake, Device(2.5).read)
    assert measured.protocol.arms_at_once == ALONE  # without a baseline there are no pairs


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory, prepared_template: Path) -> Iterator[Path]:
    folder, before = tmp_path_factory.mktemp("at_once"), Path.cwd()
    shutil.copytree(prepared_template, folder / files.PREPARED)
    os.chdir(folder)
    yield folder
    os.chdir(before)


def serve_limited(connection: Connection, config: ArmConfig) -> None:
    """A worker that trains; while three live at once, its turn of single steps runs out of memory."""
    from stages.profile import worker
    from stages.tensorflow_import import tf

    class Limited(worker.Worker):
        def train_steps(self, steps: int, lead_in: int = 0) -> list[float]:
            if alive_workers() > 2:
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[8,64]")
            return super().train_steps(steps, lead_in)

    alive_workers()
    worker.serve(connection, Limited, config)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "alone", "out of memory"])
def test_workers_that_train(kind: str, prepared_folder: Path, tmp_path: Path) -> None:
    extras = Extras(tmp_path / "scratch")
    serve = serve_limited if kind == "out of memory" else serve_worker
    device = {"pairs": Device(2.5).read, "alone": Device(1.5).read}.get(kind, unlimited)
    once = PROTOCOL.model_copy(update={"processes": 1})  # each process takes seconds to start and compile
    measured = measure(configs(), "float32", once, extras, serve, device)
    measured = replace(measured, same_weights={name: {} for name in list(ENTRIES)[1:]})
    (check_alone if kind == "alone" else check_pairs)(measured, 1)
    assert all(
        record.trace is None or list(record.trace.directory.rglob("*.xplane.pb"))
        for record in measured.records.values()
    )
