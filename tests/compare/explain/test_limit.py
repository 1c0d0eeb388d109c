"""The limit: computed by hand, and absent if a trace or the hardware does not give it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from halfstep.compare.explain.hardware import PeakRatios, peak_ratios
from halfstep.compare.explain.limit import limit_if_compute_faster, train_limit, work_of
from halfstep.compare.explain.waiting import waiting
from halfstep.results.profile import HOST, AccountRow
from halfstep.words.policies import BFLOAT16, FLOAT16, POLICIES
from tests.small_study import environment, operation, profile

SHARES = {"profiler/matrix_percent": 60.0, "profiler/memory_bound_percent": 30.0}
ON_GPU = {"profiler/step_time_ms": 100.0, "profiler/device_compute_ms": 80.0, "profiler/host_compute_ms": 5.0}
ON_CPU = {"profiler/step_time_ms": 100.0, "profiler/host_compute_ms": 80.0}
A100 = environment(gpu={"name": "NVIDIA A100-SXM4-40GB", "compute_capability": "8.0"})
BFLOAT16_CPU = environment("avx512_bf16")
ONEDNN_OFF: dict[str, Any] = {"onednn": False}


def _limit(
    metrics: dict[str, float],
    machine: dict[str, Any],
    device: str = "GPU",
    policies: tuple[str, str] = ("float32", "mixed_bfloat16"),
    baseline_in_force: dict[str, Any] | None = None,
    **entry: Any,
) -> float | None:
    """The limit of a candidate whose entry also sets `entry`."""
    before = profile(metrics, policy=policies[0], device=device, in_force=baseline_in_force)
    after = profile(metrics, policy=policies[1], device=device, entry=entry)
    return train_limit(before, after, machine)


@pytest.mark.parametrize(("times", "limit"), [(3, 2.65), (8, 5.5), (math.inf, 15.4)])
def test_step_of_631_ms_with_590_ms_of_device_compute(times: float, limit: float) -> None:
    assert limit_if_compute_faster(631, 590, times) == pytest.approx(limit, rel=0.003)


@pytest.mark.parametrize(("device", "metrics"), [("GPU", ON_GPU), ("CPU", ON_CPU)])
def test_shares_are_of_compute_on_the_device(device: str, metrics: dict[str, float]) -> None:
    work = work_of(profile(metrics | SHARES, device=device))
    assert work is not None
    assert [work.step_ms, work.matrix_ms, work.memory_ms] == pytest.approx([100, 48, 24])


def test_tf32_gains_less_than_float32() -> None:
    assert _limit(ON_GPU | SHARES, A100) == pytest.approx(100 / (28 + 48 / 16 + 12))
    in_tf32 = {"profiler/compute_tf32_percent": 60.0}
    assert _limit(ON_GPU | SHARES | in_tf32, A100) == pytest.approx(100 / (28 + 48 / 2 + 12))


# float16 over float32 and over TF32, by the names that drivers report
GPUS = [
    ("Tesla V100-SXM2-16GB", "7.0", 7.96, 7.96),
    ("Tesla T4", "7.5", 8.02, 8.02),
    ("NVIDIA GeForce GTX 1660 Ti", "7.5", 2.0, 2.0),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "8.0", 16.0, 2.0),
    ("NVIDIA A10", "8.6", 4.01, 2.0),
    ("NVIDIA GeForce RTX 4090", "8.9", 2.0, 2.0),
    ("NVIDIA H100 80GB HBM3", "9.0", 14.79, 2.0),
    ("NVIDIA B200", "10.0", 30.0, 2.0),
    ("Tesla P100-PCIE-16GB", "6.0", 2.0, 2.0),
    ("NVIDIA GeForce GTX 1080", "6.1", 1.0, 1.0),
    ("NVIDIA H20", "9.0", None, None),
    ("Quadro T1000", "7.5", None, None),
    ("NVIDIA GeForce 6000", "13.0", None, None),
]


@pytest.mark.parametrize(("name", "capability", "matrix", "from_tf32"), GPUS, ids=[row[0] for row in GPUS])
def test_peak_ratios_by_gpu_model(name: str, capability: str, matrix: float | None, from_tf32: float | None) -> None:
    ratios = peak_ratios(FLOAT16, environment(gpu={"name": name, "compute_capability": capability}), on_gpu=True)
    if matrix is None or from_tf32 is None:
        assert ratios is None
    else:
        assert ratios is not None
        assert [ratios.matrix, ratios.matrix_from_tf32, ratios.memory] == pytest.approx(
            [matrix, from_tf32, 2], abs=0.01
        )


def test_bfloat16_gains_no_matrix_work_without_tensor_cores_for_it() -> None:
    t4 = environment(gpu={"name": "Tesla T4", "compute_capability": "7.5"})
    assert peak_ratios(BFLOAT16, t4, on_gpu=True) == PeakRatios(1.0, 1.0)


@pytest.mark.parametrize(
    ("policy", "machine", "matrix"),
    [
        ("mixed_bfloat16", BFLOAT16_CPU, 2.0),
        ("mixed_bfloat16", environment("avx512_bf16", "amx_bf16"), 16.0),
        ("mixed_bfloat16", environment("avx512_fp16"), None),
        ("mixed_float16", environment("avx512_bf16", "amx_bf16"), None),
        ("mixed_float16", environment("avx512_fp16"), 2.0),
        ("mixed_bfloat16", environment(), None),
    ],
)
def test_peak_ratios_of_cpus(policy: str, machine: dict[str, Any], matrix: float | None) -> None:
    ratios = peak_ratios(POLICIES[policy].compute, machine, on_gpu=False)
    assert (ratios and ratios.matrix) == matrix


ABSENT: dict[str, tuple[dict[str, float], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "no operations": (ON_GPU, {}),
    "no step": (SHARES, {}),
    "metrics of another device": (ON_CPU | SHARES, {}),
    "16 bit before": (ON_GPU | SHARES, {"policies": ("mixed_bfloat16", "mixed_float16")}),
    "32 bit after": (ON_GPU | SHARES, {"policies": ("float32", "float32")}),
    "XLA differs": (ON_GPU | SHARES, {"xla": True}),
    "no hardware": (ON_CPU | SHARES, {"device": "CPU"}),
}


@pytest.mark.parametrize(("metrics", "changes"), ABSENT.values(), ids=ABSENT.keys())
def test_unknown_limit_is_absent(metrics: dict[str, float], changes: dict[str, Any]) -> None:
    assert _limit(ON_GPU | SHARES, A100) is not None
    assert _limit(metrics, A100, **changes) is None


def test_onednn_matters_on_a_cpu_only() -> None:
    """The default entry of mixed_float16 has `onednn: false`, which has no effect on a GPU."""
    on_gpu = _limit(ON_GPU | SHARES, A100, policies=("float32", "mixed_float16"), **ONEDNN_OFF)
    assert on_gpu == _limit(ON_GPU | SHARES, A100)
    assert _limit(ON_CPU | SHARES, BFLOAT16_CPU, device="CPU") is not None
    assert _limit(ON_CPU | SHARES, BFLOAT16_CPU, device="CPU", **ONEDNN_OFF) is None


def test_settings_in_force_count_and_not_the_requested_ones() -> None:
    """With TF_ENABLE_ONEDNN_OPTS=0 oneDNN is off in both variants, whatever their entries request."""
    limit = _limit(ON_CPU | SHARES, BFLOAT16_CPU, device="CPU", baseline_in_force=ONEDNN_OFF, **ONEDNN_OFF)
    assert limit == _limit(ON_CPU | SHARES, BFLOAT16_CPU, device="CPU")


def _waits(*rounds: tuple[float, float]) -> pd.DataFrame:
    """Input rounds of steps in these times, on the pipeline and on a cached batch, in two repeats."""
    rows = [
        {"process": number % 2, "round": number // 2, "batches": kind, "steps": 3, "round_time_ms": 3 * time_ms}
        for number, times in enumerate(rounds)
        for kind, time_ms in zip(("pipeline", "cached"), times, strict=True)
    ]
    return pd.DataFrame(rows)


NEARLY_ALL = _waits((137.0, 1.6), (136.0, 1.6), (138.0, 1.6), (137.0, 1.6))


def test_wait_for_input_limits_without_a_trace() -> None:
    before = replace(profile(), input_rounds=NEARLY_ALL)
    machine = environment("avx2")
    assert train_limit(before, profile(policy="mixed_bfloat16"), machine) == pytest.approx(137 / 135.4)
    assert train_limit(before, profile(policy="float32"), machine) is None
    assert train_limit(before, profile(policy="mixed_bfloat16", entry=ONEDNN_OFF), machine) is None


def test_the_part_that_does_not_wait_becomes_faster_by_the_trace() -> None:
    """Half of the step waits. The other half is matrix work, twice as fast, and memory-bound work, twice as fast."""
    operations = (
        operation("MatMul", 60.0, "float32"),
        operation("Relu", 20.0, "float32"),
        AccountRow(0, HOST, time_ms=20.0),
    )
    half = _waits((20.0, 10.0), (20.0, 10.1), (20.0, 9.9), (20.0, 10.0))
    before = replace(profile(ON_CPU, operations), input_rounds=half)
    after = profile(ON_CPU, operations, policy="mixed_bfloat16")
    assert train_limit(before, after, BFLOAT16_CPU) == pytest.approx(1 / (1 - 0.5 * 0.5))
    assert train_limit(replace(before, input_rounds=_waits()), after, BFLOAT16_CPU) == pytest.approx(
        100 / (20 + 80 / 2)
    )


def test_bound_is_that_of_the_shortest_wait_in_the_interval() -> None:
    wait = waiting(NEARLY_ALL)
    assert wait is not None
    assert wait.bound == pytest.approx(1 / wait.low)
    assert wait.low < 135.4 / 137
    assert wait.text == "135 of 137 ms of a training step wait for input"
    unsure = waiting(_waits((20.0, 10.0), (10.0, 12.0), (30.0, 9.0), (9.0, 12.0)))
    assert unsure is not None
    assert unsure.bound is None
