"""Readings of a GPU after each round: throttling, other programs, and a driver that stops answering."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from halfstep.machine.gpus import visible
from halfstep.params.schema import ProfileParams
from halfstep.profile import gpu_conditions
from halfstep.profile.arms import Arms
from halfstep.profile.gpu_conditions import GpuMonitor, warnings
from halfstep.profile.records import ArmRecord, Measurement
from halfstep.profile.worker_process import serve_worker
from halfstep.results.profile import GpuConditions
from tests.fake_nvml import Device, FakeNvml, error
from tests.nvml_recordings import HOST_PIDS, a100, capped_geforce, mixed, partitioned_a100, t4
from tests.profile.arm_records import arm_record
from tests.profile.test_plan import plan

THERMAL, POWER = pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, pynvml.NVML_FI_DEV_PERF_POLICY_POWER
ROUND_S = 0.25


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still between rounds."""
    fake_clock = SimpleNamespace(now_s=100.0)
    fake = SimpleNamespace(monotonic=lambda: fake_clock.now_s, perf_counter=lambda: fake_clock.now_s)
    monkeypatch.setattr(gpu_conditions, "time", fake)
    return fake_clock


class Measuring:
    """A monitor whose rounds the test runs."""

    def __init__(self, monitor: GpuMonitor, library: FakeNvml, clock: SimpleNamespace) -> None:
        self.monitor, self.library, self._clock = monitor, library, clock

    def round(self) -> bool | None:
        self._clock.now_s += ROUND_S
        return self.monitor.round_ended()

    def condition(self) -> GpuConditions:
        (gpu,) = self.monitor.conditions()
        return gpu


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> Any:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)

    @contextmanager
    def start(*devices: Device) -> Iterator[Measuring]:
        library = FakeNvml(*devices)
        monkeypatch.setitem(sys.modules, "pynvml", library)
        monitor = GpuMonitor(visible())
        with monitor.opened():
            monitor.between_processes()
            with monitor.measuring():
                yield Measuring(monitor, library, clock)
        assert library.depth == 0

    return start


def test_machine_without_a_driver_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise error("DRIVER_NOT_LOADED")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    monitor = GpuMonitor(visible())
    with monitor.opened(), monitor.measuring():
        monitor.between_processes()
        assert monitor.round_ended() is None
    assert monitor.conditions() == ()


def test_quiet_gpu_is_not_throttled(measuring: Any) -> None:
    device = a100()
    device.counters_ns = {THERMAL: 5_000_000_000, POWER: 7_000_000_000}  # from before
    with measuring(device) as run:
        assert [run.round() for _ in range(4)] == [False] * 4
        device.answers["ClockInfo"], device.answers["Temperature"] = 1410, 61
        assert [run.round() for _ in range(4)] == [False] * 4
    condition = run.condition()
    assert (condition.readings, condition.throttled, condition.reasons) == (8, 0.0, {})
    assert (condition.sm_clock_mhz, condition.max_sm_clock_mhz) == ((1080, 1410), 1410)
    assert (condition.temperature_c, condition.power_w, condition.power_limit_w) == ((61, 83), (146.0, 146.0), 400.0)
    assert (condition.uuid, condition.identified, condition.failure) == (device.uuid, True, None)
    assert list(warnings((condition,))) == []


@pytest.mark.parametrize(("share", "throttled"), [(0.0, False), (0.009, False), (0.011, True), (0.4, True)])
def test_rounds_are_throttled_by_the_thermal_counter(share: float, throttled: bool, measuring: Any) -> None:
    device = a100()
    device.counters_ns = {THERMAL: 0, POWER: 0}
    with measuring(device) as run:
        assert run.round() is False
        device.counters_ns[THERMAL] += int(share * ROUND_S * 1e9)
        assert run.round() is throttled
        assert run.round() is False
    condition = run.condition()
    assert condition.throttled == pytest.approx(throttled / 3)
    assert condition.reasons == ({"sw_thermal_slowdown": 1 / 3} if throttled else {})
    (line,) = warnings((condition,)) if throttled else ("",)
    assert line.startswith(f"{device.name} was throttled (sw thermal slowdown) in 33% of the rounds") is throttled


