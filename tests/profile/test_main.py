from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stages import files
from stages.params import CompareParams, Params, TrainParams
from stages.profile.__main__ import _tasks, finished_variants

PARAMS = Params(train=TrainParams(seeds=(4, 5)))
FINISHED = {"status": "finished", "test_accuracy": 0.5}


@pytest.fixture(autouse=True)
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_json(files.PREPARED / "info.json", {})
    files.write_manifest(files.PREPARED)
    for variant in PARAMS.train.variants:
        for seed in PARAMS.train.seeds:
            written(variant, seed, FINISHED)


def written(variant: str, seed: int, metrics: dict[str, Any]) -> None:
    folder = files.train_dir(variant, seed)
    files.write_json(folder / "metrics.json", metrics)
    files.write_manifest(folder)


def test_a_variant_with_a_failed_training_is_left_out() -> None:
    assert finished_variants(PARAMS) == list(PARAMS.train.variants)
    written("mixed_float16", 5, {"status": "failed", "reason": "the loss is nan"})
    assert finished_variants(PARAMS) == ["float32", "mixed_bfloat16"]


def test_the_baseline_has_a_second_copy_of_the_same_task() -> None:
    tasks = _tasks(PARAMS, ["float32", "mixed_bfloat16"])
    assert list(tasks) == ["float32", "mixed_bfloat16", files.CONTROL]
    assert tasks[files.CONTROL] == tasks["float32"] != tasks["mixed_bfloat16"]
    assert {task.seed for task in tasks.values()} == {4}


def test_a_baseline_that_failed_has_no_copy() -> None:
    assert list(_tasks(PARAMS, ["mixed_float16", "mixed_bfloat16"])) == ["mixed_float16", "mixed_bfloat16"]
    other = PARAMS.model_copy(update={"compare": CompareParams(baseline="mixed_bfloat16")})
    tasks = _tasks(other, ["mixed_bfloat16"])
    assert tasks[files.CONTROL].variant.policy == "mixed_bfloat16"
