"""A store that was moved or copied with its project."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from halfstep.params import Params
from halfstep.tracking import run_logging
from halfstep.tracking.tracker import Tracker

TRAINING = run_logging.training("float32", 0)


def log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Logs a file in a run of the project in a folder, and returns the run's identifier."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # which MLflow sets
    (folder / "table.csv").write_text("a\n1\n")
    with Tracker(Params().tracking).run(TRAINING, Params()) as run:
        run.artifact(folder / "table.csv")
    return run.run_id


def places(folder: Path, *runs: str) -> list[str]:
    """Where the artifacts of runs are, by the store in a folder."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    assert all([entry.path for entry in client.list_artifacts(run)] == ["table.csv"] for run in runs)
    return [str(client.get_run(run).info.artifact_uri) for run in runs]


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree], ids=["moved", "copied"])
def test_artifacts_are_those_beside_the_store(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], move: object
) -> None:
    first = log(project, monkeypatch)
    assert capsys.readouterr().out == ""
    before = sorted(path.name for path in (project / "mlruns").iterdir())
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    move(project, elsewhere)  # type: ignore[operator]
    second = log(elsewhere, monkeypatch)
    line = f"its artifacts are in {elsewhere / 'mlruns'} now, not in {project / 'mlruns'}"
    assert line in capsys.readouterr().out
    assert all(place.startswith((elsewhere / "mlruns").as_uri()) for place in places(elsewhere, first, second))
    third = log(elsewhere, monkeypatch)
    assert capsys.readouterr().out == ""
    assert places(elsewhere, third)
    if move is shutil.move:
        assert not project.exists()
    else:
        assert sorted(path.name for path in (project / "mlruns").iterdir()) == before
        assert places(project, first)[0].startswith((project / "mlruns").as_uri())


def test_artifacts_that_did_not_move_with_the_store_stay_where_they_are(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = log(project, monkeypatch)
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    shutil.copytree(project, elsewhere, ignore=shutil.ignore_patterns("mlruns"))
    second = log(elsewhere, monkeypatch)
    old, new = places(elsewhere, first, second)
    assert old.startswith((project / "mlruns").as_uri())
    assert new.startswith((elsewhere / "mlruns").as_uri())


def test_place_that_the_user_has_chosen_is_kept(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    chosen = (tmp_path / "disk").as_uri()
    MlflowClient(f"sqlite:///{project}/mlflow.db").create_experiment(Params().tracking.experiment, chosen)
    assert places(project, log(project, monkeypatch))[0].startswith(chosen)
