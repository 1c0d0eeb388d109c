"""Finds the trace files of a path."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from halfstep.errors import TraceError

SUFFIX = ".xplane.pb"
_OF_VIEWERS = (".json", ".json.gz")


def find_trace_files(path: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The trace files of one run, one for each host, and warnings about the choice of the run.

    Args:
        path: a trace file, a run's folder, or a log directory, of which the newest run is taken.

    Raises:
        TraceError: the path does not exist, the folder holds no trace, or a file is one of a trace viewer.
    """
    if path.is_file():
        if path.name.endswith(_OF_VIEWERS):
            raise _for_viewers(path)
        return (path,), ()
    if not path.is_dir():
        raise TraceError(f"{path} does not exist: pass a {SUFFIX} file or a log directory that holds one")
    runs: dict[Path, list[Path]] = defaultdict(list)
    for file in filter(Path.is_file, path.rglob(f"*{SUFFIX}")):
        runs[file.parent].append(file)
    if not runs and (viewer_file := next((file for file in path.rglob("*") if file.name.endswith(_OF_VIEWERS)), None)):
        raise _for_viewers(viewer_file)
    if not runs:
        raise TraceError(f"{path} holds no trace: pass a {SUFFIX} file or a folder with one in it or below it")
    newest = max(runs, key=lambda run: (max(file.stat().st_mtime for file in runs[run]), run))
    warning = f"the folder holds {len(runs)} runs: only the newest, {newest}, was read"
    return tuple(sorted(runs[newest])), (warning,) if len(runs) > 1 else ()


def _for_viewers(path: Path) -> TraceError:
    return TraceError(
        f"{path} is for trace viewers, such as Perfetto or chrome://tracing: pass the {SUFFIX} file that TensorFlow "
        "writes beside it; traces of PyTorch cannot be read"
    )
