"""Finds the trace files that a path stands for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from stages.errors import TraceError

SUFFIX = ".xplane.pb"


@dataclass(frozen=True)
class TraceFiles:
    """The trace files of one run, one a host, and what the reader should know about the choice."""

    paths: tuple[Path, ...]
    warnings: tuple[str, ...] = ()


def find_trace_files(path: Path) -> TraceFiles:
    """The trace files of the newest run at `path`, which is a trace file, a run's folder or a log directory.

    Raises:
        TraceError: nothing is there, or no trace lies below the folder.
    """
    if path.is_file():
        return TraceFiles((path,))
    if not path.is_dir():
        raise TraceError(f"{path} does not exist: give a {SUFFIX} file or a log directory that holds one")
    runs = _runs(path)
    if not runs:
        raise TraceError(f"{path} holds no trace: no *{SUFFIX} file lies in it or below it")
    newest = max(runs, key=lambda run: (max(file.stat().st_mtime for file in runs[run]), run))
    return TraceFiles(tuple(sorted(runs[newest])), _choice_warning(len(runs), newest))


def _runs(folder: Path) -> dict[Path, list[Path]]:
    runs: dict[Path, list[Path]] = defaultdict(list)
    for file in folder.rglob(f"*{SUFFIX}"):
        if file.is_file():
            runs[file.parent].append(file)
    return runs


def _choice_warning(runs: int, newest: Path) -> tuple[str, ...]:
    if runs == 1:
        return ()
    return (f"{runs} runs lie in this folder: only the newest, {newest}, was read",)
