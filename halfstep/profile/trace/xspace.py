"""Reads what xprof's tables leave out from an XSpace, the profiler's file format.

These are the profiler's errors and warnings, the devices, the step markers, and the programs that XLA compiled; what
ran is in `segments`. The schema is `tsl/profiler/protobuf/xplane.proto`, which xprof does not ship for Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import message

from halfstep.errors import TraceError
from halfstep.profile.trace.messages import Fields, message_class

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
_TRAINING = b"train"  # the name of the markers of this project
_ITERATION = b"iter_num"  # the iteration of the loop that the executor of a graph was in; 0 outside loops


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
        markers_ms: duration of each step marker of the host that has the most, in their order.
    """

    planes: tuple[str, ...]
    host_lines: tuple[str, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    dropped_traces: int
    nameless: tuple[str, ...]
    markers_ms: tuple[float, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the planes of accelerators, such as `/device:GPU:0`."""
        return tuple(name for name in self.planes if name.startswith("/device:"))

    @property
    def marked_steps(self) -> int:
        """Number of steps with a marker; the profiler may drop those at the ends."""
        return len(self.markers_ms)


def scan(named: Mapping[str, Any]) -> Scan:
    """Reads what is missing; `named` are the parsed files of one run, by their names."""
    spaces = named.values()
    planes = [plane for space in spaces for plane in space.planes]
    hosts = [plane for plane in planes if plane.name.startswith(b"/host:")]
    return Scan(
        planes=tuple(text(plane.name) for plane in planes),
        host_lines=tuple(text(line.name) for plane in hosts for line in plane.lines),
        errors=tuple(dict.fromkeys(text(error) for space in spaces for error in space.errors)),
        warnings=tuple(dict.fromkeys(text(warning) for space in spaces for warning in space.warnings)),
        dropped_traces=sum(map(_dropped_traces, planes)),
        nameless=tuple(name for name, space in named.items() if not space.hostnames),
        markers_ms=max(map(_markers_ms, hosts), key=len, default=()),
    )


def without_loops(space: Any) -> bytes | None:
    """The content of a file from which xprof reads the marked steps although loops ran in them.

    If a graph has a loop (`tf.while_loop`, as in LSTM and GRU), xprof takes its iterations as the steps and ignores the
    markers. Here all iterations have the number 0, that of operations outside loops: `space`, the file as `parse` reads
    it, is changed to that.

    Returns:
        None if the file has no loops, or no markers: it can be read as it is.
    """
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


def marker_spans(plane: Any) -> Iterator[tuple[int, int]]:
    """Start and end of each marker of a training step of a host, in picoseconds."""
    names = {entry.key for entry in plane.event_metadata if entry.value.name == _TRAINING}
    numbers = {entry.key for entry in plane.stat_metadata if entry.value.name == b"step_num"}
    for line in plane.lines:
        for event in line.events:
            if event.metadata_id in names and any(stat.metadata_id in numbers for stat in event.stats):
                yield span(line, event)


def programs(plane: Any) -> Iterator[bytes]:
    """The programs that XLA compiled, of the plane that has them."""
    if plane.name != _PROGRAMS:
        return
    numbers = {entry.key for entry in plane.stat_metadata if entry.value.name == _PROGRAM}
    for entry in plane.event_metadata:
        yield from (stat.bytes_value for stat in entry.value.stats if stat.metadata_id in numbers)


def stat_text(stat: Any, stat_names: dict[int, str]) -> str:
    """A statistic of an event as text; empty if it is none. `stat_names` are those of its plane, by number."""
    return text(stat.str_value) or stat_names.get(stat.ref_value, "")


def names_of(entries: Iterable[Any]) -> dict[int, str]:
    """The names of a plane's events or statistics, by their number."""
    return {entry.key: text(entry.value.name) for entry in entries}


def span(line: Any, event: Any) -> tuple[int, int]:
    """Start and end of an event, in picoseconds."""
    start = line.timestamp_ns * 1000 + event.offset_ps
    return start, start + event.duration_ps


def text(value: bytes) -> str:
    """A name or message, which may be invalid UTF-8."""
    return value.decode("utf-8", errors="replace")
