from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from mlflow import MlflowClient
from sqlalchemy.engine import make_url

from halfstep.errors import TrackingError
from halfstep.params.schema import TrackingParams
from halfstep.tracking import store
from halfstep.tracking.store import artifact_location


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_default_store_is_at_the_root_of_the_checkout(folder: Path) -> None:
    assert store.resolve_uri(TrackingParams()) == f"sqlite:///{folder}/mlflow.db"


ODD_NAMES = ("a b", "a%20b", "a?b", "a#b", "a%zz", "ä", "ä?", "a:b@c", "a[b]", "~a")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_name_of_the_checkout_may_have_any_character(
    name: str, folder: Path, store_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = folder / name
    checkout.mkdir()
    shutil.copy(store_template, checkout / "mlflow.db")
    monkeypatch.chdir(checkout)
    uri = store.resolve_uri(TrackingParams())
    assert store.sqlite_path(uri) == checkout / "mlflow.db"
    assert store.problem_with(uri) is None
    store.identity(TrackingParams())
    client = MlflowClient(uri)
    run = client.create_run(client.create_experiment("x", artifact_location(uri)))
    client.log_text(run.info.run_id, "hello", "notes/a.txt")
    (written,) = (checkout / "mlruns").rglob("a.txt")
    assert written.read_text() == "hello"
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id, "notes")] == ["notes/a.txt"]
    with sqlite3.connect(checkout / "mlflow.db") as connection:
        assert connection.execute("select count(*) from runs").fetchone() == (1,)
    assert [entry.name for entry in folder.iterdir()] == [name]


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:///x.db?timeout=5", "x.db"),
        ("sqlite+pysqlite:///x.db", "x.db"),
        ("sqlite:///a%3Fb.db", "a?b.db"),
        ("sqlite:///a%20b.db", "a b.db"),
        ("sqlite:///a b.db", "a b.db"),
        ("sqlite:///~nosuchuser/x.db", "~nosuchuser/x.db"),
    ],
)
def test_path_of_a_uri_is_read_as_sqlalchemy_reads_it(uri: str, path: str, folder: Path) -> None:
    resolved = store.resolve_uri(TrackingParams(uri=uri))
    assert store.sqlite_path(resolved) == folder / path
    assert store.resolve_uri(TrackingParams(uri=resolved)) == resolved
    assert make_url(resolved).query == make_url(uri).query


def test_options_of_a_uri_reach_mlflow(folder: Path, store_template: Path) -> None:
    shutil.copy(store_template, folder / "x.db")
    MlflowClient(store.resolve_uri(TrackingParams(uri="sqlite:///x.db?timeout=5"))).search_experiments()
    assert [entry.name for entry in folder.iterdir()] == ["x.db"]


@pytest.mark.parametrize(
    ("uri", "fragment"),
    [
        ("sqlite://", "must be a file"),
        ("sqlite:///", "must be a file"),
        ("sqlite:///:memory:", "must be a file"),
        ("sqlite:///file:x.db?uri=true", "must be a file"),
        ("sqlite://host/x.db", "must be a file"),
        ("sqlite:///a%00b.db", "must be a file"),
        ("sqlite://host:x/y.db", "must be a file"),
        ("sqlite+aiosqlite:///x.db", "must be a file"),
        ("sqlite:///x.db?tiemout=5", "the only option of a SQLite store is ?timeout=SECONDS"),
        ("sqlite:///x.db?timeout=soon", "the only option of a SQLite store is ?timeout=SECONDS"),
        ("sqlite:///x.db?timeout=1&timeout=2", "the only option of a SQLite store is ?timeout=SECONDS"),
        (f"sqlite:///{'x' * 5000}/y.db", "does not exist"),
        ("databricks", "Databricks is not a store"),
        ("databricks://team", "Databricks is not a store"),
        ("databricks-uc", "Databricks is not a store"),
        ("./mlruns", "a plain folder is not a store"),
    ],
)
def test_sqlite_uri_that_cannot_be_used_has_a_problem(uri: str, fragment: str) -> None:
    assert fragment in str(store.problem_with(store.resolve_uri(TrackingParams(uri=uri))))


def test_temporary_checkout_uses_the_store_of_the_original(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "copy").mkdir()
    monkeypatch.chdir(folder / "copy")
    monkeypatch.setenv("DVC_ROOT", str(folder))
    assert store.resolve_uri(TrackingParams()) == f"sqlite:///{folder}/mlflow.db"
    assert store.resolve_uri(TrackingParams(uri="sqlite:///runs/a.db")) == f"sqlite:///{folder}/runs/a.db"


def test_parameter_takes_precedence_over_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert store.resolve_uri(TrackingParams()) == "http://127.0.0.1:5000"
    assert store.resolve_uri(TrackingParams(uri="https://host/x")) == "https://host/x"


@pytest.mark.parametrize(
    "uri", ["mlruns", "./mlruns", "file:///tmp/mlruns", "ftp://host", "sqlite:mlflow.db", "http:/x"]
)
def test_invalid_uri_has_a_problem(uri: str) -> None:
    problem = store.problem_with(uri)
    assert problem is not None
    assert "it must be a URI such as sqlite:///mlflow.db" in problem


def test_store_in_a_missing_folder_has_a_problem(folder: Path) -> None:
    problem = store.problem_with(f"sqlite:///{folder}/no_such/a.db")
    assert problem is not None
    assert f"the folder {folder}/no_such does not exist" in problem


def digest(**tracking: str) -> str:
    return str(store.identity(TrackingParams(**tracking))["sha256"])


def test_identity_depends_on_the_store_and_the_experiment() -> None:
    assert len({digest(), digest(experiment="b"), digest(uri="sqlite:///b.db"), digest(uri="http://a")}) == 4


def test_identity_does_not_depend_on_the_password() -> None:
    assert digest(uri="http://user:secret@host") == digest(uri="http://user:other@host") == digest(uri="http://host")


def test_deleted_store_that_is_created_again_has_another_identity(folder: Path) -> None:
    before = digest()
    (folder / "mlflow.db").unlink()
    assert digest() != before


def test_reading_the_identity_does_not_change_the_store(folder: Path, store_template: Path) -> None:
    shutil.copy(store_template, folder / "mlflow.db")
    before = digest()
    with sqlite3.connect(folder / "mlflow.db") as connection:
        (experiments,) = connection.execute("select count(*) from experiments").fetchone()
    assert (digest(), experiments) == (before, 1)


def test_identity_of_an_invalid_database_is_an_error(folder: Path) -> None:
    (folder / "mlflow.db").write_text("not a database" * 100)
    with pytest.raises(TrackingError, match=r"mlflow\.db cannot be used as a tracking store"):
        digest()


def test_deleted_folder_of_artifacts_changes_the_identity_once(folder: Path) -> None:
    before = digest()
    shutil.rmtree(folder / "mlruns")
    changed = digest()
    assert changed != before
    assert digest() == changed


def test_request_to_log_again_changes_the_identity_once() -> None:
    before = digest()
    store.log_again()
    changed = digest()
    store.log_again()
    assert len({before, changed, digest()}) == 3
    assert digest() == digest()
