"""What is logged for each stage, with names that are code elsewhere and figures that cannot be drawn."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from halfstep.params.schema import Params
from halfstep.results.prepared import PREPARED_INFO, PreparedInfo
from halfstep.system import files
from halfstep.tracking import run_logging
from halfstep.tracking.active_run import RESULT_TAG, ActiveRun
from halfstep.tracking.backfill import backfill
from halfstep.tracking.run_logging import CONFUSION_MATRIX
from halfstep.tracking.tracker import Tracker
from tests.hostile_names import NAMES
from tests.small_study import PROTOCOL, SmallStudy

VARIANTS = {name: {"policy": name} for name in ("float32", "mixed_float16")}
SETTINGS = Params.model_validate({"variants": VARIANTS, "train": {"variants": list(VARIANTS), "seeds": [1]}})


@pytest.fixture
def study(project: Path) -> SmallStudy:
    """A complete `data/` and an empty store."""
    shutil.rmtree("data")
    small_study = SmallStudy(project)
    small_study.write()
    for name in ("class_counts.csv", "rejected.csv"):
        (files.PREPARED / name).write_bytes(b"")
    files.write_manifest(files.PREPARED)
    return small_study


def runs() -> list[Run]:
    client = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    experiment = client.get_experiment_by_name("mixed-precision")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def artifacts(run: Run) -> set[str]:
    client = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    return {item.path for item in client.list_artifacts(run.info.run_id)}


def logged(log: Callable[[ActiveRun], None]) -> Run:
    with Tracker(SETTINGS.tracking).run(run_logging.profiling("float32"), SETTINGS) as run:
        log(run)
    return next(stored for stored in runs() if stored.info.run_id == run.run_id)


def test_rows_are_true_classes_and_columns_predicted_ones() -> None:
    csv = run_logging._confusion_matrix(np.array([1, 1, 0]), np.array([0, 1, 0]), ("=cat", "dog"))
    assert csv.decode().splitlines() == ["true class,'=cat,dog", "'=cat,1,1", "dog,0,1"]


def test_runs_are_complete_with_any_class_names(study: SmallStudy, capfd: pytest.CaptureFixture[str]) -> None:
    study.rename_classes(NAMES)
    backfill(Tracker(SETTINGS.tracking), SETTINGS)
    runs_by_name = {run.info.run_name: run for run in runs()}
    assert {run.info.status for run in runs_by_name.values()} == {"FINISHED"}
    assert all(RESULT_TAG in run.data.tags for run in runs_by_name.values())
    assert CONFUSION_MATRIX in artifacts(runs_by_name["train float32 seed 1"])
    assert capfd.readouterr().err == ""


def test_prepared_images_are_logged(study: SmallStudy, capfd: pytest.CaptureFixture[str]) -> None:
    stored = logged(lambda run: run_logging.log_preparation(run, files.PREPARED, "abc"))
    assert stored.data.tags[RESULT_TAG] == "abc"
    assert artifacts(stored) == {"class_counts.csv", "rejected.csv", "info.json"}
    assert stored.data.metrics["classes"] == len(PreparedInfo.read(PREPARED_INFO).classes)
    assert capfd.readouterr().err == ""


def test_measurement_of_which_the_profiler_failed_is_logged(
    study: SmallStudy, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = files.profile_dir("float32")
    shutil.rmtree(folder / "trace", ignore_errors=True)
    stored = logged(lambda run: run_logging.log_profile(run, folder, "accuracy", [0.9], "abc"))
    assert stored.data.tags[RESULT_TAG] == "abc"
    assert "summary.json" in artifacts(stored)
    assert capfd.readouterr().err == ""


def test_warnings_are_text_in_the_description(study: SmallStudy) -> None:
    study.edit_profile("float32", warnings=("<script>alert(1)</script> *a* $x$",))
    stored = logged(lambda run: run_logging.log_profile(run, files.profile_dir("float32"), "accuracy", [0.9], "abc"))
    text = stored.data.tags["mlflow.note.content"]
    assert text == "- &lt;script&gt;alert(1)&lt;/script&gt; \\*a\\* &#36;x&#36;"


def test_many_warnings_fit_into_a_description(study: SmallStudy) -> None:
    study.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"warnings": ("long " * 100,) * 100}))
    stored = logged(lambda run: run_logging.log_profile(run, files.profile_dir("float32"), "accuracy", [0.9], "abc"))
    text = stored.data.tags["mlflow.note.content"]
    assert len(text) <= 8000
    assert text.endswith("The rest is in summary.json.\n")
    assert stored.data.tags[RESULT_TAG] == "abc"


def test_reason_of_a_failure_is_text_in_the_description(study: SmallStudy) -> None:
    study.edit_training("float32", 1, status="failed", reason="layer <b>x</b> is nan")
    directory = files.train_dir("float32", 1)
    stored = logged(lambda run: run_logging.log_training(run, directory, "abc"))
    assert stored.data.tags["mlflow.note.content"] == "Failed: layer &lt;b&gt;x&lt;/b&gt; is nan."
    assert stored.data.tags["failure"] == "layer <b>x</b> is nan"
