"""Prints the trace at PATH as one JSON object: `halfstep trace PATH`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from halfstep.cli import cli_entry
from halfstep.errors import TraceError
from halfstep.profile.trace import Operation, Trace, read_trace

TOP = 20


@cli_entry
def main() -> None:
    """Reads the trace at the path of the command line and prints it."""
    parser = argparse.ArgumentParser(prog="halfstep trace", description=__doc__)
    parser.add_argument("path", type=Path, help="an .xplane.pb file or a log directory")
    parser.add_argument("--graph", type=Path, help="JSON file: data type of each node of the traced graph, by name")
    arguments = parser.parse_args()
    trace = read_trace(arguments.path, None if arguments.graph is None else _graph_dtypes(arguments.graph))
    # In ASCII: the names in a trace of someone else may contain commands to the terminal.
    print(json.dumps(report(trace), indent=2, allow_nan=False))


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


def _graph_dtypes(path: Path) -> dict[str, str]:
    try:
        dtypes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"--graph {path} is not readable JSON ({error})".replace("\n", " ")) from error
    if not isinstance(dtypes, dict) or not all(isinstance(dtype, str) for dtype in dtypes.values()):
        raise TraceError(f'--graph {path} is not a JSON object of types by node, such as {{"dense/MatMul": "float32"}}')
    return dtypes
