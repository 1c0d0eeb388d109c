"""Creates the tables of a SQLite store: in memory, and written into the file in one transaction.

MLflow makes them one by one, in seconds and with a thousand writes that wait for the disk. A process that is killed
meanwhile may leave a store that no MLflow can open again.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from halfstep.locking import try_lock
from halfstep.tracking import store

_CREATE_S = 60.0  # to create the tables takes seconds

_Client = TypeVar("_Client")


def connected(path: Path, connect: Callable[[], _Client]) -> _Client:
    """Connects to a SQLite store, whose tables are created first if it has none.

    A store that was left incomplete, and so has no runs, is made anew; its content is kept beside it, as a line says.

    Args:
        path: the store's file.
        connect: connects to it.

    Raises:
        Exception: what `connect` raises.
    """
    if not _tables(path):
        with _one_creates(path):
            if not _tables(path):
                _create(path)
    try:
        return connect()
    except Exception as error:
        if store.is_locked(error):
            raise
    with _one_creates(path):  # another process may mend it meanwhile
        if _is_incomplete(path):
            aside = _free_name(path)
            shutil.copyfile(path, aside)
            _create(path)  # into the same file, to which MLflow keeps a connection
            print(
                f"tracking: {path} was left incomplete by a process that was killed while it created it, and has no "
                f"runs: moved to {aside.name}, and created anew",
                flush=True,
            )
    return connect()


@contextmanager
def _one_creates(path: Path) -> Iterator[None]:
    """Waits until no other process creates the tables."""
    lock = path.with_name(f".{path.name}.lock")
    held = try_lock(lock, wait_s=_CREATE_S)
    if held is None:  # it hangs; its lock is not ours to remove
        yield
        return
    with held:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _create(path: Path) -> None:
    """Makes all tables in memory, and replaces the content of the file with them; its identifier stays."""
    from mlflow.store.db.utils import _initialize_tables
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    engine = create_engine("sqlite://", poolclass=StaticPool)
    _initialize_tables(engine)  # type: ignore[no-untyped-call]
    with closing(engine.raw_connection()) as connection, closing(sqlite3.connect(path, timeout=store.LOCKED_S)) as file:
        connection.cursor().execute(f"PRAGMA application_id = {store.application_id(path):d}")
        assert connection.driver_connection is not None, "it was just made"
        connection.driver_connection.backup(file)
    engine.dispose()


def _is_incomplete(path: Path) -> bool:
    """Whether a store lacks tables or changes of them, and has no runs; not if that cannot be read."""
    from mlflow.store.db.base_sql_model import Base
    from mlflow.store.db.utils import _get_latest_schema_revision as latest

    store.require_known_revision(path)
    tables = _tables(path)
    if "experiments" not in tables:
        return False
    try:
        with closing(sqlite3.connect(path, timeout=store.LOCKED_S)) as connection:
            if "runs" in tables and connection.execute("SELECT 1 FROM runs LIMIT 1").fetchone():
                return False
    except sqlite3.Error:
        return False
    newest = latest()  # type: ignore[no-untyped-call]
    return not tables.issuperset(Base.metadata.tables) or store.revision(path) != newest


def _tables(path: Path) -> set[str]:
    """Their names; none of a file that is missing or cannot be read, of which MLflow says more."""
    if not path.is_file():
        return set()
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=store.LOCKED_S)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return set()


def _free_name(path: Path) -> Path:
    number = 1
    while (free_path := path.with_name(f"{path.name}.incomplete-{number}")).exists():
        number += 1
    return free_path
