"""Lets a SQLite store that was moved or copied with its project find its artifacts, whose places MLflow keeps.

Otherwise new artifacts would go to the project's former folder, which would be made again, or to a copy's original.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from halfstep.tracking import store

# Where MLflow keeps places of artifacts.
_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def follow(path: Path, experiment: str) -> str | None:
    """Puts the folder beside the store in place of the former one, for the experiment and all that was moved with it.

    Args:
        path: of the store.
        experiment: its name.

    Returns:
        A line that says so; None if the place is right, or is none that halfstep has chosen.

    Raises:
        sqlite3.Error: the store cannot be read or written.
    """
    folder = store.artifact_folder(path)
    with closing(sqlite3.connect(path, timeout=store.LOCKED_S)) as connection, connection:
        row = connection.execute("SELECT artifact_location FROM experiments WHERE name = ?", (experiment,)).fetchone()
        former, present = row and row[0], folder.as_uri()
        if not former or former == present or not former.startswith("file:") or Path(former).name != folder.name:
            return None
        for table, column in _COLUMNS:
            select = f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608  names of ours
            update = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"  # noqa: S608  the same
            for number, value in connection.execute(select).fetchall():
                place = present + value.removeprefix(former)
                if value == former or (value.startswith(f"{former}/") and store.path_of(place).exists()):
                    connection.execute(update, (place, number))
    before = store.path_of(former)
    return f"tracking: the project has been moved or copied: its artifacts are in {folder} now, not in {before}"
