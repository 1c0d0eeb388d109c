"""Asks a tracking server whether it is there, before anything is begun: MLflow itself takes many seconds to say no.

Nothing here imports MLflow. What cannot be told in a moment is left to the stages: they ask before they work, too.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from stages.errors import without_password
from stages.params import TrackingParams
from stages.tracking import store

CONNECT_S = 3.0
ANSWER_S = 8.0
DEADLINE_S = 12.0  # over all, the search for the host's address included, which has no limit of its own
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306}
_API = "/api/2.0/mlflow/experiments/get-by-name"


def problem_with_server(tracking: TrackingParams) -> str | None:
    """What is wrong with the server of a store's URI, with what to do; None where it answers, or where none is needed.

    Takes at most `DEADLINE_S` seconds, and the time of one answer where all is well.
    """
    uri = store.resolve_uri(tracking)
    scheme = uri.partition(":")[0].partition("+")[0]
    if scheme in ("http", "https"):
        found = _within_deadline(lambda: _mlflow_problem(uri, tracking.experiment))
        advice = "start it (`mlflow server`, see the README), or name another store"
    elif scheme in _DATABASE_PORTS or scheme == "mssql":
        found = _within_deadline(lambda: _database_problem(uri, scheme))
        advice = "start the database, or name another store"
    else:
        return None
    return f"{without_password(uri)} {found}; {advice}" if found else None


def _within_deadline(ask: Callable[[], str | None]) -> str | None:
    answers: list[str | None] = []
    thread = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return answers[0] if answers else f"did not answer within {DEADLINE_S:g} s"


def _mlflow_problem(uri: str, experiment: str) -> str | None:
    import requests  # what MLflow asks with: the same proxies and certificates; a tenth of a second to import

    try:
        answer = requests.get(
            uri.rstrip("/") + _API,
            params={"experiment_name": experiment},
            timeout=(CONNECT_S, ANSWER_S),
            allow_redirects=False,
        )
    except requests.exceptions.SSLError:
        return None  # MLflow has settings of its own for certificates
    except requests.Timeout:
        return f"did not answer within {ANSWER_S:g} s"
    except (requests.RequestException, ValueError) as error:
        return f"cannot be reached ({_reason(error)})"
    if answer.status_code >= 500:
        return f"answers with an error of its own ({answer.status_code} {answer.reason})"
    # 404 is MLflow's answer too, for an experiment that is yet to be made; a door that asks who is there is MLflow's
    if answer.status_code in (200, 404) and not _is_json_object(answer.text):
        return "is no MLflow server (its answer is not MLflow's)"
    return None


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _database_problem(uri: str, scheme: str) -> str | None:
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port or _DATABASE_PORTS.get(scheme)
    except ValueError as error:
        return f"names no port that there could be ({error})"
    if host is None or port is None:
        return None  # a socket or the name of a data source: the driver knows where that is
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return f"cannot be reached ({_reason(error)})"
    return None


def _reason(error: BaseException) -> str:
    """The system's own words, from below the layers that wrap them."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        inner = seen.args[0] if seen.args and isinstance(seen.args[0], BaseException) else None
        seen = inner or getattr(seen, "reason", None) or seen.__cause__ or seen.__context__
    return type(error).__name__
