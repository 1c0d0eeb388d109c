"""The limit: worked by hand, and absent where a trace does not tell it."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from stages.compare.arms import Operation, Profile
from stages.compare.limit import Work, best_speedup, limit_if_compute_faster, train_limit, work_of
from stages.compare.machine import Ceilings, ceilings

SHARES = {"profiler/matrix_percent": 60.0, "profiler/memory_bound_percent": 30.0}
ON_GPU = {"profiler/step_time_ms": 100.0, "profiler/device_compute_ms": 80.0, "profiler/host_compute_ms": 5.0}
ON_CPU = {"profiler/step_time_ms": 100.0, "profiler/host_compute_ms": 80.0}
A100 = {"gpus": [{"compute_capability": "8.0"}]}


def _profile(metrics: dict[str, float], policy: str, device: str, *rows: Operation, **entry: Any) -> Profile:
    empty = pd.DataFrame()
    return Profile(empty, empty, empty, metrics, {"policy": policy, **entry}, {}, rows, (), device)


def _limit(
    metrics: dict[str, float],
    environment: dict[str, Any],
    *rows: Operation,
    device: str = "GPU",
    policies: tuple[str, str] = ("float32", "mixed_bfloat16"),
    **entry: Any,
) -> float | None:
    before, after = (_profile(metrics, policy, device, *rows) for policy in policies)
    after.entry.update(entry)
    return train_limit(before, after, environment)


@pytest.mark.parametrize(("times", "limit"), [(3, 2.65), (8, 5.5), (math.inf, 15.4)])
def test_a_step_of_631_ms_with_590_ms_of_device_compute(times: float, limit: float) -> None:
    assert limit_if_compute_faster(631, 590, times) == pytest.approx(limit, rel=0.003)


def test_the_formula() -> None:
    work = Work(step_ms=100, matrix_ms=48, memory_ms=24, tf32_ms=16)
    assert work.rest_ms == 28
    assert best_speedup(work, Ceilings(matrix=16, matrix_from_tf32=2)) == pytest.approx(100 / (28 + 2 + 8 + 12))


def test_shares_are_of_compute_on_the_device() -> None:
    for device, metrics in {"GPU": ON_GPU, "CPU": ON_CPU}.items():
        work = work_of(_profile(metrics | SHARES, "float32", device))
        assert work is not None
        assert [work.step_ms, work.matrix_ms, work.memory_ms] == pytest.approx([100, 48, 24])


def test_tf32_gains_less_than_float32() -> None:
    assert _limit(ON_GPU | SHARES, A100) == pytest.approx(100 / (28 + 48 / 16 + 12))
    in_tf32 = {"profiler/compute_tf32_percent": 60.0}
    assert _limit(ON_GPU | SHARES | in_tf32, A100) == pytest.approx(100 / (28 + 48 / 2 + 12))


def test_without_measured_shares_the_types_of_the_operations_tell() -> None:
    rows = (
        Operation("_MklNativeFusedConv2D", "model/conv", 1, 3.0, "float32"),
        Operation("MatMul", "model/dense", 1, 1.0, "float32"),
        Operation("Relu", "model/relu", 1, 4.0, "float32"),
        Operation("Dataset", "Iterator::Root", 1, 50.0),
        Operation("PyFunc", "PyFunc", 1, 50.0),
    )
    environment = {"cpu": {"instruction_sets": ["avx512_bf16"]}}
    assert work_of(_profile(ON_CPU, "float32", "CPU", *rows)) == Work(100, 40, 40)
    assert _limit(ON_CPU, environment, *rows, device="CPU") == pytest.approx(100 / (20 + 20 + 20))


def test_rows_of_the_host_do_not_count_as_work_of_a_gpu() -> None:
    rows = (
        Operation("Conv2D", "model/conv", 1, 3.0, "tf32", True),
        Operation("Relu", "model/relu", 1, 1.0, "float32", False),
        Operation("Relu", "model/relu", 1, 9.0, "float32", None),
    )
    assert work_of(_profile(ON_GPU, "float32", "GPU", *rows)) == Work(100, 60, 20, tf32_ms=60)


@pytest.mark.parametrize(
    ("policy", "device", "environment", "matrix"),
    [
        ("mixed_float16", "GPU", {"gpus": [{"compute_capability": "7.0"}]}, 7.96),
        ("mixed_float16", "GPU", A100, 16.0),
        ("mixed_bfloat16", "GPU", {"gpus": [{"compute_capability": "9.0"}]}, 14.79),
        ("mixed_float16", "GPU", {"gpus": [{"compute_capability": "6.1"}]}, 1.0),
        ("mixed_bfloat16", "GPU", {"gpus": [{"compute_capability": "7.5"}]}, 1.0),
        ("mixed_float16", "GPU", {"gpus": [{"name": "unknown"}]}, 16.0),
        ("mixed_bfloat16", "CPU", {"cpu": {"instruction_sets": ["avx512_bf16"]}}, 2.0),
        ("mixed_bfloat16", "CPU", {"cpu": {"instruction_sets": ["avx512_bf16", "amx_bf16"]}}, 16.0),
        ("mixed_bfloat16", "CPU", {"cpu": {"instruction_sets": ["avx512_fp16"]}}, None),
        ("mixed_float16", "CPU", {"cpu": {"instruction_sets": ["avx512_bf16", "amx_bf16"]}}, None),
        ("mixed_float16", "CPU", {"cpu": {"instruction_sets": ["avx512_fp16"]}}, 2.0),
        ("mixed_bfloat16", "CPU", {}, None),
    ],
)
def test_what_hardware_promises(policy: str, device: str, environment: dict[str, Any], matrix: float | None) -> None:
    found = ceilings(policy, device, environment)
    assert (found and found.matrix) == (matrix if matrix is None else pytest.approx(matrix, abs=0.005))


ABSENT: dict[str, tuple[dict[str, float], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "no operations": (ON_GPU, {}),
    "no step": (SHARES, {}),
    "another device": (ON_CPU | SHARES, {}),
    "16 bit before": (ON_GPU | SHARES, {"policies": ("mixed_bfloat16", "mixed_float16")}),
    "32 bit after": (ON_GPU | SHARES, {"policies": ("float32", "float32")}),
    "XLA too": (ON_GPU | SHARES, {"xla": True}),
    "oneDNN too": (ON_GPU | SHARES, {"onednn": False}),
    "no hardware": (ON_CPU | SHARES, {"device": "CPU"}),
}


@pytest.mark.parametrize(("metrics", "changes"), ABSENT.values(), ids=ABSENT.keys())
def test_where_it_cannot_be_told_it_is_absent(metrics: dict[str, float], changes: dict[str, Any]) -> None:
    assert _limit(ON_GPU | SHARES, A100) is not None
    assert _limit(metrics, A100, **changes) is None
