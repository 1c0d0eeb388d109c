"""Reading the files of a whole study, and rejecting files that cannot be used."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from halfstep.compare.explain.limit import compute_operations
from halfstep.errors import ComparisonError, CorruptFileError, DataError, HalfstepError
from halfstep.results.profile import TABLES, InputRound, read_profile
from halfstep.results.training import finished_scores
from halfstep.system import files
from tests.small_study import (
    BRIDGE,
    IMAGES,
    MEASURED,
    SAME_WEIGHTS_PROBABILITY,
    SEEDS,
    SmallStudy,
    predictions,
    raw_times,
    summary,
)


def test_study_contains_every_variant(project: SmallStudy) -> None:
    study = project.load()
    assert study.baseline.variant == "float32"
    assert [result.variant for result in study.candidates] == ["mixed_float16", "mixed_bfloat16", "float16"]
    assert [training.seed for training in study.baseline.trainings] == [1, 2, 3]
    assert study.control is not None
    assert study.control.rounds["counted"].sum() == 10
    assert list(study.bridges) == [BRIDGE]
    assert (study.task.name, study.score_name, study.task.examples) == ("images", "accuracy", IMAGES)
    assert study.baseline.profile is not None
    assert compute_operations(study.baseline.profile)[0].operation == "Conv2D"
    assert study.baseline.mean_test_score == pytest.approx(0.98)


@pytest.mark.parametrize("name", ["float32", "_control", BRIDGE])
def test_profile_is_read_as_it_was_written(project: SmallStudy, name: str) -> None:
    profile, times = read_profile(name), raw_times(name)
    assert profile.summary == summary(name)
    tables = {
        "rounds": profile.rounds,
        "input_rounds": profile.input_rounds,
        "steps": profile.steps,
        "calls": profile.calls,
    }
    tables["account"] = profile.account
    assert set(tables) == set(TABLES)
    assert (files.profile_dir(name) / "account.csv").is_file() is bool(times.account)
    for attribute, table in tables.items():
        rows = getattr(times, attribute)
        columns = [field.name for field in fields(TABLES[attribute][1]) if field.default is not None]  # others: of GPUs
        expected = pd.DataFrame([vars(row) for row in rows], columns=columns)
        pd.testing.assert_frame_equal(table, expected, check_dtype=False, rtol=0, atol=1e-6)


def test_input_rounds_are_read_and_required(project: SmallStudy) -> None:
    table = read_profile("mixed_bfloat16").input_rounds
    assert list(table) == [field.name for field in fields(InputRound)]
    assert set(table["batches"]) == {"pipeline", "cached"}
    path = files.profile_dir("mixed_bfloat16") / "input_rounds.csv"
    path.unlink()
    files.write_manifest(path.parent)
    with pytest.raises(DataError, match=f"{path} is missing: run `dvc repro -f -s profile`"):
        project.load()


def test_variant_with_a_failed_training_has_no_profile(project: SmallStudy) -> None:
    failed = project.load().candidates[2]
    assert failed.profile is None
    assert failed.mean_test_score is None
    assert [training.metrics.reason for training in failed.failures] == ["the loss is nan in epoch 2"] * 3
    assert [training.history for training in failed.trainings] == [None] * 3
    assert finished_scores("float16", (1, 2, 3)) == []


def test_variants_that_were_not_trained_have_a_profile_and_no_history(project: SmallStudy) -> None:
    assert not project.load().speed_only
    project.make_speed_only()
    study = project.load(variants=MEASURED)
    assert study.speed_only
    for result in study.variants:
        assert result.profile is not None
        assert result.profile.same_weights == {}
        assert result.mean_test_score is None
        assert [(item.history, item.failed) for item in result.trainings] == [(None, False)] * 3
        assert finished_scores(result.variant, SEEDS) == []
    assert sorted(files.read_manifest(files.train_dir("float32", 1))) == ["metrics.json"]
    assert set(files.read_json(files.train_dir("float32", 1) / "metrics.json")) == {
        *("schema_version", "status", "batch_size", "data_sha256", "environment")
    }


def test_failed_baseline_has_no_same_weights_and_no_bridges(project: SmallStudy) -> None:
    """What the baseline's weights give is not measured then."""
    project.edit_training("float32", 2, status="failed", reason="the loss is inf")
    (files.profile_dir("mixed_bfloat16") / "same_weights_1.npy").unlink()
    files.write_manifest(files.profile_dir("mixed_bfloat16"))
    study = project.load()
    assert study.bridges == {}
    profile = study.candidates[0].profile
    assert profile is not None
    assert profile.same_weights == {}


