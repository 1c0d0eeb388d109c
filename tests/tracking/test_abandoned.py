"""What a lost machine left RUNNING is ended by the checkout that the fleet works for, and by no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from stages import files
from stages.inputs.head_digests import HeadDigests
from stages.params import Params
from stages.tracking import provenance, run_logging
from stages.tracking.abandoned import REASON, close_abandoned
from stages.tracking.active_run import StoreState
from stages.tracking.tracker import CLOSED_TAG, RunIdentity, Tracker

TRAINING = run_logging.training("float32", 0)
KEPT_OPEN: list[object] = []  # a generator that is garbage-collected would end its run


@pytest.fixture
def params(project: Path) -> Params:
    """All checkouts log to one store."""
    return Params.model_validate({"tracking": {"uri": f"sqlite:///{project}/mlflow.db"}})


@pytest.fixture
def client(project: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{project}/mlflow.db")


def clone(project: Path, name: str, head: str | None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another checkout, of the fleet that works for the checkout `head`."""
    folder = project / name
    shutil.copytree(project / "data", folder / "data")
    monkeypatch.chdir(folder)
    if head is not None:
        digests = HeadDigests(git={}, source={}, model={}, task={}, checkout=head)
        files.write_json(folder / ".halfstep/fleet.json", digests.model_dump())
    return folder


def left_running(params: Params, identity: RunIdentity = TRAINING, run_id: str | None = None) -> str:
    """A run whose machine was lost."""
    manager = Tracker(params.tracking).run(identity, params, run_id=run_id)
    run = manager.__enter__()
    KEPT_OPEN.append(manager)
    run._state = StoreState(has_failed=True)  # a lost machine logs nothing
    return run.run_id


def test_only_runs_of_this_fleet_and_training_are_ended(
    project: Path, params: Params, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = provenance.checkout_id()
    at_home = left_running(params)
    clone(project, "node1", head, monkeypatch)
    lost, other_seed = left_running(params), left_running(params, run_logging.training("float32", 1))
    clone(project, "another", "of-a-colleague", monkeypatch)
    of_colleague = left_running(params)
    monkeypatch.chdir(project)
    assert close_abandoned(params.tracking, TRAINING) == 1
    status = {run_id: client.get_run(run_id).info.status for run_id in (at_home, other_seed, of_colleague)}
    assert set(status.values()) == {"RUNNING"}
    ended = client.get_run(lost)
    assert (ended.info.status, ended.data.tags[CLOSED_TAG]) == ("KILLED", REASON)
    assert close_abandoned(params.tracking, TRAINING) == 0


def test_complete_run_whose_end_was_lost_is_finished(
    project: Path, params: Params, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = provenance.checkout_id()
    clone(project, "node1", head, monkeypatch)
    complete = left_running(params)
    client.set_tag(complete, "result.sha256", "abc")
    monkeypatch.chdir(project)
    assert close_abandoned(params.tracking, TRAINING) == 1
    assert client.get_run(complete).info.status == "FINISHED"


def test_resumed_run_belongs_to_its_new_writer(
    project: Path, params: Params, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = provenance.checkout_id()
    node = clone(project, "node1", head, monkeypatch)
    run_id = left_running(params)
    clone(project, "node2", head, monkeypatch)
    left_running(params, run_id=run_id)
    writer = provenance.checkout_id()
    assert client.get_run(run_id).data.tags[provenance.CHECKOUT_TAG] == writer
    monkeypatch.chdir(node)
    Tracker(params.tracking).close_abandoned()  # as the first machine would, when it is back
    assert client.get_run(run_id).info.status == "RUNNING"
    monkeypatch.chdir(project)
    left_running(params, run_id=run_id)  # at home, without the fleet
    assert close_abandoned(params.tracking, TRAINING) == 0
    assert client.get_run(run_id).info.status == "RUNNING"
