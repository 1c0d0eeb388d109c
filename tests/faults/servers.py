"""MLflow's own server, in a thread, that can be late, fail with 500, or be gone from one request on."""

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
        delay_s: every answer comes this late.
        fail_from: number of the request from which on the answer is 500; None for never.
        vanish_from: number of the request from which on nobody answers; None for never.
        requests: how many have come.
    """

    def __init__(self, app: Any) -> None:
        self.delay_s = 0.0
        self.fail_from: int | None = None
        self.vanish_from: int | None = None
        self.requests = 0
        self._app = app
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=_Quiet)
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self.uri = f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        """Answers from now on."""
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def vanish(self) -> None:
        """Nobody answers at `uri` any more."""
        self._server.shutdown()
        self._server.server_close()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answers one request, or does not."""
        self.requests += 1
        time.sleep(self.delay_s)
        if self.vanish_from is not None and self.requests >= self.vanish_from:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        if self.fail_from is not None and self.requests >= self.fail_from:
            start_response("500 Internal Server Error", [("Content-Type", "text/html")])
            return [b"<h1>Internal Server Error</h1>"]
        return self._app(environ, start_response)


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Says nothing: what a stage says on standard error is counted."""


@contextmanager
def mlflow_server(folder: Path) -> Iterator[FaultyServer]:
    """MLflow's server over `mlflow.db` in a folder."""
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder}/mlflow.db"
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = str(folder / "mlruns")
    from mlflow.server import app, handlers

    handlers._tracking_store = None  # of a folder before this one
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    with serving(app) as server:
        yield server


def hello(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """A server of something else."""
    start_response("200 OK", [("Content-Type", "text/html")])
    return [b"<h1>hello</h1>"]


@contextmanager
def serving(app: Any) -> Iterator[FaultyServer]:
    """A server of any application, which is gone at the end of the block."""
    server = FaultyServer(app)
    server.start()
    try:
        yield server
    finally:
        server.vanish()