def test_throttling_before_the_first_round_does_not_count(measuring: Any) -> None:
    device = a100()
    device.counters_ns = {THERMAL: 0}
    with measuring(device) as run:
        run.round()
        device.counters_ns[THERMAL] += 10**9
        with run.monitor.measuring():  # the next processes
            assert run.round() is False


def test_older_function_is_asked_where_a_driver_has_no_fields(measuring: Any) -> None:
    device = t4()
    device.violations_ns = {pynvml.NVML_PERF_POLICY_THERMAL: 0}
    with measuring(device) as run:
        device.violations_ns[pynvml.NVML_PERF_POLICY_THERMAL] += int(0.1 * ROUND_S * 1e9)
        assert run.round() is True
        assert run.round() is False
        assert run.library.calls.count("CurrentClocksEventReasons") == 1  # not supported: not asked again
    condition = run.condition()
    assert condition.reasons == {"sw_thermal_slowdown": 0.5}
    assert condition.sm_clock_mhz is condition.power_w is condition.temperature_c is None


@pytest.mark.parametrize(
    ("flag", "reason", "throttled"),
    [
        ("SwThermalSlowdown", "sw_thermal_slowdown", True),
        ("SyncBoost", "sync_boost", False),
        ("ApplicationsClocksSetting", "application_clocks", False),
        ("GpuIdle", None, False),
    ],
)
def test_flags_are_used_where_there_is_no_counter(
    flag: str, reason: str | None, throttled: bool, measuring: Any
) -> None:
    device = a100()
    device.set_flags(flag)
    with measuring(device) as run:
        assert run.round() is throttled
    assert run.condition().reasons == ({reason: 1.0} if reason else {})


@pytest.mark.parametrize("name", ["HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"])
def test_slowdown_by_the_hardware_is_throttling(name: str, measuring: Any) -> None:
    device = a100()
    device.answers["CurrentClocksEventReasons"] = error("FUNCTION_NOT_FOUND")  # a driver before 535
    device.answers["CurrentClocksThrottleReasons"] = getattr(pynvml, f"nvmlClocksThrottleReason{name}")
    with measuring(device) as run:
        assert run.round() is True
    (reason,) = run.condition().reasons
    assert reason.replace("_", "") == name.lower()


def test_power_cap_is_information(measuring: Any) -> None:
    with measuring(capped_geforce()) as run:
        assert [run.round() for _ in range(3)] == [False] * 3
    condition = run.condition()
    assert (condition.throttled, condition.reasons) == (0.0, {"sw_power_cap": 1.0})
    assert list(warnings((condition,))) == []


@pytest.mark.parametrize("counters_ns", [{}, {POWER: 10**9}])
def test_gpu_that_does_not_say_whether_heat_slows_it_is_not_known(counters_ns: dict[int, int], measuring: Any) -> None:
    device = t4()
    device.counters_ns = counters_ns
    with measuring(device) as run:
        assert run.round() is None
    assert run.monitor.conditions() == ()


@pytest.mark.parametrize("kind", ["GPU_IS_LOST", "UNKNOWN"])
def test_driver_that_dies_does_not_stop_the_measurement(kind: str, measuring: Any) -> None:
    device = a100()
    device.counters_ns = {THERMAL: 0}
    with measuring(device) as run:
        assert run.round() is False
        run.library.failing = error(kind)
        assert [run.round() for _ in range(3)] == [None] * 3
        calls = len(run.library.calls)
        run.monitor.between_processes()
        assert run.round() is None
        assert len(run.library.calls) == calls  # it is not asked again
    condition = run.condition()
    assert (condition.readings, condition.failure) == (1, str(error(kind)))
    (line,) = warnings((condition,))
    assert line == f"the driver of {device.name} stopped answering ({error(kind)}), so later rounds may be throttled"


