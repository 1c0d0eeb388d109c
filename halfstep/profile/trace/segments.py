"""What the threads of a host and the streams of a GPU ran: the operations of a trace, and when.

On a thread the operations that another one calls are inside of it; only the innermost counts at each instant.

Of what XLA compiled for a CPU, the trace has each instruction (`hlo_op`) with a number (`_p`). One that other threads
work on begins on one of them and ends on another, with an event of the same number (`_c`): here it is a thread of its
own. TensorFlow's own operations show, on a CPU, only as long as they take more than some 3 µs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from halfstep.profile.trace.hlo import Instruction, fusion_dtypes, instructions, program_name
from halfstep.profile.trace.kernels import (
    is_cast_kernel,
    is_compute,
    kernel_category,
    kernel_dtype,
    shapes_dtype,
    uses_tensor_cores,
)
from halfstep.profile.trace.model import Operation
from halfstep.profile.trace.xspace import names_of, programs, span, stat_text

HOST, _GPU, _STREAM = b"/host:CPU", b"/device:GPU", b"Stream"
_INPUT_THREAD = b"tf_data"  # how the names of the threads of an input pipeline begin
_OPERATION = re.compile(r"(?P<name>[^:]+):(?P<type>\w+)")  # an event of the executor
_LAUNCHES = {"XlaLaunch", "XlaLaunchV2", "_XlaRun"}  # of programs, whose instructions are in the trace
_END = "end: "  # how the event begins that ends an instruction
_COMPILED_NUMBER = re.compile(r"(?:[._]\d+)+$")
_OPERATION_STATS = ("tf_op", "level 0", "annotation")
_SHAPE_STATS = ("tensor_shapes", "shape")
_KERNEL_STATS = ("hlo_op", "hlo_module", *_OPERATION_STATS, *_SHAPE_STATS)
_ANNOTATED_SHAPE = re.compile(r"#.*?\bshape=([^#]*)#")


class Segment(NamedTuple):
    """A time in which one thread ran one operation, in picoseconds; the operation itself has no times."""

    start: int
    end: int
    operation: Operation


def host_threads(planes: Sequence[Any]) -> list[list[Segment]]:
    """The operations that each thread of the hosts ran, in the order of their starts, the outer ones first."""
    hosts = [plane for plane in planes if plane.name == HOST]
    compiled = instructions(program for plane in planes for program in programs(plane))
    return [thread for plane in hosts for thread in (*_threads(plane), *_compiled(plane, compiled))]


def gpu_streams(planes: Sequence[Any]) -> list[list[Segment]]:
    """What each stream of the GPUs ran, in order: kernels, and copies, which have no operation of the graph."""
    lines = [(plane, line) for plane in planes for line in streams(plane)]
    compiled = [program for plane in planes for program in programs(plane)] if lines else []
    known, dtypes = instructions(compiled), fusion_dtypes(compiled)
    return [_kernels(plane, line, known, dtypes) for plane, line in lines]


def computing_gpus(planes: Iterable[Any]) -> int:
    """Number of GPUs that ran a kernel: others are visible to the program and idle."""
    return sum(any(map(is_compute, _names_of_kernels(plane))) for plane in planes)


def _names_of_kernels(plane: Any) -> set[str]:
    names = names_of(plane.event_metadata)
    return {names.get(event.metadata_id, "") for line in streams(plane) for event in line.events}


def streams(plane: Any) -> list[Any]:
    """The streams of a GPU; none of another plane."""
    return [line for line in plane.lines if line.name.startswith(_STREAM)] if plane.name.startswith(_GPU) else []


def innermost(segments: Sequence[Segment], start: int = 0, end: int = sys.maxsize) -> Iterator[Segment]:
    """The times of a thread's operations without those of the operations inside of them, cut to `start` and `end`."""
    running: list[Segment] = []
    clock = 0

    def piece(until: int) -> Iterator[Segment]:
        low, high = max(clock, start), min(until, end)
        if high > low:
            yield Segment(low, high, running[-1].operation)

    for begun in (*segments, None):
        while running and (begun is None or running[-1].end <= begun.start):
            yield from piece(running[-1].end)
            clock = max(clock, running.pop().end)
        if begun is not None:
            if running:
                yield from piece(begun.start)
            running.append(begun)
            clock = begun.start


def totals(threads: Iterable[Sequence[Segment]]) -> list[Operation]:
    """Each operation once, with how often it ran and its time without that of the operations inside of it."""
    counts: dict[Operation, int] = {}
    times_ps: dict[Operation, int] = {}
    for segments in threads:
        for segment in segments:
            counts[segment.operation] = counts.get(segment.operation, 0) + 1
        for start, end, operation in innermost(segments):
            times_ps[operation] = times_ps.get(operation, 0) + end - start
    return [
        operation._replace(occurrences=count, self_time_us=times_ps.get(operation, 0) / 1e6)
        for operation, count in counts.items()
    ]


def _threads(plane: Any) -> Iterator[list[Segment]]:
    names = names_of(plane.event_metadata)
    matches = {number: match for number, name in names.items() if (match := _OPERATION.fullmatch(name))}
    if _has_instructions(plane):
        matches = {number: match for number, match in matches.items() if match["type"] not in _LAUNCHES}
    for line in plane.lines:
        yield _operations(line, matches)


