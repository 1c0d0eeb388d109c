"""A training whose tracking server fails continues, and its run is completed later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from halfstep.params.schema import Params, TrackingParams, TrainParams
from halfstep.system import files
from halfstep.tracking import backfill
from halfstep.tracking.tracker import Tracker
from tests.faults.servers import FaultyServer, mlflow_server, refuse

TRAIN = TrainParams(variants=("float32",), epochs=4, batch_size=8)
FOLDER = files.train_dir("float32", 0)


@pytest.fixture
def server(project: Path) -> Iterator[FaultyServer]:
    with mlflow_server(project) as started:
        yield started


def params_for(server: FaultyServer) -> Params:
    uri = server.uri.replace("://", "://user:s3cret@")
    return Params(train=TRAIN, tracking=TrackingParams(uri=uri))


def runs(project: Path) -> list[Run]:
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(ids, "tags.stage = 'train'"))


def after_epochs(count: int, then: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls `then` after the given number of epochs, when they are logged."""
    from halfstep.train import stage
    from halfstep.train.epochs import Epoch

    def epoch_line(name: str, epochs: int) -> Callable[[Epoch], None]:
        return lambda row: then() if row.epoch + 1 == count else None

    monkeypatch.setattr(stage, "epoch_line", epoch_line)


def test_server_that_fails_during_training_gets_the_whole_run_later(
    project: Path, server: FaultyServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from halfstep.train.stage import run_stage

    def vanish() -> None:
        server.trouble, server.trouble_from = refuse, 0

    after_epochs(2, vanish, monkeypatch)
    run_stage(params_for(server), "float32", 0)
    captured = capfd.readouterr()
    kept, stopped = captured.err.splitlines()
    assert kept.startswith("MLflow: the store does not answer")
    assert stopped.startswith("MLflow: logging stopped")
    assert "the next `compare` logs them" in stopped
    files.verify_manifest(FOLDER)
    (unfinished,) = runs(project)
    assert unfinished.info.status == "RUNNING"  # the server did not respond

    server.trouble_from = None
    tracker = Tracker(params_for(server).tracking)
    completed = backfill.backfill(tracker, params_for(server))
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    (run,) = (run for run in runs(project) if run.info.run_id != unfinished.info.run_id)
    assert run.info.run_id in completed
    assert run.info.status == "FINISHED"
    assert client.get_run(unfinished.info.run_id).info.status == "KILLED"
    assert run.data.tags["result.sha256"] == files.verify_manifest(FOLDER)
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in history] == [0, 1, 2, 3]
    assert backfill.backfill(tracker, params_for(server)) == completed

    written = [
        captured.out,
        captured.err,
        *(path.read_text(errors="ignore") for path in project.rglob("*") if path.is_file()),
    ]
    assert not [text for text in written if "s3cret" in text]


def test_next_training_ends_the_unfinished_run(
    project: Path, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halfstep.train.stage import run_stage

    def vanish() -> None:
        server.trouble, server.trouble_from = refuse, 0

    with monkeypatch.context() as patch:
        after_epochs(1, vanish, patch)
        run_stage(params_for(server), "float32", 0)
    server.trouble_from = None
    run_stage(params_for(server), "float32", 0)
    assert sorted(run.info.status for run in runs(project)) == ["FINISHED", "KILLED"]
