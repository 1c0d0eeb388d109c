"""What is logged for each stage, with names that are code elsewhere and figures that cannot be drawn."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from PIL import Image, ImageFont

from halfstep import files
from halfstep.params import Params
from halfstep.results.prepared import PREPARED_INFO, PreparedInfo
from halfstep.tracking import run_logging
from halfstep.tracking.active_run import RESULT_TAG, ActiveRun
from halfstep.tracking.backfill import backfill
from halfstep.tracking.confusion_matrix import confusion_matrix_png
from halfstep.tracking.run_logging import CONFUSION_MATRIX
from halfstep.tracking.tracker import Tracker
from stages.compare import main
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


def draw(*names: str) -> Image.Image:
    labels = np.arange(200) % len(names)
    image = Image.open(io.BytesIO(confusion_matrix_png(labels, labels, names)))
    image.load()
    return image


@pytest.mark.parametrize("name", NAMES)
def test_confusion_matrix_is_drawn_with_any_name(
    name: str, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    assert draw(name, "cat").format == "PNG"
    assert (capfd.readouterr().err, list(recwarn)) == ("", [])


def test_names_are_text() -> None:
    plain, formula = draw("$x$", "cat"), draw("x", "cat")
    assert plain.tobytes() != formula.tobytes()


def test_long_names_leave_space_for_the_matrix() -> None:
    pixels = np.asarray(draw("x" * 300, "y" * 300)).astype(int)
    assert (pixels[..., 2] - pixels[..., 0] > 80).sum() > 90 * 90 / 2  # the diagonal is dark blue


@pytest.mark.parametrize("classes", [1, 2, 30, 31, 1000, 1001, 10_000])
def test_rows_are_true_classes_and_columns_predicted_ones(classes: int) -> None:
    labels, predicted = np.zeros(5, np.int32), np.full(5, classes - 1)
    png = confusion_matrix_png(predicted, labels, [f"class {number}" for number in range(classes)])
    pixels = np.asarray(Image.open(io.BytesIO(png)))
    assert max(pixels.shape) < 1600
    dark = (pixels == [8, 48, 107]).all(axis=-1)  # all images are in one cell, at the top right
    rows, columns = np.nonzero(dark)
    assert rows.max() - rows.min() == columns.max() - columns.min()
    matrix = (pixels == [247, 251, 255]).all(axis=-1) | dark
    assert (rows.min(), columns.max()) == (np.nonzero(matrix)[0].min(), np.nonzero(matrix)[1].max())


def test_runs_are_complete_with_any_class_names(study: SmallStudy, capfd: pytest.CaptureFixture[str]) -> None:
    study.rename_classes(NAMES)
    backfill(Tracker(SETTINGS.tracking), SETTINGS)
    runs_by_name = {run.info.run_name: run for run in runs()}
    assert {run.info.status for run in runs_by_name.values()} == {"FINISHED"}
    assert all(RESULT_TAG in run.data.tags for run in runs_by_name.values())
    assert CONFUSION_MATRIX in artifacts(runs_by_name["train float32 seed 1"])
    assert capfd.readouterr().err == ""


def test_figure_that_cannot_be_drawn_costs_only_the_figure(
    study: SmallStudy, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFont, "core", None)  # Pillow without FreeType has no fonts of a given size
    for _ in range(2):
        with Tracker(SETTINGS.tracking).run(run_logging.training("float32", 1), SETTINGS) as run:
            run_logging.log_training(run, files.train_dir("float32", 1), "abc")
        err = capfd.readouterr().err
        assert err.startswith("data/train/float32-1: confusion_matrix.png cannot be drawn (")
        assert err.count("\n") == 1
    assert [(run.info.status, run.data.tags[RESULT_TAG]) for run in runs()] == [("FINISHED", "abc")] * 2
    assert [artifacts(run) for run in runs()] == [{"history.csv", "metrics.json"}] * 2


def test_compare_logs_nothing_twice_if_a_figure_cannot_be_drawn(
    study: SmallStudy,
    write_params: Callable[..., Path],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_params(variants=VARIANTS, train={"variants": list(VARIANTS), "seeds": [1]})
    monkeypatch.setattr(ImageFont, "core", None)  # Pillow without FreeType has no fonts of a given size
    assert main() == 0
    before = len(runs())
    assert capfd.readouterr().err.count(f"{CONFUSION_MATRIX} cannot be drawn") == 2
    assert main() == 0
    assert len(runs()) == before
    assert capfd.readouterr().err == ""


def test_prepared_images_without_a_grid_are_logged(study: SmallStudy, capfd: pytest.CaptureFixture[str]) -> None:
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
