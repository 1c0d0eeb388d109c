"""MLflow's client. Each of its calls to a server ends in time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlflow

from halfstep.imports import quick_imports
from halfstep.tracking import creation, deadline, store

_UPLOADS = frozenset({"log_artifact", "log_artifacts", "log_model_artifacts"})


def connect(uri: str) -> mlflow.MlflowClient:
    """MLflow's client for a store. A SQLite store is a local file: its calls have no deadline.

    Raises:
        DeadlineError: the database did not answer in time. The client's methods raise it, too.
        Exception: what MLflow or the driver of the database raises.
    """
    create = functools.partial(mlflow.MlflowClient, uri)  # connects to a database at once
    if path := store.sqlite_path(uri):
        _import_store_of_databases()
        return creation.connected(path, create)
    return cast(mlflow.MlflowClient, _ClientWithDeadline(deadline.call_within(deadline.CONNECT_DATABASE_S, create)))


@functools.cache
def _import_store_of_databases() -> None:
    """Imports what MLflow would import with the first client: SQLAlchemy and Alembic take a second otherwise."""
    with quick_imports():
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


class _ClientWithDeadline:
    """Has the methods of MLflow's client, and ends each call after `call_limit_s` seconds."""

    def __init__(self, client: mlflow.MlflowClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        @functools.wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            limit_s = call_limit_s(name, arguments)
            return deadline.call_within(limit_s, functools.partial(method, *arguments, **keywords))

        return call


def call_limit_s(name: str, arguments: tuple[Any, ...]) -> float:
    """Seconds that a call may take. An upload, whose second argument is the path, gets more for each byte."""
    count_bytes = _size(Path(arguments[1])) if name in _UPLOADS else 0
    return deadline.DEADLINE_S + count_bytes / deadline.UPLOAD_BYTES_PER_S


def _size(path: Path) -> int:
    paths = path.rglob("*") if path.is_dir() else [path]
    return sum(entry.stat().st_size for entry in paths if entry.is_file())
