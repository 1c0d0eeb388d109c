"""Resolves and checks the URI of the tracking store. Does not import MLflow, which takes 1.5 s.

SQLAlchemy, which MLflow uses, takes SQLite URIs apart and puts them together. It takes 0.2 s to import, and is
imported for paths alone that it would decode.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import secrets
import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from halfstep.errors import NO_SPACE, TrackingError, is_disk_full, without_password
from halfstep.params.schema import TrackingParams
from halfstep.system import files
from halfstep.system.files import original_root

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_SCHEMES = ("http", "https", "sqlite", "mysql", "postgresql", "mssql")
_SQLITE = "sqlite:///"
_PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)
_SECONDS = re.compile(r"\d+(\.\d+)?")
_SQLITE_HEADER = b"SQLite format 3\0"
_ID_FILE = ".halfstep-id"
LOCKED_S = 30.0  # to wait for a process that has locked a database


def resolve_uri(tracking: TrackingParams) -> str:
    """The store's URI: `tracking.uri`, else `MLFLOW_TRACKING_URI`, else `mlflow.db` at the root of the checkout.

    Relative SQLite paths are relative to the root of the original checkout, also in `dvc exp run --temp`.
    """
    uri = tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return _file_uri(original_root() / "mlflow.db", {})
    url = _sqlite_url(uri)
    if url is None or not _names_a_file(url):
        return uri
    path = os.path.expanduser(str(url.database))  # noqa: PTH111  Path.expanduser raises an error for an unknown user
    return _file_uri(Path(os.path.realpath(original_root() / path)), url.query)


def _file_uri(path: Path, options: Mapping[str, Any]) -> str:
    plain = f"{_SQLITE}{path}"
    if not options and _PLAIN_PATH.fullmatch(str(path)):
        return plain
    from sqlalchemy.engine import URL, make_url

    if not options and make_url(plain) == URL.create("sqlite", database=str(path)):
        return plain
    # MLflow creates the parent folder of `sqlite:///PATH` without decoding PATH, so it would create `a%3Fb` for `a?b`.
    return URL.create("sqlite+pysqlite", database=str(path), query=options).render_as_string(hide_password=False)


@dataclass(frozen=True)
class _PlainUrl:
    """What SQLAlchemy finds in the URI of a SQLite store without options or characters that it would decode."""

    database: str
    host: None = None
    query: Mapping[str, Any] = field(default_factory=dict)


def _sqlite_url(uri: str) -> URL | _PlainUrl | None:
    if uri.partition("://")[0] not in ("sqlite", "sqlite+pysqlite"):
        return None
    if uri.startswith(_SQLITE) and _PLAIN_PATH.fullmatch(uri.removeprefix(_SQLITE)):
        return _PlainUrl(uri.removeprefix(_SQLITE))
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(uri)
    except (ArgumentError, ValueError):
        return None


def _names_a_file(url: URL | _PlainUrl) -> bool:
    path = url.database or ""
    return not url.host and path not in ("", ":memory:") and not path.startswith("file:") and "\0" not in path


def problem_with(uri: str) -> str | None:
    """The problem with a store's URI and what to do about it; None without a problem. Uses no network."""
    scheme = uri.partition(":")[0].partition("+")[0]
    if "://" not in uri or scheme not in _SCHEMES:
        others = "Databricks" if scheme.startswith("databricks") else "a plain folder"
        return f"it must be a URI such as {_SQLITE}mlflow.db or http://127.0.0.1:5000; {others} is not a store"
    if scheme != "sqlite":
        return None
    url = _sqlite_url(uri)
    if url is None or not _names_a_file(url):
        return f"a SQLite store must be a file, such as {_SQLITE}mlflow.db or {_SQLITE}/absolute/path/mlflow.db"
    return _option_problem(url.query) or _file_problem(Path(str(url.database)))


def _option_problem(options: Mapping[str, Any]) -> str | None:
    if set(options) <= {"timeout"} and _SECONDS.fullmatch(str(options.get("timeout", 0))):
        return None
    return "the only option of a SQLite store is ?timeout=SECONDS; write a ? that is part of the path as %3F"


def _file_problem(path: Path) -> str | None:
    if not os.path.isdir(path.parent):  # noqa: PTH112  Path.is_dir raises an error for a long name
        return f"the folder {path.parent} does not exist; create it, or choose another path"
    if not os.access(path if os.path.exists(path) else path.parent, os.R_OK | os.W_OK):  # noqa: PTH110  so does exists
        return f"{path} is not readable and writable for this user; change its permissions, or choose another path"
    if os.path.isfile(path) and _first_bytes(path) not in (b"", _SQLITE_HEADER):  # noqa: PTH113  so does is_file
        return f"{path} is not a SQLite database; choose another file, which is created if it is missing"
    return None


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(len(_SQLITE_HEADER))


def sqlite_path(uri: str) -> Path | None:
    """The file of a SQLite store; None for any other store."""
    url = _sqlite_url(uri)
    return Path(str(url.database)) if url is not None and _names_a_file(url) else None


