"""MLflow's own server in a thread. It can respond late, respond with an error, or stop responding."""

from __future__ import annotations

import base64
import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

SMALL = {"source": "synthetic", "synthetic_images": 40, "synthetic_classes": 2, "image_size": 8}  # images of a study


class FaultyServer:
    """A tracking server at `uri`.

    Attributes:
        delay_s: delay of every response.
        trouble_from: number of the request from which on `trouble` responds; None: never.
        trouble: an application that is no tracking server.
        requests: number of requests so far.
        log: method and path of each request.
    """

    def __init__(self, app: Any, certificate: tuple[str, str] | None = None) -> None:
        self.delay_s = 0.0
        self.trouble_from: int | None = None
        self.trouble: Any = hello
        self.requests = 0
        self.log: list[tuple[str, str]] = []
        self.app = app
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=_Quiet, ssl_context=certificate)
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        address = f"127.0.0.1:{self._server.server_port}"
        self.uri = f"https://{address.replace('127.0.0.1', 'localhost')}" if certificate else f"http://{address}"

    def start(self) -> None:
        """Starts to respond."""
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def vanish(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Responds to one request, or closes the connection."""
        self.requests += 1
        self.log.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        time.sleep(self.delay_s)
        if self.trouble_from is not None and self.requests >= self.trouble_from:
            return self.trouble(environ, start_response)
        return self.app(environ, start_response)


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Prints nothing: the tests check what a stage prints on standard error."""


@contextmanager
def mlflow_server(folder: Path) -> Iterator[FaultyServer]:
    """MLflow's server for `mlflow.db` in a folder."""
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder}/mlflow.db"
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = "mlflow-artifacts:/"
    os.environ["_MLFLOW_SERVER_SERVE_ARTIFACTS"] = "true"
    os.environ["_MLFLOW_SERVER_ARTIFACT_DESTINATION"] = str(folder / "mlruns")
    from mlflow.server import app, handlers

    handlers._tracking_store = handlers._artifact_repo = None  # of an earlier folder
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    with serving(app) as server:
        yield server


class WithPassword:
    """Asks for a user name and a password, with the response of MLflow's `basic-auth`, before it calls `app`."""

    def __init__(self, app: Any, user: str, password: str) -> None:
        self._app = app
        self._expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if hmac.compare_digest(environ.get("HTTP_AUTHORIZATION", ""), self._expected):
            return self._app(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="mlflow"')])
        return [b"You are not authenticated. Please see https://www.mlflow.org/docs/latest/auth/index.html"]


def refuse(environ: dict[str, Any], _: Any) -> Iterable[bytes]:
    """Closes the connection without a response."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError


def hang(environ: dict[str, Any], _: Any) -> Iterable[bytes]:
    """Keeps the connection open without a response until the client closes it."""
    connection = environ["werkzeug.socket"]
    connection.settimeout(60.0)
    while connection.recv(4096):
        pass
    raise ConnectionAbortedError


def redirect(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Redirects to itself, slowly."""
    time.sleep(0.1)
    start_response("307 Temporary Redirect", [("Location", environ["PATH_INFO"])])
    return [b""]


def later(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Asks for a retry after an hour."""
    start_response("503 Service Unavailable", [("Content-Type", "text/html"), ("Retry-After", "3600")])
    return [b"<h1>Later</h1>"]


def noise(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """An error whose text clears a terminal and has two lines."""
    start_response("400 Bad Request", [("Content-Type", "application/json")])
    return [b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "\\u001b[2Jfirst\\u2028second\\r\\nthird"}']


def hello(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """A server that is not MLflow."""
    start_response("200 OK", [("Content-Type", "text/html")])
    return [b"<h1>hello</h1>"]


@contextmanager
def serving(app: Any, certificate: tuple[str, str] | None = None) -> Iterator[FaultyServer]:
    """A server of any application, which is closed at the end of the block.

    Args:
        app: the WSGI application.
        certificate: files with the certificate for `localhost` and its key; None: without TLS.
    """
    server = FaultyServer(app, certificate)
    server.start()
    try:
        yield server
    finally:
        server.vanish()
