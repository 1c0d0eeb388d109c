"""MLflow's own server in a thread. It can respond late, respond with an error, or stop responding."""

from __future__ import annotations

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


class FaultyServer:
    """A tracking server at `uri`.

    Attributes:
        delay_s: delay of every response.
        fail_from: number of the request from which on the response is `error`; None: never.
        error: status line of these responses. With 429 and 503, the server asks for a retry after an hour.
        vanish_from: number of the request from which on the connection is closed without a response; None: never.
        requests: number of requests so far.
    """

    def __init__(self, app: Any) -> None:
        self.delay_s = 0.0
        self.fail_from: int | None = None
        self.error = "500 Internal Server Error"
        self.vanish_from: int | None = None
        self.requests = 0
        self._app = app
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=_Quiet)
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self.uri = f"http://127.0.0.1:{self._server.server_port}"

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
        time.sleep(self.delay_s)
        if self.vanish_from is not None and self.requests >= self.vanish_from:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        if self.fail_from is not None and self.requests >= self.fail_from:
            retry_after = [("Retry-After", "3600")] if self.error[:3] in ("429", "503") else []
            start_response(self.error, [("Content-Type", "text/html"), *retry_after])
            return [b"<h1>Error</h1>"]
        return self._app(environ, start_response)


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Prints nothing: the tests check what a stage prints on standard error."""


@contextmanager
def mlflow_server(folder: Path) -> Iterator[FaultyServer]:
    """MLflow's server for `mlflow.db` in a folder."""
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder}/mlflow.db"
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = str(folder / "mlruns")
    from mlflow.server import app, handlers

    handlers._tracking_store = None  # of an earlier folder
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    with serving(app) as server:
        yield server


def hello(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """A server that is not MLflow."""
    start_response("200 OK", [("Content-Type", "text/html")])
    return [b"<h1>hello</h1>"]


@contextmanager
def serving(app: Any) -> Iterator[FaultyServer]:
    """A server of any application, which is closed at the end of the block."""
    server = FaultyServer(app)
    server.start()
    try:
        yield server
    finally:
        server.vanish()