def test_other_programs_are_those_that_are_not_workers(measuring: Any) -> None:
    device = a100()
    with measuring(device) as run:
        device.pids = [os.getpid(), 999_999_999]
        run.round()
    condition = run.condition()
    assert (condition.other_processes, condition.has_own_process_ids) == (1, True)
    (line,) = warnings((condition,))
    assert line.startswith(f"another program used {device.name} during the timing")


def test_process_ids_of_the_host_are_not_taken_for_other_programs(measuring: Any) -> None:
    """In a container: what is listed while workers run may be the workers."""
    device = a100()
    with measuring(device) as run:
        device.pids = list(HOST_PIDS)
        run.round()
    condition = run.condition()
    assert (condition.other_processes, condition.has_own_process_ids) == (0, False)
    assert list(warnings((condition,))) == []


def test_program_that_is_there_between_processes_is_another_one(measuring: Any) -> None:
    device = a100()
    device.pids = [HOST_PIDS[0]]
    with measuring(device) as run:
        device.pids = list(HOST_PIDS)
        run.round()
    condition = run.condition()
    assert (condition.other_processes, condition.has_own_process_ids) == (1, False)


def test_slice_has_the_temperature_of_its_gpu_and_its_own_programs(
    measuring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = partitioned_a100()
    assert whole.slices is not None
    whole.answers["Temperature"] = 31
    whole.set_flags("HwThermalSlowdown")
    used, neighbour = whole.slices[:2]
    neighbour.pids = [999_999_998]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("halfstep.machine.gpus.cuda.ask", lambda _: [used.uuid[4:]])
        with measuring(whole) as run:
            assert run.round() is True
    condition = run.condition()
    assert (condition.name, condition.uuid) == (used.name, used.uuid)
    assert (condition.temperature_c, condition.other_processes) == ((31, 31), 0)


def test_gpu_that_is_not_identified_is_one_of_several(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfstep.machine.gpus.cuda.ask", lambda _: None)
    machine = mixed()
    for device in machine:
        device.set_flags("GpuIdle")
    machine[3].set_flags("HwSlowdown")
    with measuring(*machine) as run:
        assert run.round() is None  # it may be that one, or another
        for device in machine:
            device.set_flags("HwSlowdown")
        assert run.round() is True
    conditions = run.monitor.conditions()
    assert len(conditions) == 5
    assert not any(gpu.identified for gpu in conditions)
    (line,) = warnings(conditions)
    assert line.startswith("it is not known which GPU of this machine was used, one of GeForce GTX 1060 6GB, ")


class FakeWorker:
    """A worker that answers at once."""

    measures = frozenset({"train", "inference_b1", "inference_b8"})
    continued = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def stand_still(self) -> None: ...

    def go_on(self) -> None: ...

    def call(self, kind: type, method: str, *arguments: Any) -> Any:
        return {"times_continued": 0, "train_round": 10.0, "infer": [1.0, 2.0]}[method]


def turns_of(*answers: bool | None) -> tuple[Arms, dict[str, ArmRecord]]:
    records = {name: arm_record() for name in ("float32", "mixed_float16")}
    turns, workers = (
        Arms({}, "float32", ProfileParams(), Measurement({}, records=records), serve_worker),
        cast(Any, [FakeWorker(name) for name in records]),
    )
    turns.begin(0, workers, workers, 0.0)
    turns.is_throttled = itertools.chain(answers).__next__
    return turns, records


def test_rounds_are_marked_in_all_arms() -> None:
    turns, records = turns_of(False, True, None, True, False)
    for number in range(3):
        turns.train(number, plan(5.0))
    turns.infer(0, replace(plan(5.0), calls={1: 2, 8: 2}))
    for record in records.values():
        assert [row.throttled for row in record.times.rounds] == [False, True, None]
        assert [(row.batch_size, row.throttled) for row in record.times.calls] == [(1, True)] * 2 + [(8, False)] * 2
