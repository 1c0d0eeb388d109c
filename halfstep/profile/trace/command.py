"""Prints the trace at PATH as one JSON object, or compares two traces, BEFORE and AFTER.

`python -m halfstep trace PATH`, or `python -m halfstep trace BEFORE AFTER [--json]`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from halfstep.cli import cli_entry
from halfstep.errors import TraceError
from halfstep.profile.trace import Operation, Trace, read_trace
from halfstep.profile.trace.difference import Difference, OperationChange, difference
from halfstep.profile.trace.table import render
from halfstep.terminal import wide_console

TOP = 20


@cli_entry
def main() -> None:
    """Reads the trace at the path of the command line and prints it, or compares two."""
    parser = argparse.ArgumentParser(prog="halfstep trace", description=__doc__)
    parser.add_argument("path", type=Path, help="an .xplane.pb file or a log directory")
    parser.add_argument("after", type=Path, nargs="?", help="another trace, to compare with the first")
    parser.add_argument("--json", action="store_true", help="print a comparison as JSON; a single trace always is")
    parser.add_argument(
        "--graph",
        type=Path,
        action="append",
        default=[],
        help="JSON file: data type of each node of the traced graph, by name; once for each trace",
    )
    arguments = parser.parse_intermixed_args()  # paths may stand before and after options
    paths = [path for path in (arguments.path, arguments.after) if path]
    traces = [read_trace(path, graph) for path, graph in zip(paths, _graphs(arguments.graph, paths), strict=True)]
    if len(traces) == 1:
        _print_json(report(traces[0]))
        return
    comparison = difference(*traces)
    if arguments.json:
        _print_json(difference_report(comparison))
    else:
        wide_console().print(render(comparison, (str(paths[0]), str(paths[1]))))


def _print_json(document: dict[str, Any]) -> None:
    # In ASCII: the names in a trace of someone else may contain commands to the terminal.
    print(json.dumps(document, indent=2, allow_nan=False))


def report(trace: Trace) -> dict[str, Any]:
    """The trace as one flat JSON object: its metrics by name, then device, steps, operations and warnings."""
    return {
        **trace.metrics(),
        "device_type": trace.device_type,
        **_without_none({"device_count": trace.device_count, "kernels": len(trace.kernels) or None}),
        "steps": [_without_none(asdict(step)) for step in trace.steps],
        "top_operations": [_fields(item) for item in _top(trace)],
        "warnings": list(trace.warnings),
    }


def difference_report(comparison: Difference) -> dict[str, Any]:
    """The difference of two traces as a JSON object: each trace as in `report`, and what differs."""
    before, after = comparison.metrics
    return {
        "before": report(comparison.before),
        "after": report(comparison.after),
        "metric_deltas": {name: after[name] - before[name] for name in before if name in after},
        "operations_per_step": comparison.per_step,
        "operations_gained": [_as_fields(change) for change in comparison.gained[:TOP]],
        "operations_lost": [_as_fields(change) for change in comparison.lost[:TOP]],
        "notes": list(comparison.notes),
    }


def _as_fields(change: OperationChange) -> dict[str, Any]:
    return _without_none(asdict(change)) | {"delta_ms": change.delta_ms}


def _top(trace: Trace) -> Iterable[Operation]:
    on_device = [operation for operation in trace.operations if operation.host_or_device == "Device"]
    if trace.kernels and not on_device:  # traces whose kernels name no operation
        return trace.kernels[:TOP]
    return (on_device or [operation for operation in trace.operations if operation.category != "input"])[:TOP]


def _fields(item: Operation) -> dict[str, Any]:
    fields = _without_none(item._asdict())
    kernel = fields.pop("kernel")
    del fields["is_input"]
    return fields | ({"type": "Kernel", "name": kernel} if kernel else {})


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _graphs(graphs: Sequence[Path], paths: Sequence[Path]) -> list[dict[str, str] | None]:
    if graphs and len(graphs) != len(paths):
        raise TraceError(
            f"--graph is given {len(graphs)} times for {len(paths)} traces: give it once for each, in order"
        )
    return [_graph_dtypes(path) for path in graphs] or [None] * len(paths)


def _graph_dtypes(path: Path) -> dict[str, str]:
    try:
        dtypes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"--graph {path} is not readable JSON ({error})".replace("\n", " ")) from error
    if not isinstance(dtypes, dict) or not all(isinstance(dtype, str) for dtype in dtypes.values()):
        raise TraceError(f'--graph {path} is not a JSON object of types by node, such as {{"dense/MatMul": "float32"}}')
    return dtypes
