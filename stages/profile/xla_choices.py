"""What XLA's autotuner chose in a process, as XLA writes it. Not seen on a GPU yet.

On a GPU, XLA times several kernels for a matrix multiplication or a convolution when it compiles it, and a process
keeps what it chose. With a flag, XLA writes all choices of the process to a file at the end of each compilation. Turns
compile nothing, so the file does not disturb them. On a CPU XLA tunes nothing, and there is no file.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

from stages.profile.records import ArmConfig, ArmRecord

_VARIABLE, _FLAG = "XLA_FLAGS", "--xla_gpu_dump_autotune_results_to"
_SUFFIX = ".txt"  # by it, XLA writes text
_RUN_TIME = re.compile(r"^\s*run_time\s*\{[^{}]*\}\n?", re.MULTILINE)
_ENTRY = re.compile(r"^results\s*\{", re.MULTILINE)


class XlaChoices:
    """The files with the choices of all processes.

    Args:
        folder: where they are; None if they are not recorded.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def recorded(self, config: ArmConfig, arm: str, process: int) -> ArmConfig:
        """The same with a new file for a process of an arm."""
        if (path := self._path(arm, process)) is None:
            return config
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a measurement that was dropped
        return replace(config, xla_choices=path)

    def add_to(self, record: ArmRecord, arm: str, process: int) -> None:
        """Adds what was chosen in a process of an arm, if anything."""
        path = self._path(arm, process)
        if path is not None and (found := read(path)) is not None:
            record.xla_choices.setdefault(process, found)

    def _path(self, arm: str, process: int) -> Path | None:
        return self._folder and self._folder / f"xla-{arm}-{process}{_SUFFIX}"


def record_to(path: Path) -> None:
    """Makes XLA write its choices to a file. Call it in the process itself, before TensorFlow computes.

    A flag or a file of flags that the user has set stays as it is, and XLA splits flags at spaces: then there is no
    file at `path`.
    """
    flags = os.environ.get(_VARIABLE, "").strip()
    if _FLAG not in flags and (not flags or flags.startswith("-")) and not re.search(r"\s", str(path)):
        os.environ[_VARIABLE] = f"{flags} {_FLAG}={path.absolute()}".lstrip()  # a script changes the folder


def read(path: Path) -> str | None:
    """The choices, without the times that were measured for them; None without any."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return _RUN_TIME.sub("", text) if _ENTRY.search(text) else None


def digest(choices: str) -> str:
    """Short name of the choices: the first 12 hexadecimal digits of their sha256."""
    return hashlib.sha256(choices.encode()).hexdigest()[:12]
