"""The difference of two traces as tables for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from halfstep.errors import printable
from halfstep.profile.trace.difference import Difference, OperationChange
from halfstep.profile.trace.model import Trace

TOP = 10
NAME_CHARACTERS = 120  # of an operation: names of templates have hundreds
_UNITS = {"ms": "ms", "percent": "%", "mib": "MiB"}


def render(difference: Difference, names: tuple[str, str]) -> RenderableType:
    """Metrics, operations that take less and more time, and notes.

    Args:
        difference: of the two traces.
        names: what the columns of the two traces are called, such as their paths.
    """
    unit = "ms in a step" if difference.per_step else "ms in the whole trace"
    parts: list[RenderableType] = [
        *(Text(f"{column}: {printable(name)}") for column, name in zip(("BEFORE", "AFTER"), names, strict=True)),
        _metrics_table(difference),
    ]
    for title, changes in (("less", difference.gained), ("more", difference.lost)):
        if changes:
            parts.append(_operations_table(f"Operations that take {title} time after, {unit}", changes))
    notes = [*difference.notes, *_warnings("BEFORE", difference.before), *_warnings("AFTER", difference.after)]
    return Group(*parts, *(Text(f"- {printable(note)}") for note in notes))


def _warnings(name: str, trace: Trace) -> Iterator[str]:
    return (f"{name}: {warning}" for warning in trace.warnings)


def _metrics_table(difference: Difference) -> Table:
    table = Table("metric")
    for column in ("BEFORE", "AFTER", "change"):
        table.add_column(column, justify="right")
    before, after = difference.before, difference.after
    table.add_row("device", Text(printable(before.device_type)), Text(printable(after.device_type)), "")
    table.add_row("steps", str(len(before.steps)), str(len(after.steps)), "")
    old, new = difference.metrics
    for name in dict.fromkeys([*old, *new]):
        if not name.endswith("_xprof"):  # what the profiler claims: in the JSON
            table.add_row(_label(name), _number(old.get(name)), _number(new.get(name)), _delta(name, old, new))
    return table


def _label(name: str) -> str:
    """`memory/peak_mib` is "memory peak, MiB", and `profiler/compute_16bit_percent` is "compute 16-bit, %"."""
    words = re.sub(r"(\d)bit", r"\1-bit", name.removeprefix("profiler/")).replace("/", "_").split("_")
    unit = next((word for word in words if word in _UNITS), "")
    return " ".join(word for word in words if word != unit) + (f", {_UNITS[unit]}" if unit else "")


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.4g}" if abs(value) < 1000 else f"{value:{sign},.0f}"


def _delta(name: str, old: dict[str, float], new: dict[str, float]) -> str:
    if name not in old or name not in new:
        return ""
    delta = new[name] - old[name]
    if name.endswith("_percent"):
        return f"{_number(delta, '+')} points"
    return _number(delta, "+") + (f" ({100 * delta / old[name]:+.0f} %)" if old[name] else "")


def _operations_table(title: str, changes: Sequence[OperationChange]) -> Table:
    rest = len(changes) - TOP
    caption = f"and {rest} more" if rest > 0 else None
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column("layer", overflow="fold")
    table.add_column("operation", overflow="fold")
    for column in ("BEFORE", "AFTER", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("data type", overflow="fold")
    for change in changes[:TOP]:
        layer, operation = (Text(printable(text, NAME_CHARACTERS)) for text in (change.layer, change.operation))
        times = (_number(change.before_ms), _number(change.after_ms), _number(change.delta_ms, "+"))
        table.add_row(layer, operation, *times, Text(printable(_dtypes(change))))
    return table


def _dtypes(change: OperationChange) -> str:
    return " to ".join(dict.fromkeys(filter(None, (change.before_dtype, change.after_dtype))))
