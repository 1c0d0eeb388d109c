"""XLA's programs on disk, in the process that compiles or loads them: the flags, and lines that say nothing.

TensorFlow reads `TF_XLA_FLAGS` when the process first uses XLA, which is after the import and after a fork.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

VARIABLE = "TF_XLA_FLAGS"
CACHE_FLAGS = "--tf_xla_persistent_cache_"
_CACHE_FLAG = re.compile(rf'\s*{CACHE_FLAGS}\w+(=("[^"]*"|\S*))?')
# Printed with each program that is loaded on a CPU: that its text form cannot be parsed, and that the machine lacks
# `prefer-no-gather`, which is no instruction set (openxla/xla 44565).
_FALSE_LINES = r"/cpu_aot_loader\.cc\|text-format tensorflow\.XlaSerializedCacheEntry/d"


def without_cache(flags: str) -> str:
    """The value of `TF_XLA_FLAGS` without those of the cache."""
    return _CACHE_FLAG.sub("", flags).strip()


@contextmanager
def programs_in(folder: Path | None) -> Iterator[None]:
    """In the block, which is before the first use of XLA, programs are loaded from this folder and stored there.

    None: from nowhere, also where the user's environment names a folder, whose programs may be of other settings.
    """
    flags = without_cache(os.environ.get(VARIABLE, ""))
    if folder is not None and (not flags or flags.startswith("-")):  # else it names a file with flags
        flags = f'{flags} {CACHE_FLAGS}directory="{folder}"'.strip()
    if flags:
        os.environ[VARIABLE] = flags
    else:
        os.environ.pop(VARIABLE, None)
    loads = folder is not None and any(folder.glob("xla_*"))
    with _false_lines_hidden() if loads else nullcontext():
        yield


@contextmanager
def _false_lines_hidden() -> Iterator[None]:
    """Standard error, that of C++ too, goes through a program that leaves out lines; what a crash prints arrives."""
    sed = shutil.which("sed")
    if sed is None:
        yield
        return
    sys.stderr.flush()
    original = os.dup(2)
    # of a group of its own: one that is stopped with this process could not end after it
    filtering = subprocess.Popen(
        [sed, "-u", _FALSE_LINES], stdin=subprocess.PIPE, stdout=original, start_new_session=True
    )
    assert filtering.stdin is not None
    os.dup2(filtering.stdin.fileno(), 2)
    filtering.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
        filtering.wait()
