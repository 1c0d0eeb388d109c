"""The rows of plots."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from halfstep.compare.case import Judging
from halfstep.compare.report import tables


def test_score_by_epoch(comparison: Judging) -> None:
    epochs = tables.score_by_epoch(comparison.study)
    assert len(epochs) == 3 * 3 * 5  # variants that finished, seeds, epochs
    assert list(epochs) == ["variant", "seed", "epoch", "score", "val_score"]
    assert epochs["val_score"].between(0, 1).all()


def test_step_breakdown_adds_up_to_the_step(comparison: Judging) -> None:
    rows = tables.step_breakdown(comparison.study)
    assert rows["variant"].unique().tolist() == ["float32", "mixed_float16", "mixed_bfloat16"]
    assert rows.groupby("variant")["time_ms"].sum()["mixed_float16"] == pytest.approx(40.0)


def test_parts_of_a_gpus_step_are_its_kernels_and_what_it_waited_for() -> None:
    """xprof's rest is the same time as the waits."""
    on_cpu = {"profiler/device_compute_ms": 8.0, "profiler/other_ms": 2.0}
    waits = {"idle_ms": 2.1, "kernel_launch_ms": 1.5, "host_compute_ms": 0.5, "copy_wait_ms": 0.0, "idle_other_ms": 0.1}
    on_gpu = on_cpu | {f"profiler/{name}": value for name, value in waits.items()}
    variants = [
        SimpleNamespace(variant=name, profile=SimpleNamespace(metrics=metrics))
        for name, metrics in {"a": on_cpu, "b": on_gpu}.items()
    ]
    table = tables.step_breakdown(SimpleNamespace(variants=variants))  # type: ignore[arg-type]
    sums = table.groupby("variant")["time_ms"].sum()
    assert sums.to_dict() == pytest.approx({"a": 10.0, "b": 10.1})
    assert "other" not in set(table[table["variant"] == "b"]["part"])
