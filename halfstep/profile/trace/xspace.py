"""Reads what xprof's tables leave out from an XSpace, the profiler's file format.

These are the profiler's errors and warnings, the devices, the step markers, the tensor shapes of each kernel, and the
programs that XLA compiled. The schema is `tsl/profiler/protobuf/xplane.proto`, which xprof does not ship for Python.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import message

from halfstep.errors import TraceError
from halfstep.profile.trace.hlo import fusion_dtypes, program_name
from halfstep.profile.trace.kernels import shapes_dtype
from halfstep.profile.trace.model import Operation
from halfstep.profile.trace.schema import Fields, message_class

_FIELDS: Fields = {
    "XSpace": [
        ("planes", 1, "*XPlane"),
        ("errors", 2, "*bytes"),
        ("warnings", 3, "*bytes"),
        ("hostnames", 4, "*bytes"),
    ],
    "XPlane": [
        ("name", 2, "bytes"),
        ("lines", 3, "*XLine"),
        ("event_metadata", 4, "*MetadataEntry"),
        ("stat_metadata", 5, "*MetadataEntry"),
        ("stats", 6, "*XStat"),
    ],
    "MetadataEntry": [("key", 1, "int64"), ("value", 2, "Metadata")],
    "Metadata": [("name", 2, "bytes"), ("stats", 5, "*XStat")],
    "XLine": [("name", 2, "bytes"), ("timestamp_ns", 3, "int64"), ("events", 4, "*XEvent")],
    "XEvent": [
        ("metadata_id", 1, "int64"),
        ("offset_ps", 2, "int64"),
        ("duration_ps", 3, "int64"),
        ("stats", 4, "*XStat"),
    ],
    "XStat": [
        ("metadata_id", 1, "int64"),
        ("uint64_value", 3, "uint64"),
        ("int64_value", 4, "int64"),
        ("str_value", 5, "bytes"),
        ("bytes_value", 6, "bytes"),
        ("ref_value", 7, "uint64"),
    ],
}
_XSPACE = message_class("XSpace", "halfstep.profiler", _FIELDS)
_PROGRAMS, _PROGRAM = b"/host:metadata", b"Hlo Proto"
_MARKERS = (b"train", b"test", b"TraceContext")  # how the names of the events begin that xprof takes as steps
_ITERATION = b"iter_num"  # the iteration of the loop that the executor of a graph was in; 0 outside loops
_SHAPE_STATS = ("tensor_shapes", "shape")
_OPERATION_STATS = ("tf_op", "level 0", "annotation")
_ANNOTATED_SHAPE = re.compile(r"#.*?\bshape=([^#]*)#")


@dataclass(frozen=True)
class Scan:
    """The content of one or more XSpace files that is missing from xprof's tables.

    Attributes:
        planes: names of all planes, of devices and hosts.
        host_lines: names of the lines in the hosts' planes, mostly threads.
        errors: the profiler's errors.
        warnings: the profiler's warnings, for example about dropped events.
        dropped_traces: number of dropped traces according to the planes.
        nameless: files without the name of a host.
        kernels: kernels of the GPUs, one row for each operation and set of tensor shapes, such as `(half[32,10])`, from
            which the data type is known.
        computing_devices: number of GPUs that ran one: others are visible to the program and idle.
        markers_ms: duration of each step marker of the host that has the most, in their order.
        fusion_dtypes: data type of each fusion that XLA compiled, by the name of its kernel.
    """

    planes: tuple[str, ...]
    host_lines: tuple[str, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    dropped_traces: int
    nameless: tuple[str, ...]
    kernels: tuple[Operation, ...]
    markers_ms: tuple[float, ...]
    fusion_dtypes: dict[str, str]
    computing_devices: int = 0

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the planes of accelerators, such as `/device:GPU:0`."""
        return tuple(name for name in self.planes if name.startswith("/device:"))

    @property
    def marked_steps(self) -> int:
        """Number of steps with a marker; the profiler may drop those at the ends."""
        return len(self.markers_ms)


def scan_files(paths: Iterable[Path]) -> Scan:
    """Reads the XSpace files of one run.

    Raises:
        TraceError: a file is empty, truncated, or not a trace.
    """
    named = {path.name: parse(path) for path in paths}
    spaces = named.values()
    planes = [plane for space in spaces for plane in space.planes]
    hosts = [plane for plane in planes if plane.name.startswith(b"/host:")]
    kernels = [found for plane in planes if (found := list(_kernels(plane)))]
    return Scan(
        planes=tuple(_text(plane.name) for plane in planes),
        host_lines=tuple(_text(line.name) for plane in hosts for line in plane.lines),
        errors=tuple(dict.fromkeys(_text(error) for space in spaces for error in space.errors)),
        warnings=tuple(dict.fromkeys(_text(warning) for space in spaces for warning in space.warnings)),
        dropped_traces=sum(map(_dropped_traces, planes)),
        nameless=tuple(name for name, space in named.items() if not space.hostnames),
        kernels=tuple(kernel for of_one in kernels for kernel in of_one),
        computing_devices=len(kernels),
        markers_ms=max(map(_markers_ms, hosts), key=len, default=()),
        fusion_dtypes=fusion_dtypes(program for plane in planes for program in programs(plane)),
    )


