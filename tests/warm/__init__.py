"""A Python that has imported the libraries: a stage of a test starts in half a second in place of 4 to 8."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PYTHON = "WARM_PYTHON"  # path of the program
OWNER = "WARM_OWNER"  # process with which the servers end


def make(folder: Path) -> Path:
    """Makes the program in a folder with a short name; its servers run until the folder is gone.

    Returns:
        Its path. It is called `python`, so that DVC finds it where its folder is in `PATH`.
    """
    program, sockets = folder / "bin/python", folder / "sockets"
    program.parent.mkdir()
    sockets.mkdir()
    script = Path(__file__).with_name("python.py")
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{script}' '{sockets}' '{sys.executable}' \"$@\"\n")
    program.chmod(0o755)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix, 'bin')}\n")
    (folder / "lib").symlink_to(Path(sys.prefix, "lib"))
    return program


def python() -> str:
    """The program for a test; that of the tests themselves where none is made."""
    return os.environ.get(PYTHON, sys.executable)


def run(arguments: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python itself, whose `sys.executable` is the program: what it starts by that name starts quickly."""
    return subprocess.run([python(), *arguments], executable=sys.executable, text=True, capture_output=True, **options)
