"""Ends the wait for a server. Libraries limit the wait for each packet; no library limits a whole call.

A server that sends one byte a second, or redirects again and again, would hold a stage for hours.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

DEADLINE_S = 12.0  # of one call: two requests of `MLFLOW_HTTP_REQUEST_TIMEOUT`, and a margin
CONNECT_DATABASE_S = 120.0  # MLflow creates its tables in a new database
UPLOAD_BYTES_PER_S = 250_000  # a slower upload is ended: 4 s for each MB, in addition to `DEADLINE_S`

Result = TypeVar("Result")


class DeadlineError(Exception):
    """A call that did not end in time."""


def call_within(limit_s: float, function: Callable[[], Result]) -> Result:
    """Calls `function()` in another thread, and waits at most `limit_s` seconds for it.

    Python cannot end a thread: one that is late waits for its server until the process ends, and its result is dropped.
    So a function must name the run that it writes to, and must not use MLflow's active run.

    Raises:
        DeadlineError: the function did not end in time.
    """
    result: Future[Result] = Future()
    work = functools.partial(contextvars.copy_context().run, _set_result, result, function)
    threading.Thread(target=work, daemon=True, name="tracking").start()  # a daemon does not keep the process alive
    try:
        return result.result(limit_s)
    except TimeoutError:
        if result.done():
            raise  # the function's own
        raise DeadlineError(f"no answer within {limit_s:g} s") from None


def _set_result(result: Future[Result], function: Callable[[], Result]) -> None:
    try:
        result.set_result(function())
    except BaseException as error:
        result.set_exception(error)