def without_loops(path: Path) -> bytes | None:
    """The content of an XSpace file from which xprof reads the marked steps although loops ran in them.

    If a graph has a loop (`tf.while_loop`, as in LSTM and GRU), xprof takes its iterations as the steps and ignores the
    markers. Here all iterations have the number 0, that of operations outside loops.

    Returns:
        None if the file has no loops, or no markers: it can be read as it is.

    Raises:
        TraceError: the file is empty, truncated, or not a trace.
    """
    space = parse(path)
    if not any(_markers_ms(plane) for plane in space.planes):
        return None
    has_loops = False
    for stat in (stat for plane in space.planes for stat in _iterations(plane)):
        stat.ClearField("uint64_value")
        stat.int64_value, has_loops = 0, True
    return bytes(space.SerializeToString()) if has_loops else None


def _iterations(plane: Any) -> Iterator[Any]:
    numbers = {entry.key for entry in plane.stat_metadata if entry.value.name == _ITERATION}
    events = (event for line in plane.lines for event in line.events) if numbers else ()
    stats = (stat for event in events for stat in event.stats if stat.metadata_id in numbers)
    return (stat for stat in stats if stat.int64_value or stat.uint64_value)


def parse(path: Path) -> Any:
    """The XSpace of a file, as an object with the fields of its schema.

    Raises:
        TraceError: the file is empty, truncated, or not a trace.
    """
    try:
        space = _XSPACE.FromString(path.read_bytes())
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except message.DecodeError as error:
        raise TraceError(
            f"{path} is truncated or not a profiler trace: profile again, or copy the file again"
        ) from error
    if not any(plane.name for plane in space.planes):
        raise TraceError(f"{path} is empty or not a profiler trace: pass an .xplane.pb file of the profiler")
    return space


def _dropped_traces(plane: Any) -> int:
    names = {entry.key: entry.value.name for entry in plane.stat_metadata}
    return sum(
        stat.uint64_value + stat.int64_value for stat in plane.stats if names.get(stat.metadata_id) == b"dropped_traces"
    )


def _markers_ms(plane: Any) -> tuple[float, ...]:
    names = {entry.key for entry in plane.event_metadata if entry.value.name.startswith(_MARKERS)}
    numbers = {entry.key for entry in plane.stat_metadata if entry.value.name == b"step_num"}
    events = [event for line in plane.lines for event in line.events if event.metadata_id in names]
    marked = [event for event in events if any(stat.metadata_id in numbers for stat in event.stats)]
    return tuple(event.duration_ps / 1e9 for event in sorted(marked, key=lambda event: event.offset_ps))


def programs(plane: Any) -> Iterator[bytes]:
    """The programs that XLA compiled, of the plane that has them."""
    if plane.name != _PROGRAMS:
        return
    numbers = {entry.key for entry in plane.stat_metadata if entry.value.name == _PROGRAM}
    for entry in plane.event_metadata:
        yield from (stat.bytes_value for stat in entry.value.stats if stat.metadata_id in numbers)


def _kernels(plane: Any) -> Iterator[Operation]:
    if not plane.name.startswith(b"/device:GPU"):
        return
    stat_names = {entry.key: _text(entry.value.name) for entry in plane.stat_metadata}
    event_names = {entry.key: _text(entry.value.name) for entry in plane.event_metadata}
    durations: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for line in plane.lines:
        for event in line.events:
            stats = {stat_names.get(stat.metadata_id, ""): stat for stat in event.stats}
            if "kernel_details" in stats:  # copies and derived lines have none
                operation, shapes = _operation_and_shapes(stats, stat_names)
                durations[event_names.get(event.metadata_id, ""), operation, shapes].append(event.duration_ps)
    for (kernel, operation, shapes), each_ps in durations.items():
        time_us, dtype = sum(each_ps) / 1e6, shapes_dtype(shapes)
        yield Operation("", operation, "Device", len(each_ps), time_us, dtype, kernel=kernel)


def kernel_operations(
    plane: Any, line: Any, of_instructions: Mapping[tuple[str, str], tuple[str, str]]
) -> Iterator[tuple[Any, str, str, str]]:
    """Yields each event of a stream, the name of its kernel or copy, and the name and type of its operation.

    The last two are empty where the profiler does not say. `of_instructions` has them for the kernels that XLA
    compiled, as of `source_operations`.
    """
    stat_names = {entry.key: _text(entry.value.name) for entry in plane.stat_metadata}
    event_names = {entry.key: _text(entry.value.name) for entry in plane.event_metadata}
    for event in line.events:
        stats = {stat_names.get(stat.metadata_id, ""): stat for stat in event.stats}
        if "hlo_op" in stats:
            module, instruction = (_stat_text(stats[key], stat_names) for key in ("hlo_module", "hlo_op"))
            name, op_type = of_instructions.get((program_name(module), instruction), ("", ""))
        else:
            texts = (_stat_text(stats[key], stat_names) for key in _OPERATION_STATS if key in stats)
            name, _, op_type = next(filter(None, texts), "").split("#", 1)[0].partition(":")
        yield event, event_names.get(event.metadata_id, ""), name, op_type


def _operation_and_shapes(stats: dict[str, Any], stat_names: dict[int, str]) -> tuple[str, str]:
    texts = {name: _stat_text(stats[name], stat_names) for name in (*_SHAPE_STATS, *_OPERATION_STATS) if name in stats}
    operation = next((texts[name] for name in _OPERATION_STATS if texts.get(name)), "")
    shapes = next((texts[name] for name in _SHAPE_STATS if texts.get(name)), "")
    annotated = _ANNOTATED_SHAPE.search(texts.get("annotation", ""))
    if not shapes and annotated:
        shapes = annotated[1]
    return operation.split("#", 1)[0].split(":", 1)[0], shapes


def _stat_text(stat: Any, stat_names: dict[int, str]) -> str:
    return _text(stat.str_value) or stat_names.get(stat.ref_value, "")


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
