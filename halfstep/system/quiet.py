"""Drops what a block prints."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """In the block, nothing is printed or logged, also by code in C++: what goes wrong is in its exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    with open(os.devnull, "w") as nothing:  # noqa: PTH123  its number is needed
        kept = [(number, os.dup(number)) for number in (1, 2)]
        try:
            for number, _ in kept:
                os.dup2(nothing.fileno(), number)
            yield
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
            logging.disable(before)