def identity(tracking: TrackingParams) -> dict[str, Any]:
    """The content of `data/keys/tracking`: a digest of the store and the experiment, which contains no password.

    It changes, so that `compare` runs again, if a SQLite store or its folder of artifacts was deleted, because a new
    one has another random identifier, and after `log_again`.

    Raises:
        TrackingError: the SQLite file cannot be used, or was moved without its folder of artifacts.
        DataError: the folder of artifacts cannot be written.
    """
    uri = resolve_uri(tracking)
    path = sqlite_path(uri)
    identifiers = (str(application_id(path)), _folder_id(artifact_folder(path))) if path else ()
    if path:
        require_known_revision(path)
        _require_artifacts_beside(path, tracking.experiment)
    parts = (without_password(uri), tracking.experiment, _known_id(_log_again_file()), *identifiers)
    return {"sha256": hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()}


def log_again() -> None:
    """Makes the next `dvc repro` run `compare`: not everything could be logged. Later ones do not run it again."""
    files.write_text(_log_again_file(), uuid.uuid4().hex)


def artifact_folder(sqlite: Path) -> Path:
    """The folder of the artifacts of a SQLite store."""
    return sqlite.parent / "mlruns"


def artifact_location(uri: str) -> str | None:
    """`mlruns/` next to a SQLite store, as an absolute path for temporary checkouts; None: the server chooses."""
    path = sqlite_path(uri)
    return artifact_folder(path).as_uri() if path else None


def path_of(uri: str) -> Path:
    """The path that a `file:` URI names."""
    return Path(unquote(urlsplit(uri).path))


def has_artifacts(artifact_uri: str) -> bool:
    """Whether there is a file at the `file:` URI of a run's artifacts."""
    folder = path_of(artifact_uri)
    return folder.is_dir() and any(folder.iterdir())


def _log_again_file() -> Path:
    return original_root() / files.WORK_DIR / "log-again"


def _folder_id(folder: Path) -> str:
    """The random identifier of a folder; created if it has none."""
    path = folder / _ID_FILE
    if not _known_id(path):
        files.write_text(path, uuid.uuid4().hex)
    return _known_id(path)


def _known_id(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def application_id(path: Path) -> int:
    """The `application_id` of a database file, which MLflow does not use. Sets a random one if it has none.

    Raises:
        TrackingError: the file cannot be used.
    """
    try:
        connection = sqlite3.connect(path, timeout=LOCKED_S)
        try:
            (number,) = connection.execute("PRAGMA application_id").fetchone()
            if number == 0:
                number = secrets.randbelow(2**31 - 1) + 1
                connection.execute(f"PRAGMA application_id = {number:d}")
            return int(number)
        finally:
            connection.close()
    except sqlite3.Error as error:
        if is_locked(error):
            raise TrackingError(
                f"{path} is locked by another process for {LOCKED_S:.0f} s at least: wait until it has ended, or end it"
            ) from error
        if is_disk_full(error):
            raise TrackingError(f"{path}: {NO_SPACE}") from error
        raise TrackingError(
            f"{path} cannot be used as a tracking store ({error}): move it away, or choose another path"
        ) from error


def is_locked(error: Exception) -> bool:
    """Whether an error of SQLite, or of what uses it, is that another process has locked the database."""
    return "database is locked" in str(error) or "database table is locked" in str(error)


def revision(path: Path) -> str | None:
    """The revision of the tables that MLflow has created in a database; None without any."""
    return _first_value(path, "SELECT version_num FROM alembic_version")


def experiment_id(path: Path, name: str) -> str | None:
    """The identifier of an experiment in a database, which need not be current; None if it has none of this name."""
    return _first_value(path, "SELECT experiment_id FROM experiments WHERE name = ?", name)


def _first_value(path: Path, query: str, *values: str) -> str | None:
    """What a query finds first; None without a row, and of a file that is missing or no database."""
    if not path.is_file():
        return None
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=LOCKED_S)) as connection:
        row = connection.execute(query, values).fetchone()
        return str(row[0]) if row else None
    return None


def _require_artifacts_beside(path: Path, experiment: str) -> None:
    """Refuses an experiment of halfstep whose artifacts MLflow keeps in another project's folder."""
    place = _first_value(path, "SELECT artifact_location FROM experiments WHERE name = ?", experiment) or ""
    folder = artifact_folder(path)
    if place.startswith("file:") and place != folder.as_uri() and path_of(place).name == folder.name:
        raise TrackingError(
            f"tracking.experiment is '{experiment}', whose artifacts {path} keeps in {path_of(place)}: the project was "
            "moved or copied; choose another name, or move it back"
        )


def require_known_revision(path: Path) -> None:
    """Refuses a database whose tables are of a newer MLflow than the installed one."""
    database_revision, spec = revision(path), importlib.util.find_spec("mlflow")
    if database_revision is None or spec is None or spec.origin is None:
        return
    known = Path(spec.origin).parent / "store/db_migrations/versions"
    if re.fullmatch(r"\w+", database_revision) and known.is_dir() and not any(known.glob(f"{database_revision}_*.py")):
        raise TrackingError(
            f"{path} was written by a newer MLflow (revision {database_revision}) than the installed "
            f"{metadata.version('mlflow')}: install that MLflow, or choose another path for tracking.uri"
        )
