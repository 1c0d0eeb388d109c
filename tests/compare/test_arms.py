"""Reading what the other stages wrote, and refusing what must not be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages import files
from stages.compare.comparison import compare
from stages.compare.loading import load_study
from stages.errors import ComparisonError, CorruptFileError, DataError, HalfstepError
from stages.params import CompareParams


def test_reads_every_arm(project: Any) -> None:
    study = project.load()
    assert study.baseline.variant == "float32"
    assert [arm.variant for arm in study.candidates] == ["mixed_float16", "mixed_bfloat16", "float16"]
    assert [training.seed for training in study.baseline.trainings] == [1, 2, 3]
    assert study.control is not None
    assert len(study.control.rounds) == 20
    assert study.labels.shape == (400,)
    assert study.baseline.profile is not None
    assert study.baseline.profile.operations[0].type == "Conv2D"


def test_an_arm_with_a_failed_training_has_no_profile(project: Any) -> None:
    failed = project.load().candidates[2]
    assert failed.profile is None
    assert [training.failure for training in failed.failures] == ["the loss is nan in epoch 2"] * 3


def test_a_failed_baseline_leaves_no_control(project: Any) -> None:
    project.edit(files.train_dir("float32", 2) / "metrics.json", status="failed", reason="the loss is inf")
    study = project.load()
    assert study.baseline.profile is None
    assert study.control is None


@pytest.mark.parametrize("name", ["mixed_bfloat16", "_control"])
def test_refuses_an_arm_of_another_configuration_by_name(project: Any, name: str) -> None:
    path = files.profile_dir(name) / "summary.json"
    project.edit(path, configuration=files.read_json(path)["configuration"] | {"batch_size": 64})
    with pytest.raises(ComparisonError) as refusal:
        project.load()
    assert f"'{name}'" in str(refusal.value)
    assert "batch_size 64 instead of 32" in str(refusal.value)
    assert "dvc repro -f -s profile" in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "said"),
    [("data_sha256", "data other instead of same"), ("batch_size", "batch size other"), ("environment", "environment")],
)
def test_refuses_a_training_under_other_conditions_by_name(project: Any, key: str, said: str) -> None:
    for variant in ("float32", "mixed_float16", "mixed_bfloat16"):
        for seed in (1, 2, 3):
            value = "other" if (variant, seed) == ("mixed_bfloat16", 3) else "same"
            project.edit(files.train_dir(variant, seed) / "metrics.json", **{key: value})
    with pytest.raises(ComparisonError) as refusal:
        project.load()
    assert "'mixed_bfloat16', seed 3, was not trained like 'float32', seed 1" in str(refusal.value)
    assert said in str(refusal.value)
    assert "`dvc repro -f -s train@mixed_bfloat16-3`" in str(refusal.value)


def test_a_training_that_failed_or_recorded_nothing_is_not_judged(project: Any) -> None:
    project.edit(files.train_dir("float32", 1) / "metrics.json", data_sha256="same")
    project.edit(files.train_dir("float16", 1) / "metrics.json", data_sha256="other")
    assert len(project.load().candidates) == 3


def test_refuses_predictions_of_another_test_set(project: Any) -> None:
    folder = files.train_dir("mixed_float16", 2)
    np.save(folder / "predictions.npy", np.zeros((7, 4), np.float32))
    files.write_manifest(folder)
    with pytest.raises(ComparisonError, match=r"7 predictions and the test set 400 .*train@mixed_float16-2"):
        project.load()


@pytest.mark.parametrize(
    ("path", "content", "stage"),
    [
        ("train/mixed_float16-1/predictions.npy", b"not an array", "train@mixed_float16-1"),
        ("train/mixed_float16-1/history.csv", b"epoch,loss\n1,2\n", "train@mixed_float16-1"),
        ("profile/float32/rounds.csv", b"", "profile"),
        ("profile/float32/inference.csv", b"process,round\n1,2\n", "profile"),
        ("profile/float32/summary.json", b'{"variant": "float32"}', "profile"),
        ("prepared/test_labels.npy", b"\x93NUMPY", "prepare"),
    ],
)
def test_names_the_file_and_the_stage_that_writes_it_again(project: Any, path: str, content: bytes, stage: str) -> None:
    target = files.DATA / path
    target.write_bytes(content)
    if "prepared" not in path:
        files.write_manifest(target.parent)
    with pytest.raises(CorruptFileError) as refusal:
        project.load()
    message = str(refusal.value)
    assert message.startswith(str(target))
    assert f"`dvc repro -f -s {stage}`" in message
    assert "\n" not in message


def test_a_batch_size_that_was_not_measured_is_named(project: Any) -> None:
    study = load_study("float32", ("float32", "mixed_float16"), (1,), (1, 64))
    with pytest.raises(ComparisonError, match="batch size 64: nothing was measured"):
        compare(study, CompareParams())


def test_notices_a_file_that_was_changed_behind_the_manifest(project: Any) -> None:
    path = files.profile_dir("mixed_float16") / "rounds.csv"
    path.write_text(path.read_text().replace("6", "5", 1))
    with pytest.raises(CorruptFileError, match=str(path)):
        project.load()


@pytest.mark.parametrize("path", ["profile/float32/summary.json", "prepared/test_labels.npy", "environment.json"])
def test_a_missing_file_is_named(project: Any, path: str) -> None:
    target: Path = files.DATA / path
    target.unlink()
    with pytest.raises(HalfstepError, match=str(target)) as refusal:
        project.load()
    assert isinstance(refusal.value, DataError | CorruptFileError)
    assert "dvc repro" in str(refusal.value)


def test_inference_need_not_be_measured(project: Any) -> None:
    for folder in files.PROFILE.iterdir():
        table = pd.read_csv(folder / "inference.csv")
        table.iloc[:0].to_csv(folder / "inference.csv", index=False)
        files.write_manifest(folder)
    study = load_study("float32", ("float32", "mixed_bfloat16"), (1, 2, 3), ())
    (candidate,) = compare(study, CompareParams()).candidates
    assert list(candidate.speedups) == list(candidate.verdicts) == ["train"]
