"""The engine, with worker processes that answer at once: turns, repeats, what is kept, and what may fail."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from halfstep.errors import ProfileError
from halfstep.machine.fingerprint import fingerprint
from halfstep.machine.gpus import cuda
from halfstep.params.schema import ModelParams, Params, ProfileParams, TaskParams, TrainParams
from halfstep.profile import compile_cache, confirming, extras, runner
from halfstep.profile.arms import Arms, order_of_arms
from halfstep.profile.confirming import confirm
from halfstep.profile.records import FULL_DISK, FirstStep, Measurement
from halfstep.profile.repeats import Repeats, amounts
from halfstep.profile.runner import MeasurementContext, measure
from halfstep.profile.worker_process import Serve
from halfstep.results.confirmation import Confirmation, Intervention
from halfstep.system import files, fork_server
from halfstep.tasks.trial import Trial
from tests.fake_nvml import FakeNvml
from tests.nvml_recordings import a100, mixed
from tests.profile import fake_worker
from tests.profile.arm_records import ARMS, BRIDGE, ENTRIES
from tests.profile.fake_worker import (
    FOLDER,
    IN_FLOAT32,
    STEP_MS,
    children,
    events,
    fail,
    serve_always_out_of_memory,
    serve_fake,
    set_noise,
    set_step,
)

REPEATS, ROUNDS = 4, 8
CANDIDATES = ("mixed_bfloat16", "mixed_float16")
MEASURES = ("train", "inference_b1")


@pytest.fixture(scope="module")
def of_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the workers. All are forked from the same servers, which have not imported TensorFlow."""
    fork_server.stop_servers()  # of other tests
    folder = tmp_path_factory.mktemp("workers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        patch.setattr(fork_server, "PRELOADED", fake_worker.__name__)
        patch.setattr(runner, "stop_servers", lambda: None)
        yield folder
        fork_server.stop_servers()


@pytest.fixture(autouse=True)
def folder(of_workers: Path) -> Path:
    for path in of_workers.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return of_workers


def configs(*names: str) -> dict[str, Trial]:
    train = TrainParams(batch_size=8)
    arms = {name: Trial(TaskParams(), ModelParams(), train, ENTRIES[name], 0) for name in names or ENTRIES}
    return arms | {files.CONTROL: arms["float32"]}


def profile_params(**changes: Any) -> ProfileParams:
    values: dict[str, Any] = {
        "processes": REPEATS,
        "rounds": ROUNDS,
        "steps_per_round": 2,
        "warmup_steps": 1,
        "trace_steps": 2,
        "inference_batch_sizes": (1,),
        "inference_calls_per_round": 2,
        "target_precision": 1e-4,
        "seed": 1,
    }
    return ProfileParams(**(values | changes))


def measured(
    folder: Path,
    profile: ProfileParams | None = None,
    serve: Serve = serve_fake,
    arms: Mapping[str, Trial] | None = None,
    *,
    min_speedup: float = 1.05,
    trained: bool = True,
    written: bool = True,
    digest: str = "a",
) -> Measurement:
    """Measures, and notes that the results are written; `digest` is of what was trained."""
    profile = profile or profile_params()
    kept = Repeats(folder / "kept", amounts(profile, min_speedup), {3: digest} if trained else {})
    context = MeasurementContext(trained={3: folder} if trained else {}, min_speedup=min_speedup)
    measurement = measure(arms or configs(), "float32", profile, context, kept, serve)
    if written:
        kept.finish()
    return measurement


def own_warnings(measurement: Measurement) -> list[str]:
    """The warnings but that other programs kept the machine busy, as when tests run side by side."""
    return [line for line in measurement.protocol.warnings if not line.startswith("Other programs")]


def rounds_of(measurement: Measurement, name: str) -> Counter[int]:
    """Number of rounds of training by repeat."""
    return Counter(row.process for row in measurement.records[name].times.rounds)


@pytest.mark.parametrize("interleave", [True, False], ids=["in turns", "one at a time"])
def test_all_arms_are_measured_and_their_extras(interleave: bool, folder: Path) -> None:
    measurement = measured(folder, profile_params(interleave=interleave))
    assert set(measurement.records) == {*ARMS}
    assert (measurement.protocol.interleaved, measurement.protocol.processes) == (interleave, REPEATS)
    for name in ("float32", *CANDIDATES):
        record = measurement.records[name]
        assert rounds_of(measurement, name) == dict.fromkeys(range(REPEATS), ROUNDS)
        assert {row.process for row in record.times.calls} == set(range(REPEATS))
        assert {row.process for row in record.times.steps} == set(range(REPEATS))
        assert {row.process for row in record.times.account} == set(range(REPEATS))
        assert {row.process for row in record.times.input_rounds} == set(range(REPEATS))
        assert record.calibration is not None
        assert record.trace is not None
        assert set(record.same_weights) == ({3} if name in CANDIDATES else set())
        assert record.failed == {}
        rows = [(row.process, row.round) for row in record.times.rounds]
        assert len(rows) == len({*rows})
    assert own_warnings(measurement) == []
    assert children() == []


def test_interpreter_is_started_once_for_each_set_of_variables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = set()
    original = fork_server.start_server

    def started(variables: Mapping[str, str], preload: str | None = None, python: str | None = None) -> Any:
        server = original(variables, preload, python)
        servers.add(getattr(server, "_forkserver_pid"))  # noqa: B009
        return server

    monkeypatch.setattr(fork_server, "start_server", started)
    measured(folder)
    assert len(servers) == 2  # with oneDNN, and without


def test_order_differs_between_occasions() -> None:
    def orders(occasion: str | None) -> list[list[str]]:
        seed = ProfileParams(occasion=occasion).order_seed
        return [list(order_of_arms("abcd", repeat, seed)) for repeat in range(0, 10, 2)]

    assert orders("monday") == orders("monday")
    assert orders("monday") != orders("tuesday")
    assert orders(None) == [order_of_arms("abcd", repeat, "0") for repeat in range(0, 10, 2)]


def test_arms_take_turns_in_a_random_order_and_its_reverse(folder: Path) -> None:
    measurement = measured(folder, arms=configs("float32", "mixed_bfloat16"))
    names = ("float32", "mixed_bfloat16", files.CONTROL)
    orders = {}
    for process in range(REPEATS):
        for number in range(ROUNDS):
            rows = [
                (row.position, name)
                for name in names
                for row in measurement.records[name].times.rounds
                if (row.process, row.round) == (process, number)
            ]
            orders[process, number] = [name for _, name in sorted(rows)]
    for (process, number), order in orders.items():
        if number % 2 == 0:
            assert orders[process, number + 1] == order[::-1]
    assert len({tuple(order) for order in orders.values()}) > 3


@pytest.mark.parametrize("interleave", [True, False], ids=["in turns", "one at a time"])
def test_turns_on_a_cached_batch_follow_those_on_the_input_and_come_first_in_the_next_round(
    interleave: bool, folder: Path
) -> None:
    """In every repeat: what drifts in an arm's process, or in the machine, adds to both in the same way."""
    measurement = measured(folder, profile_params(interleave=interleave))
    for name in ("float32", *CANDIDATES):
        rows = [(row.process, row.round, row.batches) for row in measurement.records[name].times.input_rounds]
        most = max(number for _, number, _ in rows) + 1
        assert most in range(2, 7, 2)
        assert rows == [
            (process, number, batches)
            for process in range(REPEATS)
            for number in range(most)
            for batches in ("pipeline", "cached")[:: -1 if number % 2 else 1]
        ]
    assert measurement.records[files.CONTROL].times.input_rounds == []


def test_control_takes_part_in_all_rounds_of_its_repeats(folder: Path) -> None:
    measurement = measured(folder, profile_params(processes=4, rounds=6))
    by_repeat = rounds_of(measurement, files.CONTROL)
    by_repeat.pop(3, None)  # what it costs decides
    assert by_repeat == dict.fromkeys(range(3), 6)


def test_arms_that_are_not_in_turn_stand_still(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []
    original = Arms._turn

    def turn(self: Arms, kind: type[Any], worker: Any, method: str, *arguments: Any) -> Any:
        result = original(self, kind, worker, method, *arguments)
        others = [other for other in self._started if other is not worker]
        seen.append((method, tuple(status(other._process.pid) for other in others)))
        return result

    monkeypatch.setattr(Arms, "_turn", turn)
    measurement = measured(folder, profile_params(processes=2, rounds=2))
    assert {method for method, _ in seen} >= {"train_round", "train_steps", "infer", "train_round_cached"}
    assert {status for _, statuses in seen for status in statuses} == {psutil.STATUS_STOPPED}
    assert own_warnings(measurement) == []  # our own signals are not taken for those of others


def status(pid: int | None) -> str:
    """Of a process, a little later: a signal takes a moment."""
    for _ in range(100):
        if (state := psutil.Process(pid).status()) == psutil.STATUS_STOPPED:
            break
        time.sleep(0.005)
    return str(state)


def test_bridging_arm_is_measured_only_where_its_candidate_may_be_adopted(folder: Path) -> None:
    """float16 is four times as fast: nothing is worth having where six times is asked."""
    set_noise(folder, 0.01)
    assert BRIDGE in measured(folder / "a").records
    measurement = measured(folder / "b", min_speedup=6.0)
    assert BRIDGE not in measurement.records
    assert measurement.protocol.bridge_seconds is None


def test_each_measure_ends_for_itself(folder: Path) -> None:
    """4 and 2 ms instead of 8 ms are clear; a precision that nothing reaches lets the rest go on to the last round."""
    set_noise(folder, 0.01)
    measurement = measured(folder, profile_params(processes=12, target_precision=1e-4))
    endings = measurement.protocol.endings
    assert set(endings) == {*CANDIDATES}
    for by_measure in endings.values():
        assert set(by_measure) == {*MEASURES}
        assert {ending.ended_by for ending in by_measure.values()} == {"decided"}
        assert {ending.confidence for ending in by_measure.values()} == {0.995}
    assert measurement.protocol.processes == 3  # the first look


def test_measure_that_ended_is_not_measured_again(folder: Path) -> None:
    """bfloat16 is decided, float16 has the speed that is asked and stays open."""
    set_noise(folder, 0.01)
    set_step(folder, "mixed_float16", 8.0 / 1.05)
    measurement = measured(folder, profile_params(processes=6))
    endings = measurement.protocol.endings
    assert {ending.ended_by for ending in endings["mixed_bfloat16"].values()} == {"decided"}
    assert {ending.repeats for ending in endings["mixed_float16"].values()} == {6}
    assert set(rounds_of(measurement, "mixed_bfloat16")) == {0, 1, 2}
    assert set(rounds_of(measurement, "float32")) == set(range(6))


def test_measurement_ends_at_its_precision(folder: Path) -> None:
    set_noise(folder, 0.01)
    measurement = measured(folder, profile_params(processes=12, target_precision=0.2))
    endings = measurement.protocol.endings["mixed_bfloat16"]
    assert {ending.ended_by for ending in endings.values()} == {"target_precision"}


@pytest.mark.parametrize("interleave", [True, False], ids=["in turns", "one at a time"])
def test_measurement_that_failed_goes_on_after_its_complete_repeats(interleave: bool, folder: Path) -> None:
    profile = profile_params(interleave=interleave)
    arms = configs("float32", "mixed_bfloat16")
    fail(folder, "train_steps", "mixed_bfloat16", after=2)
    with pytest.raises(ProfileError, match="train_steps does not work here"):
        measured(folder, profile, arms=arms)
    (folder / "fail-train_steps-mixed_bfloat16").unlink()
    started = events(folder).count("start mixed_bfloat16")
    measurement = measured(folder, profile, arms=arms)
    assert measurement.resumed == 2
    assert measurement.protocol.processes == REPEATS
    assert events(folder).count("start mixed_bfloat16") - started <= 3  # two repeats, and who finds the device
    assert rounds_of(measurement, "mixed_bfloat16") == dict.fromkeys(range(REPEATS), ROUNDS)
    assert events(folder).count("trace mixed_bfloat16") == 1


def test_finished_measurement_is_added_to_only_if_more_is_asked(folder: Path) -> None:
    arms = configs("float32", "mixed_bfloat16")
    first = measured(folder, arms=arms)
    more = measured(folder, profile_params(processes=6), arms=arms)
    assert (more.resumed, more.protocol.processes) == (REPEATS, 6)
    before, after = first.records["float32"].times.rounds, more.records["float32"].times.rounds
    assert [row.round_time_ms for row in after[: len(before)]] == [row.round_time_ms for row in before]
    anew = measured(folder, profile_params(processes=6), arms=arms)
    assert anew.resumed == 0
    assert anew.records["float32"].times.rounds[0].round_time_ms != before[0].round_time_ms


def test_weights_that_are_trained_later_are_evaluated_and_no_repeat_is_timed_again(folder: Path) -> None:
    arms = configs("float32", "mixed_bfloat16")
    first = measured(folder, arms=arms, trained=False)
    assert first.records["mixed_bfloat16"].same_weights == {}
    later = measured(folder, arms=arms)
    assert (later.resumed, later.protocol.processes) == (REPEATS, REPEATS)
    before, after = first.records["float32"].times.rounds, later.records["float32"].times.rounds
    assert [row.round_time_ms for row in after] == [row.round_time_ms for row in before]
    assert list(later.records["mixed_bfloat16"].same_weights) == [3]
    anew = measured(folder, arms=arms, digest="b")
    assert anew.resumed == 0


def test_other_weights_are_evaluated_where_a_measurement_goes_on(folder: Path) -> None:
    arms = configs("float32", "mixed_bfloat16")
    measured(folder, arms=arms, written=False)
    again = measured(folder, arms=arms, written=False)
    assert events(folder).count("weights mixed_bfloat16") == 1
    other = measured(folder, arms=arms, digest="b")
    assert events(folder).count("weights mixed_bfloat16") == 2
    assert (again.resumed, other.resumed) == (REPEATS, REPEATS)


@pytest.mark.parametrize("processes", [REPEATS, REPEATS + 2], ids=["as much", "more"])
def test_measurement_whose_results_were_not_written_is_taken_over(processes: int, folder: Path) -> None:
    arms = configs("float32", "mixed_bfloat16")
    first = measured(folder, arms=arms, written=False)
    measurement = measured(folder, profile_params(processes=processes), arms=arms)
    assert (measurement.resumed, measurement.protocol.processes) == (REPEATS, processes)
    before, after = (
        [row.round_time_ms for row in item.records["float32"].times.rounds] for item in (first, measurement)
    )
    assert after[: len(before)] == before
    assert len(after) == processes * ROUNDS
    assert measurement.records["float32"].trace is not None


def test_interrupted_measurement_of_which_less_is_asked_now_ends_with_what_there_is(folder: Path) -> None:
    arms = configs("float32", "mixed_bfloat16")
    fail(folder, "train_round", "mixed_bfloat16", after=4 * ROUNDS + 3)
    with pytest.raises(ProfileError, match="train_round does not work here"):
        measured(folder, profile_params(processes=6), arms=arms)
    (folder / "fail-train_round-mixed_bfloat16").unlink()
    measurement = measured(folder, profile_params(processes=2), arms=arms)
    assert (measurement.resumed, measurement.protocol.processes) == (2, 2)
    ending = measurement.protocol.endings["mixed_bfloat16"]["train"]
    assert (ending.ended_by, ending.repeats, ending.looks) == ("rounds", 2, 1)


def test_looks_of_an_earlier_session_stay_paid(folder: Path) -> None:
    arms = configs("float32", "mixed_bfloat16")
    measured(folder, profile_params(processes=6), arms=arms)
    measurement = measured(folder, profile_params(processes=10), arms=arms)
    ending = measurement.protocol.endings["mixed_bfloat16"]["train"]
    assert (ending.repeats, ending.looks) == (10, 5)  # after 3, 4, 6 and 8 repeats, and the last
    assert ending.last_looks == 2  # after 6 repeats all that was asked for was measured
    assert ending.confidence == pytest.approx(1 - 0.57 * 0.035)


def test_looks_of_a_measurement_that_failed_stay_paid_if_more_is_asked(folder: Path) -> None:
    arms = configs("float32", "mixed_bfloat16")
    fail(folder, "train_round", "mixed_bfloat16", after=4 * ROUNDS + 3)
    with pytest.raises(ProfileError, match="train_round does not work here"):
        measured(folder, profile_params(processes=6), arms=arms)
    (folder / "fail-train_round-mixed_bfloat16").unlink()
    measurement = measured(folder, profile_params(processes=7), arms=arms)
    ending = measurement.protocol.endings["mixed_bfloat16"]["train"]
    assert (ending.repeats, ending.looks) == (7, 4)  # after 3, 4 and 6 repeats, and the last


def test_damaged_repeat_is_measured_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = configs("float32", "mixed_bfloat16")
    measured(folder, arms=arms)
    (folder / "kept" / "repeat-002.json").write_bytes(b"0")
    measurement = measured(folder, profile_params(processes=5), arms=arms)
    assert (measurement.resumed, measurement.protocol.processes) == (2, 5)
    assert "repeat-002.json is damaged" in capsys.readouterr().out


EXTRAS = [
    ("trace", extras.TRACE),
    ("same_weights", extras.SAME_WEIGHTS),
    ("prepare_cached", extras.CACHED),
    ("train_round_cached", extras.CACHED),
    ("account_window", extras.ACCOUNT),
    ("end_account", extras.ACCOUNT),
]


@pytest.mark.parametrize(
    ("method", "what", "interleave"), [*((*extra, True) for extra in EXTRAS), ("trace", extras.TRACE, False)]
)
def test_extra_that_fails_is_one_warning_line(
    method: str, what: str, interleave: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(folder, method, "mixed_bfloat16")
    measurement = measured(folder, profile_params(interleave=interleave))
    line = f"profile: warning: {extras.consequence('mixed_bfloat16', what)} ({method} does not work here)"
    assert capsys.readouterr().out.splitlines().count(line) == 1
    assert line.removeprefix("profile: warning: ") in measurement.protocol.warnings
    record = measurement.records["mixed_bfloat16"]
    assert set(record.failed) == {what}
    assert rounds_of(measurement, "mixed_bfloat16") == dict.fromkeys(range(REPEATS), ROUNDS)
    assert (record.trace is None) == (what == extras.TRACE)
    assert (record.same_weights == {}) == (what == extras.SAME_WEIGHTS)
    assert not record.times.input_rounds or what != extras.CACHED
    assert (record.times.account == []) == (what == extras.ACCOUNT)
    assert measurement.records["mixed_float16"].times.account != []
    assert measurement.records["mixed_float16"].trace is not None
    assert children() == []


def test_error_in_the_timing_ends_the_stage_and_all_workers(folder: Path) -> None:
    fail(folder, "infer", "mixed_float16")
    with pytest.raises(ProfileError, match="infer does not work here"):
        measured(folder)
    assert children() == []


def test_arm_that_does_not_fit_ends_the_stage(folder: Path) -> None:
    with pytest.raises(ProfileError, match=r"^profile: \w+: train\.batch_size is 8, too large for the memory"):
        measured(folder, serve=serve_always_out_of_memory)
    assert children() == []


def test_gpu_measures_one_arm_at_a_time_in_an_order_and_its_reverse(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gpu").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(a100()))
    measurement = measured(folder)
    starts = [line.split()[1] for line in events(folder) if line.startswith("start")][1:]  # who finds the device
    assert measurement.protocol.interleaved is False
    assert starts[:4] == ["float32", "mixed_bfloat16", "mixed_float16", "float32"]  # the last is the control
    assert starts[4:8] == starts[:4][::-1]


@pytest.mark.parametrize("known", [True, False])
def test_cuda_is_asked_once_which_gpu_it_uses(known: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several GPUs of different models; asking takes seconds. The device of the arms decides about turns."""
    machine, asked = mixed(), list[Any]()

    def ask(variables: Any) -> list[str]:
        asked.append(variables)
        return [machine[1].uuid[4:]]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*machine))
    monkeypatch.setattr(cuda, "ask", ask)
    if known:
        (folder / "gpu").touch()
    measurement = measured(folder)
    assert len(asked) == 1
    assert measurement.protocol.interleaved is not known


@pytest.mark.usefixtures("cold_python")
def test_workers_end_with_the_server(folder: Path) -> None:
    """A stage that is killed leaves no process that stands still."""
    fork_server.stop_servers()  # the process below starts its own
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        try:
            measured(folder, profile_params(processes=50, rounds=1000))
        finally:
            os._exit(0)
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s and not (
        (folder / "log").exists() and events(folder).count("turn float32") > 20
    ):
        time.sleep(0.05)
    children = psutil.Process(pid).children(recursive=True)
    assert len(children) >= 4
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert [child.name() for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []


def test_wall_clock_that_is_set_does_not_change_how_long_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    lasted_s = time.time() - psutil.Process().create_time()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert time.monotonic() - MeasurementContext().began_s == pytest.approx(lasted_s, abs=1.0)


BF16 = "mixed_bfloat16"


def confirmed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, promised_ms: float = 0.8, **profile: object
) -> Confirmation | None:
    (folder / "noise").write_text("0.01")
    measurement = measured(folder)
    monkeypatch.setattr(runner, "measure", partial(runner.measure, serve=serve_fake))
    settings = Params(profile=profile_params(**profile))
    change = Intervention(variant=BF16, layers=("norm",), promised_ms=promised_ms)
    return confirm(change, configs(), settings, measurement, Repeats(folder / "kept", amounts(settings.profile, 1.05)))


def test_change_is_measured_beside_the_candidate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    confirmation = confirmed(folder, monkeypatch, confirm=True)
    assert confirmation is not None
    assert confirmation.value == pytest.approx((1 - IN_FLOAT32) * STEP_MS[BF16], rel=0.05)
    assert (confirmation.outcome, confirmation.repeats) == ("confirmed", 3)
    assert "the traces promise 0.8 ms a step with 'norm' of mixed_bfloat16 in float32" in capsys.readouterr().out


def test_promise_that_is_not_kept_is_refuted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    confirmation = confirmed(folder, monkeypatch, promised_ms=3.0, confirm=True)
    assert confirmation is not None
    assert confirmation.outcome == "refuted"


def test_it_is_left_out_where_it_takes_too_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "_MOST_S", 0.0)
    assert confirmed(folder, monkeypatch) is None
    assert confirmed(folder, monkeypatch, confirm=False) is None


def test_without_a_plan_there_is_nothing_to_try(folder: Path) -> None:
    change = Intervention(variant=BF16, layers=("norm",), promised_ms=1.0)
    assert (
        confirm(change, {}, Params(), Measurement({}), Repeats(folder / "none", amounts(ProfileParams(), 1.05))) is None
    )


@pytest.fixture
def known_machine() -> None:
    """Compiled programs may be kept, and there are none."""
    files.write_json(files.ENVIRONMENT_FILE, fingerprint())
    shutil.rmtree(compile_cache.FOLDER, ignore_errors=True)


def compilations(folder: Path) -> list[str]:
    """The programs that were compiled and loaded, in order; `0` or `1`, and `copy` for the copy's."""
    return [event for event in events(folder) if event.startswith(("compile", "load"))]


@pytest.mark.usefixtures("known_machine")
@pytest.mark.parametrize("on_gpu", [False, True])
def test_arms_compile_once_on_a_cpu_and_twice_on_a_gpu(
    on_gpu: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's tuner picks other kernels when it compiles again: two draws for each arm and for the copy."""
    if on_gpu:
        (folder / "gpu").touch()
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(a100()))
    measurement = measured(folder, profile_params(processes=4), arms=configs("float32", "mixed_bfloat16"))
    found = Counter(compilations(folder))
    numbers = ("0", "1") if on_gpu else ("0",)
    assert measurement.repeats == 4
    assert {event: found[event] for event in found if event.startswith("compile")} == {
        f"compile {who}{number}": count for number in numbers for who, count in (("", 2), ("copy-", 1))
    }
    assert found["load 0"] >= (2 if on_gpu else 6)
    record = measurement.records["mixed_bfloat16"]
    assert (record.first_step, record.loaded_s) == (FirstStep(5.0, 6.0), 0.5)


@pytest.mark.usefixtures("known_machine")
@pytest.mark.parametrize("reason", ["what was loaded is of another machine", FULL_DISK])
def test_process_that_fails_with_its_programs_starts_once_more_without(
    reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "programs-fail").write_text(reason)
    measurement = measured(folder, profile_params(processes=2))
    assert measurement.repeats == 2
    assert f"{reason}; its programs are compiled anew" in capsys.readouterr().out
    assert not [path for path in compile_cache.FOLDER.rglob("program") if reason == FULL_DISK]
