"""The terminal, or what stands in for it, as tables are printed to it."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_WIDTH_OF_FILES = 120  # columns; rich takes 80


def wide_console() -> Console:
    """A console as wide as the terminal; as wide as a table needs where the output goes to a file or a pipe."""
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_WIDTH_OF_FILES if is_free else None)
