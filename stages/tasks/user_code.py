"""Runs the user's own code: whatever it raises becomes one line that names the model or the task."""

from __future__ import annotations

import signal
import site
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.errors import HalfstepError, ModelError, one_line

SLOW_S = 60.0  # the largest networks of `keras.applications` are built in less
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_MAX_LENGTH = 300


@contextmanager
def explained(subject: str, failure: str, kind: type[HalfstepError] = ModelError) -> Iterator[None]:
    """Turns every exception of the block into a `HalfstepError`, and prints a line if the block takes long.

    `sys.exit` in a user's module would otherwise end the stage without a word. The exceptions that a signal raises in
    the block are not changed.

    Args:
        subject: names the model or the task, at the start of the message.
        failure: what did not work, such as "cannot be built".
        kind: class of the error.

    Raises:
        HalfstepError: the block raised an exception.
    """
    with _signals_recorded() as received, _announced_if_slow(subject):
        try:
            yield
        except HalfstepError:
            raise
        except BaseException as error:
            if received:
                raise
            raise kind(f"{subject} {failure}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """An exception in one printable line, with the line of the user's code that raised it."""
    return f"{_text(error)}{_place(error)}"


def _text(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return _shortened(f"it raised {name}({'' if not error.args else repr(error.args[0])})")
    try:
        text = _shortened(str(error))
    except Exception:  # of the user's own class
        return name
    return f"{name}: {text}" if isinstance(error, KeyError) else text or name


def _shortened(text: str) -> str:
    return one_line(" ".join(text.split()), _MAX_LENGTH)  # messages of Keras have many lines


def _place(error: BaseException) -> str:
    """File and line of the innermost call in the user's code; empty if the exception was raised elsewhere."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(Path(frame.filename))]
    return f" ({one_line(Path(frames[-1].filename).name)}, line {frames[-1].lineno})" if frames else ""


def _is_users(path: Path) -> bool:
    elsewhere = (sys.prefix, sys.base_prefix, *site.getsitepackages(), str(Path(__file__).parents[1]))
    return path.is_file() and not any(path.is_relative_to(folder) for folder in elsewhere)


@contextmanager
def _signals_recorded() -> Iterator[list[int]]:
    """Yields a list of the signals that arrive in the block, and restores their handlers."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield received
        return
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in previous.items():
        if callable(handler):
            signal.signal(number, _recording(received, handler))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            if handler is not None:  # None is a handler that Python did not install
                signal.signal(number, handler)


def _recording(received: list[int], handler: Callable[..., object]) -> Callable[..., object]:
    def handle(number: int, frame: object) -> object:
        received.append(number)
        return handler(number, frame)

    return handle


@contextmanager
def _announced_if_slow(subject: str) -> Iterator[None]:
    """A function that never returns is not an error that can be detected: a line says what is waited for."""
    line = f"{subject} has not been built after {SLOW_S:.0f} s; still waiting"
    timer = threading.Timer(SLOW_S, print, (line,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
