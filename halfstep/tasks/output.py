"""What the user's own code prints: shown once, and otherwise kept in a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Sends what is printed in the block to a file, by child processes and libraries in C, too.

    The file stays open: the code may keep the streams.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    stream: TextIO = log.open("w", encoding="utf-8", errors="backslashreplace", buffering=1)
    for printed in filter(None, (sys.stdout, sys.stderr)):  # None: closed when Python started
        printed.flush()
    before, copies = (sys.stdout, sys.stderr), {number: os.dup(number) for number in (1, 2)}
    sys.stdout = sys.stderr = stream
    for number in copies:
        os.dup2(stream.fileno(), number)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for number, copy in copies.items():
            os.dup2(copy, number)
            os.close(copy)
