from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from stages.errors import TrackingError
from stages.params import TrackingParams
from stages.tracking import store


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_default_store_stands_at_the_root_of_the_checkout(folder: Path) -> None:
    assert store.resolve_uri(TrackingParams()) == f"sqlite:///{folder}/mlflow.db"


def test_a_temporary_checkout_finds_the_same_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "copy").mkdir()
    monkeypatch.chdir(folder / "copy")
    monkeypatch.setenv("DVC_ROOT", str(folder))
    assert store.resolve_uri(TrackingParams()) == f"sqlite:///{folder}/mlflow.db"
    assert store.resolve_uri(TrackingParams(uri="sqlite:///runs/a.db")) == f"sqlite:///{folder}/runs/a.db"


def test_the_parameter_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert store.resolve_uri(TrackingParams()) == "http://127.0.0.1:5000"
    assert store.resolve_uri(TrackingParams(uri="https://host/x")) == "https://host/x"


def test_an_absolute_path_stays(folder: Path) -> None:
    assert store.resolve_uri(TrackingParams(uri=f"sqlite:///{folder}/a.db")) == f"sqlite:///{folder}/a.db"


@pytest.mark.parametrize(
    "uri", ["mlruns", "./mlruns", "file:///tmp/mlruns", "ftp://host", "sqlite:mlflow.db", "http:/x"]
)
def test_what_is_no_store(uri: str) -> None:
    problem = store.problem_with(uri)
    assert problem is not None
    assert "it must be a URI such as sqlite:///mlflow.db" in problem


def test_a_store_in_a_folder_that_is_missing(folder: Path) -> None:
    problem = store.problem_with(f"sqlite:///{folder}/no_such/a.db")
    assert problem is not None
    assert f"the folder {folder}/no_such does not exist" in problem


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "postgresql+psycopg2://host/db", "databricks://profile"])
def test_what_is_a_store(uri: str) -> None:
    assert store.problem_with(uri) is None


def test_a_sqlite_store_that_can_be_made(folder: Path) -> None:
    assert store.problem_with(f"sqlite:///{folder}/a.db") is None


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://user:secret@host:5000/x", "http://host:5000/x"),
        ("postgresql://user:se%40cret@host/db", "postgresql://host/db"),
        ("https://token@host", "https://host"),
        ("sqlite:////tmp/mlflow.db", "sqlite:////tmp/mlflow.db"),
    ],
)
def test_a_password_is_not_shown(uri: str, shown: str) -> None:
    assert store.without_password(uri) == shown


def digest(**tracking: str) -> str:
    return str(store.identity(TrackingParams(**tracking))["sha256"])


def test_a_store_has_one_identity() -> None:
    assert digest() == digest()
    assert digest() == digest(uri="sqlite:///mlflow.db")


def test_another_store_or_experiment_is_another_identity() -> None:
    assert len({digest(), digest(experiment="b"), digest(uri="sqlite:///b.db"), digest(uri="http://a")}) == 4


def test_a_password_changes_no_identity() -> None:
    assert digest(uri="http://user:secret@host") == digest(uri="http://user:other@host") == digest(uri="http://host")


def test_a_store_that_was_deleted_and_begun_anew_is_another(folder: Path) -> None:
    before = digest()
    (folder / "mlflow.db").unlink()
    assert digest() != before


def test_a_store_keeps_its_identity_and_its_tables(folder: Path, store_template: Path) -> None:
    shutil.copy(store_template, folder / "mlflow.db")
    before = digest()
    with sqlite3.connect(folder / "mlflow.db") as connection:
        (experiments,) = connection.execute("select count(*) from experiments").fetchone()
    assert (digest(), experiments) == (before, 1)


def test_a_file_that_is_no_database(folder: Path) -> None:
    (folder / "mlflow.db").write_text("no database at all" * 100)
    with pytest.raises(TrackingError, match=r"mlflow\.db cannot be used as a tracking store"):
        digest()


def test_a_file_that_is_no_database_is_no_store(folder: Path) -> None:
    (folder / "notes.txt").write_text("not a database at all")
    problem = store.problem_with(f"sqlite:///{folder}/notes.txt")
    assert problem is not None
    assert "is no SQLite database" in problem
