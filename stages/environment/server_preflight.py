"""Checks that a tracking server or database responds before any stage starts."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from http.client import responses
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stages.errors import one_line, without_password
from stages.params import TrackingParams
from stages.tracking import deadline, store

if TYPE_CHECKING:
    from mlflow import MlflowClient

CONNECT_S = 3.0
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306}
_START_SERVER = "start it (`mlflow server`, see the README), or name another store"
_NOT_MLFLOW = f"is not an MLflow server (MLflow cannot read its response); {_START_SERVER}"
_LOG_IN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or name another store"
_CERTIFICATE = "MLFLOW_TRACKING_SERVER_CERT_PATH"
_TRUST = (
    f"set {_CERTIFICATE} to a file with the certificate of its authority, or, only on a network that you trust, "
    "MLFLOW_TRACKING_INSECURE_TLS=true"
)
# How urllib3 and MLflow begin the message of an HTTP error.
_HTTP_ERROR = re.compile(r"(?:too many|API request to endpoint \S+ failed with error code) (\d{3})")


def server_problem(tracking: TrackingParams) -> str | None:
    """What is wrong with the server of a tracking store, and what to do; None if it responds, or without a server.

    Takes at most `deadline.DEADLINE_S` seconds, and for an HTTP server the time to import MLflow, 1.5 s.
    """
    uri = store.resolve_uri(tracking)
    scheme = uri.partition(":")[0].partition("+")[0]
    if scheme in ("http", "https"):
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        problem = _within_deadline(lambda: _mlflow_problem(client, tracking.experiment))
    elif scheme in _DATABASE_PORTS or scheme == "mssql":
        problem = _within_deadline(lambda: _database_problem(uri, scheme))
    else:
        return None
    return f"{without_password(uri)} {problem}" if problem else None


def _within_deadline(check: Callable[[], str | None]) -> str | None:
    limit_s = deadline.DEADLINE_S
    try:
        return deadline.call_within(limit_s, check)
    except deadline.DeadlineError:
        return f"did not answer within {limit_s:g} s; {_START_SERVER}"


def _mlflow_problem(client: MlflowClient, experiment: str) -> str | None:
    from mlflow.exceptions import RestException

    try:
        found = client.get_experiment_by_name(experiment)
    except RestException:
        return None  # a response in JSON: the stages report MLflow's own message
    except Exception as error:  # MLflow raises some exceptions of the libraries that it uses
        return _http_problem(_causes(error))
    return None if found is None or found.name == experiment else _NOT_MLFLOW


def _http_problem(causes: Sequence[BaseException]) -> str | None:
    tls_error = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    if tls_error is not None:
        return _tls_problem(tls_error)
    certificate = os.environ.get(_CERTIFICATE)
    if certificate and not os.path.exists(certificate):  # noqa: PTH110  Path.exists raises an error for a long name
        return f"cannot be checked: {_CERTIFICATE} is '{one_line(certificate, 300)}', which does not exist; correct it"
    if any(isinstance(cause, TimeoutError) for cause in causes):
        return f"did not answer within {os.environ['MLFLOW_HTTP_REQUEST_TIMEOUT']} s; {_START_SERVER}"
    status = next((int(match[1]) for cause in causes if (match := _HTTP_ERROR.match(str(cause)))), None)
    if status == 401:
        return "rejects the user name or the password (401 Unauthorized); " + _LOG_IN
    if status == 403:
        return None  # this user may be allowed to do what the stages need
    if status is not None and status != 404:
        reason = f"{status} {responses.get(status, '')}".strip()
        return f"responds with an error ({reason}); check its log, or name another store"
    if status == 404 or len(causes) == 1:
        return _NOT_MLFLOW
    return f"cannot be reached ({_system_message(causes)}); {_START_SERVER}"


def _tls_problem(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not accepted ({one_line(error.verify_message, 100)}); {_TRUST}"
    reason = one_line(str(error.reason or error).replace("_", " ").lower(), 100)
    return f"cannot be reached by TLS ({reason}); use http:// if the server has no TLS, or name another store"


def _database_problem(uri: str, scheme: str) -> str | None:
    return _address_problem(uri, scheme) or _driver_problem(uri) or _login_problem(uri)


def _driver_problem(uri: str) -> str | None:
    missing = _missing_driver(uri)
    rest = "which is not installed; install the package that contains it, or name another store"
    return f"needs the Python module {missing}, {rest}" if missing else None


def _missing_driver(uri: str) -> str | None:
    """The module that SQLAlchemy imports for a database; None if it is installed."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        return one_line(str(error.name), 40)
    except (ArgumentError, NoSuchModuleError, ValueError):
        return None  # reported below, or by MLflow
    return None


def _login_problem(uri: str) -> str | None:
    """Connects once: MLflow would try again for minutes."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        create_engine(uri, poolclass=NullPool).connect().close()
    except (SQLAlchemyError, ValueError) as error:
        message = one_line(str(getattr(error, "orig", None) or error).strip().partition("\n")[0], 200)
        if "password" in message:
            return f"rejects the user name or the password ({message}); correct them in the URI, or set PGPASSWORD"
        return f"cannot be used ({message}); check its log, or name another store"
    return None


def _address_problem(uri: str, scheme: str) -> str | None:
    advice = "start the database, or name another store"
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port or _DATABASE_PORTS.get(scheme)
    except ValueError as error:
        return f"has an invalid port ({error}); {advice}"
    if host is None or port is None:
        return None  # a Unix socket, or the name of a data source that only the driver can find
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return f"cannot be reached ({_system_message(_causes(error))}); {advice}"
    return None


def _causes(error: BaseException) -> list[BaseException]:
    """The error and those that it wraps: MLflow wraps the error of requests, which wraps urllib3's and the system's."""
    causes: list[BaseException] = []
    cause: object = error
    while isinstance(cause, BaseException) and cause not in causes:
        causes.append(cause)
        inner = cause.args[0] if cause.args and isinstance(cause.args[0], BaseException) else None
        cause = inner or getattr(cause, "reason", None) or cause.__cause__ or cause.__context__
    return causes


def _system_message(causes: Sequence[BaseException]) -> str:
    messages = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    return messages[0] if messages else type(causes[-1]).__name__
