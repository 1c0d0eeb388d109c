"""Reads a trace in a child process: with xprof the steps and the memory, and what ran with readers of our own.

Some traces end in a C++ `CHECK` that kills the process, some conversions hang, all of them log dozens of lines and some
write a cache next to the trace. So a child process with a time limit converts links to the trace in a temporary folder,
and its output is captured.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from halfstep.errors import TraceError
from halfstep.profile.trace.idle import idle_of
from halfstep.profile.trace.locate import SUFFIX
from halfstep.profile.trace.model import Idle, Operation
from halfstep.profile.trace.segments import computing_gpus, gpu_streams, host_threads, totals
from halfstep.profile.trace.xspace import Scan, parse, scan, without_loops
from halfstep.system.commands import run_program
from halfstep.system.imports import search_path

# Not `-m`: reading a trace needs only some of the packages whose absence ends `python -m halfstep...`.
_CHILD = "import sys; from halfstep.profile.trace.xprof import main; sys.exit(main(sys.argv[1:]))"
UNKNOWN_STEPS = ("No step marker observed", "Incomplete step observed")  # how messages begin that say so
Row = dict[str, Any]  # by xprof's names of the columns; an empty cell is None


@dataclass(frozen=True)
class Overview:
    """xprof's `overview_page`: properties by name, messages of the profiler, and one row for each step."""

    properties: dict[str, str]
    messages: list[str]
    steps: list[Row]


@dataclass(frozen=True)
class Conversion:
    """What xprof reads from the trace of a run.

    Attributes:
        overview: of all hosts together; its steps are those of the first host.
        host_overviews: of each host.
        operations: of the hosts' threads, and the kernels and copies of GPUs, as `totals` gives them.
        computing_gpus: number of GPUs that ran a kernel.
        peak_bytes: peak of the memory in use during the trace, the highest of all hosts, by allocator.
        scan: what was read from the trace itself.
        idle: what a GPU waited for; None without one, or where the trace does not show it.
    """

    overview: Overview
    host_overviews: list[Overview]
    operations: list[Operation]
    computing_gpus: int
    peak_bytes: dict[str, int]
    scan: Scan
    idle: Idle | None = None


def convert(paths: Sequence[Path], timeout_s: float) -> Conversion:
    """Converts the trace files of one run, one for each host.

    Raises:
        TraceError: a file is not a trace, or the conversion failed, crashed or took longer than `timeout_s` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="halfstep-trace-") as folder:
        links = _link(paths, Path(folder))
        result = Path(folder) / "result.json"
        _run_child(paths[0], [str(result), *map(str, links)], timeout_s)
        document = json.loads(result.read_text(encoding="utf-8"))
    if "error" in document:
        for link, path in zip(links, paths, strict=True):
            document["error"] = document["error"].replace(str(link), str(path))
        raise TraceError(document["error"])
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in document["scan"].items()
    }
    document["scan"] = Scan(**fields)
    document["operations"] = [Operation(*values) for values in document["operations"]]
    document["overview"] = Overview(**document["overview"])
    document["idle"] = Idle(**document["idle"]) if document["idle"] else None
    document["host_overviews"] = [Overview(**overview) for overview in document["host_overviews"]]
    return Conversion(**document)


def _link(paths: Sequence[Path], folder: Path) -> list[Path]:
    links = []
    for number, path in enumerate(paths):
        name = path.name if path.name.endswith(SUFFIX) else f"host{number}{SUFFIX}"
        links.append(folder / name)
        links[-1].symlink_to(path.resolve())
    return links


def _run_child(path: Path, arguments: list[str], timeout_s: float) -> None:
    ended = run_program([sys.executable, "-c", _CHILD, *arguments], timeout_s, search_path())
    if ended.status is None:
        raise TraceError(f"{path}: reading took over {timeout_s:g} s: trace fewer steps, 10 are enough")
    if ended.status:
        raise TraceError(f"{path}: xprof {_cause(ended.status, ended.stderr)}: profile again")


def _cause(status: int, log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    if status < 0:
        fatal = next((line for line in lines if "Check failed" in line), "")
        return f"crashed ({signal.Signals(-status).name}{'; ' + fatal.split('] ', 1)[-1] if fatal else ''})"
    return f"failed ({lines[-1].strip()})" if lines else f"failed (status {status})"


def _convert_here(paths: list[Path]) -> dict[str, Any]:
    spaces = {path: parse(path) for path in paths}  # first, because xprof may crash on a truncated file
    scanned = scan({path.name: space for path, space in spaces.items()})
    planes = [plane for space in spaces.values() for plane in space.planes]
    idle = idle_of(planes)
    operations, gpus = totals([*host_threads(planes), *gpu_streams(planes)]), computing_gpus(planes)
    for path, space in spaces.items():
        if (content := without_loops(space)) is not None:
            path.unlink()  # a link to the trace
            path.write_bytes(content)
    overview = _overview(paths)
    peaks: dict[str, int] = {}
    for path in paths:  # this tool takes one host at a time
        for part in _tool_tables([path], "memory_profile"):
            for allocator, entry in part.get("memoryProfilePerAllocator", {}).items():
                peak = int(entry.get("profileSummary", {}).get("peakStats", {}).get("peakBytesInUse", 0))
                peaks[allocator] = max(peak, peaks.get(allocator, 0))
    return {
        "overview": overview,
        "host_overviews": [_overview([path]) for path in paths] if len(paths) > 1 else [overview],
        "operations": operations,
        "computing_gpus": gpus,
        "peak_bytes": peaks,
        "scan": asdict(scanned),
        "idle": asdict(idle) if idle else None,
    }


def _overview(paths: list[Path]) -> dict[str, Any]:
    tables = _tool_tables(paths, "overview_page")
    rows = _rows(tables)
    return {
        "properties": {name: value for table in tables for name, value in (table.get("p") or {}).items()},
        "messages": [str(row["message"]) for row in rows if "message" in row],
        "steps": [row for row in rows if "deviceComputeTimeMs" in row],
    }


def _rows(tables: list[dict[str, Any]]) -> list[Row]:
    """Rows of tables such as `{"cols": [{"id": ...}], "rows": [{"c": [{"v": ...}]}], "p": {...}}`."""
    return [
        {column["id"]: (cell or {}).get("v") for column, cell in zip(table["cols"], row["c"], strict=False)}
        for table in tables
        for row in table.get("rows") or ()
    ]


def _tool_tables(paths: list[Path], tool: str) -> list[dict[str, Any]]:
    from xprof.convert import raw_to_tool_data  # only in the child: it logs, and may crash

    data, _ = raw_to_tool_data.xspace_to_tool_data([str(path) for path in paths], tool, {"use_saved_result": False})
    parsed = json.loads(data) if data else []
    return parsed if isinstance(parsed, list) else [parsed]


def main(arguments: list[str]) -> int:
    """Converts the files in all arguments but the first, and writes the result as JSON to the first."""
    result, *paths = map(Path, arguments)
    try:
        document = _convert_here(paths)
    except TraceError as error:
        document = {"error": str(error)}
    result.write_text(json.dumps(document), encoding="utf-8")
    return 0
