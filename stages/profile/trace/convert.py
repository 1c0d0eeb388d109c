"""Has xprof turn a trace into tables, in a process of its own.

Some traces end in a C++ `CHECK` that kills the process, some conversions hang, all of them write tens of log lines and
some leave a cache beside the trace. So: a child process with a time limit, whose output nobody sees, on links to the
trace in a temporary folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stages.errors import TraceError
from stages.profile.trace.files import SUFFIX
from stages.profile.trace.tables import Table
from stages.profile.trace.xspace import KernelShapes, Scan, scan_files

TOOLS = ("overview_page", "kernel_stats", "framework_op_stats")
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Conversion:
    """A run's trace as xprof's tables.

    Attributes:
        tables: the tables of each tool, all hosts together; a tool that had nothing to say has none.
        host_overviews: the tables of `overview_page` of each host alone, for the steps of several hosts together are
            those of the host whose file comes first.
        peak_bytes: the most memory in use during the trace, in bytes, the highest of all hosts, by allocator.
        scan: what was read from the trace itself.
    """

    tables: dict[str, tuple[Table, ...]]
    host_overviews: tuple[tuple[Table, ...], ...]
    peak_bytes: dict[str, int]
    scan: Scan


def convert(paths: Sequence[Path], timeout_s: float) -> Conversion:
    """Converts the trace files of one run, one a host.

    Raises:
        TraceError: a file is no trace, or the conversion failed, died or took longer than `timeout_s` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="halfstep-trace-") as folder:
        links = _link(paths, Path(folder))
        result = Path(folder) / "result.json"
        _run_child(paths[0], [str(result), *map(str, links)], timeout_s)
        document = json.loads(result.read_text(encoding="utf-8"))
    if "error" in document:
        raise TraceError(_with_own_names(document["error"], links, paths))
    tables = {tool: _tables(parts) for tool, parts in document["tables"].items()}
    overviews = tuple(map(_tables, document["host_overviews"]))
    return Conversion(tables, overviews, document["peak_bytes"], _scan(document["scan"]))


def _tables(parts: Sequence[dict[str, Any]]) -> tuple[Table, ...]:
    return tuple(map(Table.parse, parts))


def _with_own_names(error: str, links: Sequence[Path], paths: Sequence[Path]) -> str:
    for link, path in zip(links, paths, strict=True):
        error = error.replace(str(link), str(path))
    return error


def _scan(fields: dict[str, Any]) -> Scan:
    kernels = tuple(KernelShapes(**kernel) for kernel in fields["kernels"])
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Scan(**{**plain, "kernels": kernels})


def _link(paths: Sequence[Path], folder: Path) -> list[Path]:
    links = []
    for number, path in enumerate(paths):
        name = path.name if path.name.endswith(SUFFIX) else f"host{number}{SUFFIX}"
        links.append(folder / name)
        links[-1].symlink_to(path.resolve())
    return links


def _run_child(path: Path, arguments: list[str], timeout_s: float) -> None:
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        child = subprocess.run(
            [sys.executable, "-m", "stages.profile.trace.convert", *arguments],
            env={**os.environ, "PYTHONPATH": search_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TraceError(f"{path}: reading took over {timeout_s:g} s: trace fewer steps, 10 are plenty") from error
    if child.returncode != 0:
        raise TraceError(f"{path}: the profiler's reader {_cause(child.returncode, child.stderr)}: profile again")


def _cause(status: int, log: bytes) -> str:
    lines = [line for line in log.decode("utf-8", errors="replace").splitlines() if line.strip()]
    if status < 0:
        fatal = next((line for line in lines if "Check failed" in line), "")
        return f"died ({signal.Signals(-status).name}{'; ' + fatal.split('] ', 1)[-1] if fatal else ''})"
    return f"failed ({lines[-1].strip()})" if lines else f"failed (status {status})"


def _convert_here(paths: list[Path]) -> dict[str, Any]:
    scan = scan_files(paths)  # first, for xprof may die of a file that is cut short
    tables = {tool: _tool_tables(paths, tool) for tool in TOOLS}
    several = len(paths) > 1
    peaks: dict[str, int] = {}
    for path in paths:  # this tool takes one host at a time
        for part in _tool_tables([path], "memory_profile"):
            for allocator, peak in _peaks(part):
                peaks[allocator] = max(peak, peaks.get(allocator, 0))
    return {
        "scan": asdict(scan),
        "tables": tables,
        "host_overviews": [_tool_tables([path], TOOLS[0]) for path in paths] if several else [tables[TOOLS[0]]],
        "peak_bytes": peaks,
    }


def _tool_tables(paths: list[Path], tool: str) -> list[dict[str, Any]]:
    from xprof.convert import raw_to_tool_data  # here, for only the child may load it: it logs, and may die

    data, _ = raw_to_tool_data.xspace_to_tool_data([str(path) for path in paths], tool, {"use_saved_result": False})
    parsed = json.loads(data) if data else []
    return parsed if isinstance(parsed, list) else [parsed]


def _peaks(profile: dict[str, Any]) -> list[tuple[str, int]]:
    return [
        (allocator, int(entry.get("profileSummary", {}).get("peakStats", {}).get("peakBytesInUse", 0)))
        for allocator, entry in profile.get("memoryProfilePerAllocator", {}).items()
    ]


def main(arguments: list[str]) -> int:
    """Converts the files named after the first argument, and writes the result as JSON to the first."""
    result, *paths = map(Path, arguments)
    try:
        document = _convert_here(paths)
    except TraceError as error:
        document = {"error": str(error)}
    result.write_text(json.dumps(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
