"""Another program that keeps a part of a core busy."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

# It counts as another program because it is not a child of this process. It ends when the folder in its first argument
# or the process in its second argument no longer exists. In each tenth of a second it computes for a share of the time.
BUSY = """
import os, sys, time
while os.path.exists(sys.argv[1]):
    os.kill(int(sys.argv[2]), 0)
    ends_s = time.monotonic() + 0.1 * float(sys.argv[3])
    while time.monotonic() < ends_s:
        pass
    time.sleep(0.1 * (1 - float(sys.argv[3])))
"""


@contextmanager
def other_load(cores: float) -> Iterator[None]:
    """Keeps this share of one core busy during the block; 0 is none."""
    with tempfile.TemporaryDirectory() as folder:
        if cores:
            arguments = [sys.executable, BUSY, folder, str(os.getpid()), str(cores)]
            subprocess.run(["sh", "-c", '"$0" -c "$1" "$2" "$3" "$4" 2>/dev/null &', *arguments], check=True)
        yield
