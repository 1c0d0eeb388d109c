"""A database that another process creates, has locked, or has written with a newer MLflow; and names of metrics."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import mlflow
import pytest

from halfstep.errors import TrackingError
from halfstep.params.schema import TrackingParams
from halfstep.system.files import atomic_path
from halfstep.tracking import store
from halfstep.tracking.active_run import ActiveRun, first_line, logged_name
from halfstep.tracking.tracker import Tracker

CREATE = (
    "import sys; from halfstep.tracking.client import connect; print(len(connect(sys.argv[1]).search_experiments()))"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.mark.slow
def test_two_processes_create_one_store(here: Path, root: Path) -> None:
    command = [sys.executable, "-c", CREATE, f"sqlite:///{here / 'shared.db'}"]
    started = [
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    ended = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert [out.splitlines()[-1] for out, _ in ended] == ["1", "1"]
    assert [path.name for path in here.glob(".*.lock")] == []


def test_process_that_is_killed_while_it_creates_a_store_leaves_none(here: Path) -> None:
    path = here / "mlflow.db"
    if process := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    else:
        with atomic_path(path) as temporary_path:
            temporary_path.write_bytes(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)
    assert not path.exists()
    tracker = Tracker(TrackingParams())
    assert tracker.client.get_experiment(tracker._experiment_id).name == "mixed-precision"


def test_store_of_a_project_that_was_copied_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Tracker(TrackingParams())
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    shutil.copytree(project, elsewhere)
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # which MLflow sets
    with pytest.raises(TrackingError, match=rf"keeps in {project / 'mlruns'}: the project was moved or copied; choose"):
        store.identity(TrackingParams())
    assert store.identity(TrackingParams(experiment="copy"))


def test_new_store_is_like_the_one_that_mlflow_makes(here: Path, store_template: Path) -> None:
    identity = store.identity(TrackingParams())
    Tracker(TrackingParams())
    assert store.identity(TrackingParams()) == identity
    schemas = []
    for path in (here / "mlflow.db", store_template):
        with closing(sqlite3.connect(path)) as connection:
            parts = sorted(connection.execute("SELECT type, name FROM sqlite_master").fetchall())
            columns = [connection.execute(f"PRAGMA table_info('{name}')").fetchall() for _, name in parts]
            schemas.append((parts, columns, connection.execute("SELECT * FROM alembic_version").fetchall()))
    assert schemas[0] == schemas[1]


def test_store_of_a_newer_mlflow_is_refused(here: Path, store_template: Path) -> None:
    path = here / "mlflow.db"
    path.write_bytes(store_template.read_bytes())
    assert store.identity(TrackingParams())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    with pytest.raises(
        TrackingError, match=r"was written by a newer MLflow \(revision ffffffffffff\) than the installed"
    ):
        store.identity(TrackingParams())


@pytest.mark.parametrize("begin", ["BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"])
def test_locked_store_is_not_to_be_moved_away(here: Path, monkeypatch: pytest.MonkeyPatch, begin: str) -> None:
    monkeypatch.setattr(store, "LOCKED_S", 0.2)
    with closing(sqlite3.connect(here / "mlflow.db", isolation_level=None)) as connection:
        connection.execute(begin)
        with pytest.raises(TrackingError, match="is locked by another process") as caught:
            store.identity(TrackingParams())
    assert "move it away" not in str(caught.value)


def test_lock_during_a_run_is_said_in_plain_words() -> None:
    error = Exception("(raised as a result of Query-invoked autoflush)\n(sqlite3.OperationalError) database is locked")
    assert first_line(error) == "another process has locked the database"


@pytest.mark.parametrize(
    "error",
    [
        Exception(
            "(raised as a result of Query-invoked autoflush)\n(sqlite3.OperationalError) database or disk is full"
        ),
        Exception("Failed to upload: [Errno 28] No space left on device: 'mlruns/1'"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
)
def test_full_disk_during_a_run_is_said_in_plain_words(error: Exception) -> None:
    assert first_line(error) == "No space left on device"


NAMES = [
    "err@1",
    "err_x40_1",
    "a/b",
    "/a",
    "../a",
    "a//b",
    ".",
    "..",
    "a:b",
    "ä",
    "F1 (macro)",
    "top-5",
    "a" * 300,
    "a" * 301,
]


def test_metric_of_any_name_is_logged(here: Path, store_template: Path) -> None:
    (here / "mlflow.db").write_bytes(store_template.read_bytes())
    client = mlflow.MlflowClient(f"sqlite:///{here / 'mlflow.db'}")
    run = ActiveRun(client, client.create_run("0").info.run_id)
    run.metrics({name: float(number) for number, name in enumerate(NAMES)})
    assert not run.is_incomplete
    logged = client.get_run(run.run_id).data.metrics
    assert logged == {logged_name(name): float(number) for number, name in enumerate(NAMES)}
