"""Creates the tables of a SQLite store: in memory, and written into a file beside it that takes its place.

MLflow makes them one by one, in seconds and with a thousand writes that wait for the disk. A process that is killed
meanwhile may leave a store that no MLflow can open again.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from halfstep.system.files import atomic_path
from halfstep.system.locking import try_lock
from halfstep.tracking import store

_CREATE_S = 60.0  # to create the tables takes seconds


def create_tables(path: Path) -> None:
    """Makes all tables, unless the store has some; its identifier stays. One process at a time does so."""
    path = path.resolve()  # a link stays one
    if _has_tables(path):
        return
    lock = path.with_name(f".{path.name}.lock")
    held = try_lock(lock, wait_s=_CREATE_S)
    if held is None:  # another process hangs; MLflow says what is wrong
        return
    with held:
        try:
            if not _has_tables(path):
                _create(path)
        finally:
            lock.unlink(missing_ok=True)


def _create(path: Path) -> None:
    from mlflow.store.db.utils import _initialize_tables
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    engine = create_engine("sqlite://", poolclass=StaticPool)
    _initialize_tables(engine)
    with closing(engine.raw_connection()) as connection, atomic_path(path) as temporary_path:
        connection.cursor().execute(f"PRAGMA application_id = {store.application_id(path):d}")
        assert connection.driver_connection is not None, "it was just made"
        with closing(sqlite3.connect(temporary_path)) as file:
            connection.driver_connection.backup(file)
    engine.dispose()


def _has_tables(path: Path) -> bool:
    """Not a file that is missing or empty; of one that cannot be read, MLflow says more."""
    if not path.is_file():
        return False
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=store.LOCKED_S)) as connection:
        return connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table'").fetchone() is not None
    return True
