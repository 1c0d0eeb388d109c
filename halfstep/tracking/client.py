"""MLflow's client. How long a call to a server may take, MLflow's variables say (`halfstep.tracking`)."""

from __future__ import annotations

import functools

import mlflow

from halfstep.system.imports import quick_imports
from halfstep.tracking import creation, store


def connect(uri: str) -> mlflow.MlflowClient:
    """MLflow's client for a store, which is created if it is a SQLite file without tables.

    Raises:
        Exception: what MLflow or the driver of the database raises.
    """
    if path := store.sqlite_path(uri):
        _import_store_of_databases()
        creation.create_tables(path)
    return mlflow.MlflowClient(uri)


@functools.cache
def _import_store_of_databases() -> None:
    """Imports what MLflow would import with the first client: SQLAlchemy and Alembic take a second otherwise."""
    with quick_imports():
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
