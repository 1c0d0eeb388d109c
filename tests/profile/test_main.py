from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halfstep.params.schema import CompareParams, Params, TrainParams
from halfstep.profile.stage import _trained, _training_seconds, _trials, finished_variants
from halfstep.system import files
from tests.small_study import training_metrics

PARAMS = Params(train=TrainParams(seeds=(4, 5)))


@pytest.fixture(autouse=True)
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_json(files.PREPARED / "info.json", {})
    files.write_manifest(files.PREPARED)
    for variant in PARAMS.train.variants:
        for seed in PARAMS.train.seeds:
            write_metrics(variant, seed, test_accuracy=0.5)


def write_metrics(variant: str, seed: int, **values: Any) -> None:
    folder = files.train_dir(variant, seed)
    training_metrics(**values).write(folder / "metrics.json")
    files.write_manifest(folder)


def test_variant_with_a_failed_training_is_left_out() -> None:
    assert finished_variants(PARAMS) == list(PARAMS.train.variants)
    write_metrics("mixed_float16", 5, status="failed", reason="the loss is nan")
    assert finished_variants(PARAMS) == ["float32", "mixed_bfloat16"]


def test_variants_that_were_not_trained_are_measured_from_their_initial_weights() -> None:
    assert list(_trained("float32", (4, 5))) == [4, 5]
    assert _training_seconds(PARAMS, ["float32"]) == 24.0
    for variant in PARAMS.train.variants:
        for seed in PARAMS.train.seeds:
            write_metrics(variant, seed, status="not_trained", train_time_s=None, train_images_per_s=None)
    assert finished_variants(PARAMS) == list(PARAMS.train.variants)
    assert _trained("float32", (4, 5)) == {}
    assert _training_seconds(PARAMS, ["float32"]) == 0.0


def test_control_is_a_second_copy_of_the_baseline() -> None:
    trials = _trials(PARAMS, ["float32", "mixed_bfloat16"])
    assert list(trials) == ["float32", "mixed_bfloat16", files.CONTROL]
    assert trials[files.CONTROL] == replace(trials["float32"], name=files.CONTROL)
    assert trials["float32"] != trials["mixed_bfloat16"]
    assert {trial.seed for trial in trials.values()} == {4}


def test_failed_baseline_has_no_control() -> None:
    assert list(_trials(PARAMS, ["mixed_float16", "mixed_bfloat16"])) == ["mixed_float16", "mixed_bfloat16"]
    other = PARAMS.model_copy(update={"compare": CompareParams(baseline="mixed_bfloat16")})
    trials = _trials(other, ["mixed_bfloat16"])
    assert trials[files.CONTROL].variant.policy == "mixed_bfloat16"