def _operations(line: Any, matches: Mapping[int, re.Match[str]]) -> list[Segment]:
    """What a thread ran; `matches` are the names of the operations by the number of their events."""
    is_input = line.name.startswith(_INPUT_THREAD)
    known: dict[int, Operation] = {}
    segments = []
    for event in line.events:
        number = event.metadata_id
        if number not in matches:
            continue
        if number not in known:
            known[number] = Operation(matches[number]["type"], matches[number]["name"], is_input=is_input)
        segments.append(Segment(*span(line, event), known[number]))
    return sorted(segments, key=lambda one: (one.start, -one.end))


def _compiled(plane: Any, known: Mapping[tuple[str, str], Instruction]) -> Iterator[list[Segment]]:
    """What XLA compiled for a host; of instructions that run others only these count."""
    stat_names = names_of(plane.stat_metadata)
    if not _has_instructions(plane):
        return
    begun: list[tuple[int, int, int, tuple[str, str]]] = []
    ends: dict[int, int] = {}
    event_names = names_of(plane.event_metadata)
    others = {number for number, name in event_names.items() if _OPERATION.fullmatch(name)}
    for line in plane.lines:
        for event in line.events:
            if event.metadata_id in others:
                continue
            stats = {stat_names.get(stat.metadata_id, ""): stat for stat in event.stats}
            start, end = span(line, event)
            if "hlo_op" in stats:
                texts = {key: stat_text(stats[key], stat_names) for key in ("hlo_module", "hlo_op") if key in stats}
                instruction = program_name(texts.get("hlo_module", "")), texts["hlo_op"]
                begun.append((start, end, _number(stats.get("_p")), instruction))
            elif "_c" in stats and event_names[event.metadata_id].startswith(_END):
                ends[_number(stats["_c"])] = end
    for start, end, number, key in begun:
        info = known.get(key, Instruction())
        if not info.is_control:
            operation = Operation(info.type or _compiled_type(key[1]), info.operation or key[1], dtype=info.dtype)
            yield [Segment(start, max(end, ends.get(number, end)), operation)]


def _has_instructions(plane: Any) -> bool:
    """Whether the trace shows what XLA compiled for a host, as that of TensorFlow 2.21 does."""
    return any(entry.value.name == b"hlo_op" for entry in plane.stat_metadata)


def _compiled_type(name: str) -> str:
    """Type of an instruction that names no operation, by the name that XLA gave it."""
    if is_cast_kernel(name):
        return "Cast"
    category = kernel_category(name)
    if category == "matrix":
        return "XlaConv" if "conv" in name else "XlaDot"
    return "XlaFusion" if category == "memory" else _COMPILED_NUMBER.sub("", name)


def _number(stat: Any) -> int:
    """The number that an event and its end have in common; -1 for one without."""
    return -1 if stat is None else int(stat.uint64_value or stat.int64_value)


def _kernels(
    plane: Any, line: Any, known: Mapping[tuple[str, str], Instruction], dtypes: Mapping[str, str]
) -> list[Segment]:
    """What a stream ran; `known` and `dtypes` are of the programs that XLA compiled."""
    stat_names = names_of(plane.stat_metadata)
    event_names = names_of(plane.event_metadata)
    kernels: dict[tuple[Any, ...], Operation] = {}
    segments = []
    for event in line.events:
        stats = {stat_names.get(stat.metadata_id, ""): stat for stat in event.stats}
        texts = {name: stat_text(stats[name], stat_names) for name in _KERNEL_STATS if name in stats}
        kernel = event_names.get(event.metadata_id, "")
        key = (kernel, *texts.items())
        if key not in kernels:
            kernels[key] = _kernel(kernel, texts, known, dtypes)
        segments.append(Segment(*span(line, event), kernels[key]))
    return sorted(segments, key=lambda one: (one.start, -one.end))


def _kernel(
    kernel: str, texts: Mapping[str, str], known: Mapping[tuple[str, str], Instruction], dtypes: Mapping[str, str]
) -> Operation:
    """A kernel or copy; `texts` are the statistics of its event."""
    if "hlo_op" in texts:
        instruction = known.get((program_name(texts.get("hlo_module", "")), texts["hlo_op"]), Instruction())
        name, op_type = instruction.operation, instruction.type
    else:
        called = next(filter(None, (texts.get(key) for key in _OPERATION_STATS)), "")
        name, _, op_type = called.split("#", 1)[0].partition(":")
    dtype = kernel_dtype(kernel) or dtypes.get(kernel) or shapes_dtype(_shapes(texts))
    used = uses_tensor_cores(kernel, dtype) if is_compute(kernel) else None
    return Operation(op_type, name, "Device", dtype=dtype, tensor_core=used, kernel=kernel)


def _shapes(texts: Mapping[str, str]) -> str:
    shapes = next(filter(None, (texts.get(name) for name in _SHAPE_STATS)), "")
    annotated = None if shapes else _ANNOTATED_SHAPE.search(texts.get("annotation", ""))
    return annotated[1] if annotated else shapes