def test_same_weights_are_those_of_each_seed(project: SmallStudy) -> None:
    profile = project.load().candidates[1].profile
    assert profile is not None
    assert list(profile.same_weights) == [1, 2, 3]
    np.testing.assert_array_equal(profile.same_weights[3], predictions(25, 3, SAME_WEIGHTS_PROBABILITY))


def test_bridge_is_found_by_the_settings_in_force(project: SmallStudy) -> None:
    study = project.load()
    off, same = (result.profile for result in study.candidates[:2])
    assert off is not None
    assert same is not None
    assert study.bridge(off, "train") is study.bridges[BRIDGE]
    assert study.bridge(same, "train") is None


def test_same_weights_of_another_test_set_are_rejected(project: SmallStudy) -> None:
    path = files.profile_dir("mixed_float16") / "same_weights_2.npy"
    np.save(path, np.zeros((7, 4), np.float32))
    files.write_manifest(path.parent)
    with pytest.raises(ComparisonError, match=r"same_weights_2.npy has 7 rows and the test set has 1200 images"):
        project.load()


def test_predictions_of_another_test_set_are_rejected(project: SmallStudy) -> None:
    folder = files.train_dir("mixed_float16", 2)
    np.save(folder / "predictions.npy", np.zeros((7, 4), np.float32))
    files.write_manifest(folder)
    with pytest.raises(ComparisonError, match=r"has 7 rows and the test set has 1200 images: .*train@mixed_float16-2"):
        project.load()


@pytest.mark.parametrize(
    ("path", "content", "stage"),
    [
        ("train/mixed_float16-1/predictions.npy", b"not an array", "train@mixed_float16-1"),
        ("train/mixed_float16-1/history.csv", b"epoch,loss\n1,2\n", "train@mixed_float16-1"),
        ("train/mixed_float16-1/metrics.json", b'{"status": "finished"}', "train@mixed_float16-1"),
        ("profile/float32/rounds.csv", b"", "profile"),
        ("profile/float32/inference.csv", b"process,round\n1,2\n", "profile"),
        ("profile/float32/input_rounds.csv", b"process,round\n", "profile"),
        (f"profile/{BRIDGE}/rounds.csv", b"", "profile"),
        ("profile/mixed_bfloat16/same_weights_2.npy", b"not an array", "profile"),
        ("profile/float32/summary.json", b'{"variant": "float32"}', "profile"),
        ("profile/float32/summary.json", b'{"schema_version": 4, "variant": "float32"}', "profile"),
        ("prepared/test_labels.npy", b"\x93NUMPY", "prepare"),
        ("prepared/info.json", b"{}", "prepare"),
    ],
)
def test_unusable_file_is_named_with_the_stage_that_writes_it(
    project: SmallStudy, path: str, content: bytes, stage: str
) -> None:
    target = files.DATA / path
    target.write_bytes(content)
    if target.name != "test_labels.npy":
        files.write_manifest(target.parent)
    with pytest.raises(CorruptFileError) as raised:
        project.load()
    message = str(raised.value)
    assert message.startswith(str(target))
    assert f"`dvc repro -f -s {stage}`" in message
    assert "\n" not in message


def test_file_that_differs_from_its_manifest_is_rejected(project: SmallStudy) -> None:
    path = files.profile_dir("mixed_float16") / "rounds.csv"
    path.write_text(path.read_text().replace("6", "5", 1))
    with pytest.raises(CorruptFileError, match=str(path)):
        project.load()


@pytest.mark.parametrize("path", ["profile/float32/summary.json", "prepared/test_labels.npy", "environment.json"])
def test_missing_file_is_named(project: SmallStudy, path: str) -> None:
    target: Path = files.DATA / path
    target.unlink()
    with pytest.raises(HalfstepError, match=str(target)) as raised:
        project.load()
    assert isinstance(raised.value, DataError | CorruptFileError)
    assert "dvc repro" in str(raised.value)


def test_failed_baseline_has_no_control(project: SmallStudy) -> None:
    project.edit_training("float32", 2, status="failed", reason="the loss is inf")
    study = project.load()
    assert study.baseline.profile is None
    assert study.control is None


def test_same_weights_that_could_not_be_evaluated_are_missing(project: SmallStudy) -> None:
    (files.profile_dir("mixed_bfloat16") / "same_weights_2.npy").unlink()
    files.write_manifest(files.profile_dir("mixed_bfloat16"))
    candidate = project.load().candidates[1]
    assert sorted(candidate.same_weights) == [1, 3]
