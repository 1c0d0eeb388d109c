"""What a stage says while it runs: lines for people, one that is rewritten on a terminal, and lines of JSON.

The JSON is for the program that started the stage, if that asked for it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

ASKED = {"HALFSTEP_TELL": "1"}  # in the environment of a stage that should tell
_KEY = "halfstep"
_SILENT_S = 4.8  # after which a line says that the stage still runs, where the output is no terminal
_START_S = 1.0  # of a process, before it can say anything
_TICK_S = 0.2
_CLEAR = "\r\x1b[K"


class _Now:
    """What is going on now."""

    text = ""
    is_shown = False
    began_s = printed_s = 0.0


def tell(text: str) -> None:
    """Tells how far the stage is, in a few words; does nothing where no program asked."""
    if ASKED.items() <= os.environ.items():
        print(json.dumps({_KEY: text}), flush=True)


def say(name: str, text: str) -> None:
    """Prints and tells how far a run is."""
    print(f"{name}: {text}", flush=True)
    _Now.printed_s = time.monotonic()
    tell(text)


def progress(name: str, text: str) -> None:
    """Shows what is going on: on a terminal in a line that the next one replaces, elsewhere after some silence."""
    _Now.text, _Now.began_s = f"{name}: {text}", time.monotonic()
    if sys.stdout.isatty():
        _rewrite()
    tell(text)


@contextmanager
def never_silent(name: str) -> Iterator[None]:
    """In the block, what is going on is shown again and again, with the seconds for which it has."""
    _Now.printed_s = time.monotonic() - _START_S
    progress(name, "starts")
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(_TICK_S):
            if sys.stdout.isatty():
                _rewrite()
            elif time.monotonic() - _Now.printed_s >= _SILENT_S:
                _Now.printed_s = time.monotonic()
                print(_text(), flush=True)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        ended.set()
        ticker.join()
        if _Now.is_shown:
            print(end="", flush=True)


def cleared() -> str:
    """What removes the line that is rewritten, to be written before anything else."""
    was_shown, _Now.is_shown = _Now.is_shown, False
    return _CLEAR if was_shown else ""


def told(line: str) -> str | None:
    """What a line of a stage's output tells; None if it is meant for people."""
    try:
        message = json.loads(line) if line.startswith(f'{{"{_KEY}": ') else None
    except ValueError:
        return None
    return str(message[_KEY]) if isinstance(message, dict) else None


def _text() -> str:
    seconds = round(time.monotonic() - _Now.began_s)
    return f"{_Now.text}{f' · {seconds} s' if seconds else ''}"


def _rewrite() -> None:
    sys.stdout.write(f"{_CLEAR}{_text()[: shutil.get_terminal_size().columns - 1]}")
    sys.stdout.flush()
    _Now.is_shown = True
