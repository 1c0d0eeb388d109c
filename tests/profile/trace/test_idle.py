"""What a GPU waited for is found where it was planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.profile.trace import read_trace
from halfstep.profile.trace.idle import idle_of
from halfstep.profile.trace.model import Idle
from halfstep.profile.trace.timeline import traced_steps
from halfstep.profile.trace.xspace import parse
from tests.profile.trace.xspaces import HOST, Kernel, Space, gpu_space

GPU = "/device:GPU:0"
STEPS, STEP_US, KERNEL_US = 4, 10_000, 3_000
LAUNCHER, OTHER_THREAD = "tf_gpu_private", "tf_data_iterator_get_next"


def planted(folder: Path, **waits_us: int) -> Idle:
    """The idle time of a trace with these waits."""
    found = idle_of(parse(written(folder, **waits_us)).planes)
    assert found is not None
    return found


def written(folder: Path, *, launch: int = 0, host: int = 0, input_wait: int = 0, copy: int = 0, rest: int = 0) -> Path:
    """Steps of two kernels. Before the second one are these microseconds of each cause, in this order reversed."""
    space = Space()
    for step in range(STEPS + 1):
        start = step * STEP_US
        space.event(HOST, "python", "train", start, STEP_US, step_num=step, _r=1)
        numbers = [2 * step + 1, 2 * step + 2]
        space.event(HOST, LAUNCHER, "cuLaunchKernel", start, 0, correlation_id=numbers[0])
        kernel = {"tf_op": "dense/MatMul:MatMul"}
        space.event(GPU, "Stream #1(Compute)", "gemm_f32", start, KERNEL_US, correlation_id=numbers[0], **kernel)
        at = start + KERNEL_US + rest
        space.event(GPU, "Stream #2(MemcpyH2D)", "MemcpyH2D", at, copy, correlation_id=10_000 + step)
        space.event(HOST, OTHER_THREAD, "IteratorGetNextOp::DoCompute", at + copy, input_wait)
        space.event(HOST, LAUNCHER, "dense/Reshape:Reshape", at + copy + input_wait, host)
        at += copy + input_wait + host
        space.event(HOST, LAUNCHER, "cuLaunchKernel", at, max(launch - 50, 0), correlation_id=numbers[1])
        left = STEP_US - (at + launch - start)
        space.event(GPU, "Stream #1(Compute)", "gemm_f32", at + launch, left, correlation_id=numbers[1], **kernel)
    return space.save(folder / "host.xplane.pb")


@pytest.mark.parametrize("cause", ["launch", "host", "input_wait", "copy", "rest"])
def test_planted_wait_is_found_by_its_cause(cause: str, tmp_path: Path) -> None:
    found = planted(tmp_path, **{cause: 1500})
    name = {"input_wait": "input_ms", "rest": "other_ms"}.get(cause, f"{cause}_ms")
    causes = {key: value for key, value in vars(found).items() if key not in ("step_ms", "busy_ms")}
    assert causes.pop(name) == pytest.approx(1.5)
    assert set(causes.values()) == {0.0}
    assert found.step_ms == pytest.approx(10)
    assert found.busy_ms == pytest.approx(8.5)


def test_all_causes_at_once_add_up_to_the_step(tmp_path: Path) -> None:
    found = planted(tmp_path, launch=400, host=700, input_wait=900, copy=200, rest=100)
    assert (found.launch_ms, found.host_ms, found.input_ms) == pytest.approx((0.4, 0.7, 0.9))
    assert (found.copy_ms, found.other_ms) == pytest.approx((0.2, 0.1))
    assert found.busy_ms == pytest.approx(10 - 2.3)


def test_account_has_the_same_causes_and_copies_as_operations(tmp_path: Path) -> None:
    """Its steps last from marker to marker, so that the host runs before their first kernel, too."""
    path = written(tmp_path, launch=400, host=700, input_wait=900, copy=200, rest=100)
    for step in traced_steps(path):
        assert step.idle_ms == pytest.approx({"idle_launch": 0.4, "idle_host": 0.7, "idle_input": 0.9, "host": 0.1})
        assert sum(step.shares_ms.values()) + sum(step.idle_ms.values()) == pytest.approx(step.step_ms) == 10


def test_input_that_is_taken_while_the_host_works_is_no_wait_for_it(tmp_path: Path) -> None:
    """The pipeline works ahead: its next element is not what this kernel waits for."""
    space = Space()
    for step in range(3):
        start = step * STEP_US
        space.event(HOST, "python", "train", start, STEP_US, step_num=step, _r=1)
        space.event(HOST, OTHER_THREAD, "IteratorGetNextOp::DoCompute", start, STEP_US)
        space.event(HOST, LAUNCHER, "dense/Reshape:Reshape", start, 2_000)
        space.event(HOST, LAUNCHER, "cuLaunchKernel", start + 2_000, 10, correlation_id=step + 1)
        space.event(GPU, "Stream #1(Compute)", "gemm_f32", start + 2_010, 7_990, correlation_id=step + 1)
    found = idle_of(parse(space.save(tmp_path / "host.xplane.pb")).planes)
    assert found is not None
    assert (found.host_ms, found.input_ms) == pytest.approx((2.0 * 2 / 3, 0.0))  # the last step has no next one


def test_trace_without_launches_says_nothing(tmp_path: Path) -> None:
    space = gpu_space([Kernel("gemm_f32", 100)])
    for line in space.plane(HOST).lines:
        for event in line.events:
            del event.stats[:]
    assert idle_of(parse(space.save(tmp_path / "host.xplane.pb")).planes) is None


def test_step_lasts_until_the_first_kernel_of_the_next_one(tmp_path: Path) -> None:
    """Between steps the GPU waits for its input, which xprof counts to no step."""
    space = Space()
    for step in range(4):
        start = step * STEP_US
        space.event(HOST, "python", "train", start, STEP_US, step_num=step, _r=1)
        space.event(HOST, OTHER_THREAD, "IteratorGetNextOp::DoCompute", start, 6_000)
        space.event(HOST, LAUNCHER, "cuLaunchKernel", start + 6_000, 10, correlation_id=step + 1)
        space.event(GPU, "Stream #1(Compute)", "gemm_f32", start + 6_010, 3_990, correlation_id=step + 1)
    found = idle_of(parse(space.save(tmp_path / "host.xplane.pb")).planes)
    assert found is not None
    assert found.input_ms == pytest.approx(0.75 * 6)  # the last step has no next one
    assert found.busy_ms == pytest.approx(3.99)


def test_metrics_of_a_trace_have_what_its_gpu_waited_for(tmp_path: Path) -> None:
    """Kernels 200 us apart, which were launched long before: the GPU waits for its queue, as part of the launching."""
    trace = read_trace(gpu_space([Kernel("gemm_f32", 800)] * 3, gap_us=200).save(tmp_path / "host.xplane.pb"))
    metrics, idle = trace.metrics(), trace.idle
    assert idle is not None
    assert metrics["profiler/kernel_launch_ms"] == idle.launch_ms
    assert 0.4 <= idle.launch_ms < 0.7
    assert metrics["profiler/input_ms"] == 0
    assert metrics["profiler/idle_ms"] == pytest.approx(idle.step_ms - 2.4)
    waits = (idle.copy_ms, idle.launch_ms, idle.host_ms, idle.input_ms, idle.other_ms)
    assert idle.busy_ms + sum(waits) == pytest.approx(idle.step_ms)
