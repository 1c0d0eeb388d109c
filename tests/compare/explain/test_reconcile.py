"""Traces against the timing: sums by hand, and reasons that do not fit are withheld."""

from __future__ import annotations

import math

import pytest

from stages.compare.explain import explain
from stages.compare.explain.evidence import Evidence
from stages.compare.explain.layer_diff import op_changes
from stages.compare.explain.reconcile import reconcile
from stages.compare.judging import Judging
from stages.results.comparison import Reason, Reconciliation
from stages.results.profile import OperationTime, Profile
from stages.stats.speedup import ProcessTimes, Speedup
from stages.text import TRAIN
from tests.small_study import environment, operation, profile


def _speedup(baseline_ms: float, candidate_ms: float, spread: float = 0.001) -> Speedup:
    """Times of a step in two processes that differ by `spread`."""
    typical = math.log(baseline_ms / candidate_ms)
    times = (ProcessTimes(1, baseline_ms, candidate_ms * (1 + sign * spread), typical, 1) for sign in (-1, 1))
    return Speedup(tuple(times))


def _profile(operations: list[OperationTime], step_ms: float = 8.0, policy: str = "float32") -> Profile:
    return profile({"profiler/step_time_ms": step_ms}, operations, policy=policy)


BEFORE = [operation("Conv2D", 4.0, "float32"), operation("Relu", 2.0, "float32")]
AGAIN = [operation("Conv2D", 4.3, "float32"), operation("Relu", 1.6, "float32")]
INPUT = operation("Dataset", 90.0, name="Iterator::Root")


def _reconciliation(
    after: list[OperationTime], speedup: Speedup, again: list[OperationTime] | None = None
) -> Reconciliation | None:
    before, candidate, control = _profile([*BEFORE, INPUT]), _profile([*after, INPUT]), _profile(again or BEFORE)
    return reconcile(before, candidate, control, speedup, op_changes(before, candidate, control))


def test_measured_is_operations_and_unexplained() -> None:
    """The traced step takes 8 ms and the timed one 4: each millisecond of the traces is half of one."""
    after = [operation("Conv2D", 6.0, "float16"), operation("Cast", 1.0, "float32")]
    speedup = _speedup(4.0, 5.0)
    found = _reconciliation(after, speedup, AGAIN)
    assert found is not None
    assert found.scale == 0.5
    assert found.measured_ms == pytest.approx(1.0)
    assert found.operations_ms == pytest.approx(0.5 * (2 + 1 - 2))
    assert found.measured_ms == pytest.approx(found.operations_ms + found.unexplained_ms)
    assert found.floor_ms == pytest.approx(0.5 * 0.5)  # root of 0.3² + 0.4²; the sum is 0.1
    assert (found.low_ms, found.high_ms) == pytest.approx((5 * (1 - speedup.high), 5 * (1 - speedup.low)))
    assert found.low_ms < 1 < found.high_ms


def test_operations_that_run_at_the_same_time_are_scaled_to_the_step() -> None:
    before = [operation("Conv2D", 12.0, "float32"), operation("MatMul", 4.0, "float32")]
    same = _profile(before)
    found = reconcile(same, same, same, _speedup(4.0, 4.0), op_changes(same, same, same))
    assert found is not None
    assert found.scale == 4 / 16


def test_traces_without_operations_are_not_reconciled() -> None:
    before, empty = _profile(BEFORE), _profile([INPUT])
    speedup = _speedup(4.0, 5.0)
    assert reconcile(before, before, before, speedup, ()) is not None
    assert reconcile(before, before, None, speedup, ()) is None
    for profiles in ((empty, before, before), (before, empty, before), (before, before, empty)):
        assert reconcile(*profiles, speedup, ()) is None


SLOWER = [operation("Conv2D", 8.0, "float16"), operation("Relu", 2.0, "float32")]
# in all faster than BEFORE, although the convolution is slower
CONTRADICTION = [operation("Conv2D", 4.9, "float16"), operation("Relu", 1.0, "float32")]


def _codes(after: list[OperationTime], speedup: Speedup, again: list[OperationTime] | None = None) -> list[str]:
    return [reason.code for reason in _reasons(after, speedup, again)]


def _reasons(
    after: list[OperationTime], speedup: Speedup, again: list[OperationTime] | None = None
) -> tuple[Reason, ...]:
    before, candidate = _profile(BEFORE), _profile(after, policy="mixed_float16")
    found = _reconciliation(after, speedup, again)
    data = Evidence(before, candidate, (), {TRAIN: speedup}, environment("avx512_fp16"), 1.05, reconciliation=found)
    return explain(data)


def test_reason_is_withheld_if_the_traces_contradict_the_timing() -> None:
    """As once measured: +0.11 ms a step in the timing, and −0.08 ms by the self times of the traces."""
    slower, same = _speedup(4.0, 4.11), _speedup(4.0, 4.11, spread=0.02)
    found = _reconciliation(CONTRADICTION, slower)
    assert found is not None
    assert found.low_ms > 0 > found.operations_ms
    assert found.contradicts
    assert _codes(CONTRADICTION, slower) == []
    assert not found.model_copy(update={"low_ms": -0.01}).contradicts
    assert _codes([*CONTRADICTION, operation("Cast", 0.3, "float32")], slower) == ["emulated_float16"]
    assert _codes(CONTRADICTION, same) == []  # and an interval that holds 1 is no reason either


def test_faster_in_the_timing_and_slower_in_the_traces_is_a_contradiction() -> None:
    found = _reconciliation(SLOWER, _speedup(4.0, 3.5))
    assert found is not None
    assert found.contradicts


def test_reason_never_explains_more_than_was_measured() -> None:
    """The convolution lost 2 ms of the timed step."""
    assert _codes(SLOWER, _speedup(4.0, 6.1)) == ["emulated_float16"]
    assert _codes(SLOWER, _speedup(4.0, 5.5)) == []
    gained = [operation("Conv2D", 8.0, "float16"), operation("Relu", 0.9, "float32")]  # 0.55 ms gained back
    (reason,) = _reasons(gained, _speedup(4.0, 5.5))
    assert reason.code == "emulated_float16"
    assert reason.time_ms == pytest.approx(1.5)


def test_reason_of_a_size_that_noise_has_is_withheld() -> None:
    again = [operation("Conv2D", 8.5, "float32"), operation("Relu", 2.0, "float32")]
    assert _codes(SLOWER, _speedup(4.0, 6.1), again) == []


def test_comparison_reconciles_every_candidate(comparison: Judging) -> None:
    for candidate in comparison.candidates[:2]:
        found, speedup = candidate.reconciliation, candidate.speedups[TRAIN]
        assert found is not None
        assert found.measured_ms == pytest.approx(speedup.candidate_time_ms - speedup.baseline_time_ms)
        assert found.operations_ms == pytest.approx(
            found.scale * sum(change.delta_ms for change in candidate.op_changes)
        )
